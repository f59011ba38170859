"""Samples of outputs, with where their tokens stand in the target's own probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gamaneh.bench.audit.answers import Answer, Question, ask, refuse_failures
from gamaneh.bench.audit.guides import NO_GUIDES, Guide, Noting
from gamaneh.bench.audit.judges import Dictated
from gamaneh.bench.audit.statistic import rank
from gamaneh.bench.audit.subject import Subject
from gamaneh.core import ROOT, Rule, TargetRows
from gamaneh.options import SamplingParams

FIRST = 1
"""The token at position 0 comes from reading the prompt: nothing was guessed there."""


@dataclass(frozen=True, slots=True)
class Output:
    """One sampled output.

    Args:
        ranks: of each token, among the target's probabilities.
        guided: the ranks of first tokens of rounds with a draft when what the draft favours comes first.
    """

    tokens: Sequence[int]
    ranks: Sequence[float]
    guided: Sequence[float]


@dataclass(frozen=True, slots=True)
class Sample:
    """Outputs of one system, `draws` of each prompt in a row.

    Args:
        impossible: tokens to which the target gives no probability.
    """

    outputs: Sequence[Output]
    draws: int
    impossible: int = 0

    def all_ranks(self) -> list[float]:
        """Those of all tokens that could be guessed."""
        return [value for output in self.outputs for value in output.ranks[FIRST:]]

    def guided_ranks(self) -> list[float]:
        """Those of the first tokens of rounds with a draft, where a wrong rule shows most.

        Whether a round begins somewhere, and with which draft distribution, depends on what came before.
        Given that, the first token that it emits follows the target under any exact rule. Later tokens of a
        round do not have that property: that they belong to the same round says something about them.
        """
        return [value for output in self.outputs for value in output.guided]

    def token_table(self) -> list[NDArray[np.int64]]:
        """For each prompt `[draws, num_positions]` token ids, without the first position; -1 behind a short output."""
        length = max(len(output.tokens) for output in self.outputs)
        padded = np.full((len(self.outputs), length), -1, dtype=np.int64)
        for row, output in zip(padded, self.outputs, strict=True):
            row[: len(output.tokens)] = output.tokens
        return list(padded[:, FIRST:].reshape(-1, self.draws, length - FIRST))

    def with_share(self, other: Sample, share: float) -> Sample:
        """This sample with that share of each prompt's outputs taken from another."""
        pairs = zip(self.outputs, other.outputs, strict=True)
        mixed = [two if at % self.draws < share * self.draws else one for at, (one, two) in enumerate(pairs)]
        return replace(self, outputs=mixed)


class Sampler:
    """Takes samples of the subject's prompts, each with seeds of its own."""

    def __init__(self, subject: Subject, params: SamplingParams, draws: int, *, coupled: bool) -> None:
        self._subject, self._params, self._draws, self._coupled = subject, params, draws, coupled

    def speculative(self, number: int, rule: Callable[[], Rule]) -> tuple[list[Answer], list[Mapping[int, Guide]]]:
        """The answers of sample number `number` and the guides of each."""
        questions = self._questions(number)
        notes = [Noting(rule(), coupled=self._coupled) for _ in questions]
        answers = ask(self._subject.speculative, questions, judges=lambda at, own: notes[at], tick=self._subject.tick)
        return answers, [note.guides for note in notes]

    def plain(self, number: int) -> Sample:
        """Sample number `number` of plain decoding."""
        answers = ask(self._subject.plain, self._questions(number), tick=self._subject.tick)
        return self.ranked(number, answers, [NO_GUIDES] * len(answers))

    def ranked(self, number: int, answers: Sequence[Answer], guides: Sequence[Mapping[int, Guide]]) -> Sample:
        """The answers with the target's probabilities, asked of plain decoding.

        Raises:
            InvalidRequest: an answer is missing.
        """
        questions = self._questions(number)
        refuse_failures(questions, answers)
        generator = np.random.default_rng((self._subject.seed, number))
        looks = [
            _RankOf(generator.random(len(answer.tokens)), own) for answer, own in zip(answers, guides, strict=True)
        ]
        judges = [Dictated(answer.tokens, look) for answer, look in zip(answers, looks, strict=True)]
        asked = [
            replace(question, params=replace(question.params, max_tokens=len(answer.tokens)))
            for question, answer in zip(questions, answers, strict=True)
        ]
        ask(self._subject.plain, asked, judges=lambda at, own: judges[at], tick=self._subject.tick)
        parts = zip(answers, judges, looks, strict=True)
        outputs = [Output(answer.tokens, judge.seen, look.guided) for answer, judge, look in parts]
        return Sample(outputs, self._draws, sum(look.impossible for look in looks))

    def _questions(self, number: int) -> list[Question]:
        first = number * self._draws * len(self._subject.cases)
        return self._subject.questions(self._params, draws=self._draws, first_seed=first)


class _RankOf:
    """Looks up the rank of each dictated token in the target's probabilities."""

    def __init__(self, uniforms: NDArray[np.float64], guides: Mapping[int, Guide]) -> None:
        self.impossible = 0
        self.guided: list[float] = []
        self._uniforms, self._guides = uniforms, guides

    def __call__(self, target: TargetRows, position: int, token: int) -> float:
        probs, uniform = target.probs(ROOT).double(), float(self._uniforms[position])
        self.impossible += float(probs[token]) == 0.0
        if position in self._guides:
            self.guided.append(rank(probs, self._guides[position].favour(probs), token, uniform))
        return rank(probs, probs, token, uniform)
