"""Samples of outputs, with where their tokens stand in the target's own probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gamaneh.bench.audit.answers import Answer, Judges, Question, ask, refuse_failures
from gamaneh.bench.audit.judges import Dictated
from gamaneh.bench.audit.statistic import rank
from gamaneh.bench.audit.subject import Subject
from gamaneh.core import ROOT, Rule, TargetRows
from gamaneh.engine.engine import Engine
from gamaneh.options import SamplingParams

FIRST = 1
"""The token at position 0 comes from reading the prompt: nothing was guessed there."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Outputs of one system, `draws` of each prompt in a row, and where their tokens stand in the target's law.

    Args:
        ranks: one list per output, one value per token.
        impossible: tokens to which the target gives no probability.
    """

    answers: Sequence[Answer]
    ranks: Sequence[Sequence[float]]
    draws: int
    impossible: int = 0

    def all_ranks(self) -> list[float]:
        """Those of all tokens that could be guessed."""
        return [value for ranks in self.ranks for value in ranks[FIRST:]]

    def guessed_ranks(self) -> list[float]:
        """Those of the first tokens of rounds with a draft, where a wrong rule shows most.

        Whether a round begins somewhere, and with a draft, depends on what came before. Given that,
        the first token that it emits follows the target under any exact rule. Later tokens of a round do not
        have that property: that they belong to the same round says something about them.
        """
        pairs = zip(self.answers, self.ranks, strict=True)
        return [ranks[at] for answer, ranks in pairs for at in answer.round_starts if at < len(ranks)]

    def outputs(self) -> list[NDArray[np.int64]]:
        """For each prompt `[draws, num_positions]` token ids, without the first position; -1 behind a short output."""
        length = max(len(answer.tokens) for answer in self.answers)
        padded = np.full((len(self.answers), length), -1, dtype=np.int64)
        for row, answer in zip(padded, self.answers, strict=True):
            row[: len(answer.tokens)] = answer.tokens
        return list(padded[:, FIRST:].reshape(-1, self.draws, length - FIRST))

    def with_share(self, other: Sample, share: float) -> Sample:
        """This sample with that share of each prompt's outputs taken from another."""
        taken = [at % self.draws < share * self.draws for at in range(len(self.answers))]
        answers = [two if take else one for one, two, take in zip(self.answers, other.answers, taken, strict=True)]
        ranks = [two if take else one for one, two, take in zip(self.ranks, other.ranks, taken, strict=True)]
        return Sample(answers, ranks, self.draws, self.impossible)


class Sampler:
    """Takes samples of the subject's prompts, each with seeds of its own."""

    def __init__(self, subject: Subject, params: SamplingParams, draws: int) -> None:
        self._subject, self._params, self._draws = subject, params, draws

    def ask(self, engine: Engine, number: int, judges: Judges) -> list[Answer]:
        """The outputs of sample number `number`."""
        return ask(engine, self._questions(number), judges=judges, tick=self._subject.tick)

    def rank(self, number: int, answers: Sequence[Answer]) -> Sample:
        """The outputs with the target's probabilities, asked of plain decoding.

        Raises:
            InvalidRequest: an output is missing.
        """
        questions = self._questions(number)
        refuse_failures(questions, answers)
        generator = np.random.default_rng((self._subject.seed, number))
        looks = [_RankOf(generator.random(len(answer.tokens))) for answer in answers]
        judges = [Dictated(answer.tokens, look) for answer, look in zip(answers, looks, strict=True)]

        def dictated(number: int, own: Rule) -> Rule:
            return judges[number]

        asked = [
            replace(question, params=replace(question.params, max_tokens=len(answer.tokens)))
            for question, answer in zip(questions, answers, strict=True)
        ]
        ask(self._subject.plain, asked, judges=dictated, tick=self._subject.tick)
        return Sample(answers, [judge.seen for judge in judges], self._draws, sum(look.impossible for look in looks))

    def _questions(self, number: int) -> list[Question]:
        first = number * self._draws * len(self._subject.cases)
        return self._subject.questions(self._params, draws=self._draws, first_seed=first)


class _RankOf:
    """Looks up the rank of each dictated token in the target's probabilities."""

    def __init__(self, uniforms: NDArray[np.float64]) -> None:
        self.impossible = 0
        self._uniforms = uniforms

    def __call__(self, target: TargetRows, position: int, token: int) -> float:
        probs = target.probs(ROOT).double()
        self.impossible += float(probs[token]) == 0.0
        return rank(probs, token, float(self._uniforms[position]))
