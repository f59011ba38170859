"""Law: sampled speculative output follows the distribution of the target alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from gamaneh.bench.audit.findings import AuditCheck, AuditOutcome, Exposure, Planted, StatisticalTest
from gamaneh.bench.audit.statistic import mean_p_value, permutation_p_value, rank, uniform_p_value
from gamaneh.bench.audit.subject import (
    NO_GUIDES,
    Answer,
    Asked,
    Dictated,
    Guide,
    Noting,
    PlantedFault,
    Subject,
    ask,
    exposure,
    refuse_failures,
)
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
class Drawn:
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

    def with_share(self, other: Drawn, share: float) -> Drawn:
        """This sample with that share of each prompt's outputs taken from another."""
        pairs = zip(self.outputs, other.outputs, strict=True)
        mixed = [two if at % self.draws < share * self.draws else one for at, (one, two) in enumerate(pairs)]
        return replace(self, outputs=mixed)


class SampleTaker:
    """Takes samples of the subject's prompts, each with seeds of its own."""

    def __init__(self, subject: Subject, params: SamplingParams, draws: int, *, coupled: bool) -> None:
        self._subject, self._params, self._draws, self._coupled = subject, params, draws, coupled

    def speculative(self, number: int, rule: Callable[[], Rule]) -> tuple[list[Answer], list[Mapping[int, Guide]]]:
        """The answers of sample number `number` and the guides of each."""
        questions = self._questions(number)
        notes = [Noting(rule(), coupled=self._coupled) for _ in questions]
        answers = ask(self._subject.speculative, questions, judges=lambda at, own: notes[at], tick=self._subject.tick)
        return answers, [note.guides for note in notes]

    def plain(self, number: int) -> Drawn:
        """Drawn number `number` of plain decoding."""
        answers = ask(self._subject.plain, self._questions(number), tick=self._subject.tick)
        return self.ranked(number, answers, [NO_GUIDES] * len(answers))

    def ranked(self, number: int, answers: Sequence[Answer], guides: Sequence[Mapping[int, Guide]]) -> Drawn:
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
        return Drawn(outputs, self._draws, sum(look.impossible for look in looks))

    def _questions(self, number: int) -> list[Asked]:
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


FALSE_ALARMS = 0.001
"""Chance that any of the tests fails although nothing is wrong; shared among them."""
NUM_TESTS = 3
BOUND = FALSE_ALARMS / NUM_TESTS
ALL_TOKENS = "all tokens against the target's probabilities"
FIRST_TOKENS = "first tokens of drafts, what the draft favours against what it does not"
OUTPUTS = "outputs against plain outputs, token by token"
CONTROL = "control: plain decoding against its own probabilities"

SHARES = (0.125, 0.25, 0.5, 1.0)
"""Shares of faulty requests that the sensitivity is told for."""


def check_law(name: str, subject: Subject, params: SamplingParams, draws: int, length: int) -> AuditCheck:
    """Drawn every prompt `draws` times and hold the tokens against the target's own probabilities.

    Three samples are taken: speculative, plain as a control, and speculative with a faulty rule. The
    control must pass, the faulty one must fail.

    Args:
        params: with a temperature. End tokens and stop texts are ignored: an output that ends early
            says something about its tokens.
        length: tokens of each output, at least two.
    """
    rule = subject.rule(params)
    coupled = not rule.wants_probs and subject.speculative.gives_probs(subject.speculative.speculation)
    sampler = SampleTaker(subject, _endless(params, length), draws, coupled=coupled)
    answers, guides = sampler.speculative(0, lambda: rule)
    errors = [answer.error for answer in answers if answer.error]
    if errors:
        reason = f"{len(errors)} of {len(answers)} requests failed: {errors[0]}"
        return AuditCheck(name, rule.name, AuditOutcome.FAIL, reason, exposure(answers))
    fault = PlantedFault()
    faulty = sampler.ranked(2, *sampler.speculative(2, lambda: fault.plant(rule)))
    samples = _Samples(sampler.ranked(0, answers, guides), sampler.plain(1), faulty)
    outcome = _compared(name, subject, rule.name, samples, (exposure(answers), fault.kept))
    return _settled(outcome, rule, coupled)


def _settled(check: AuditCheck, rule: Rule, coupled: bool) -> AuditCheck:
    """What the rule itself says about a check that was not failed."""
    if not rule.exact and check.outcome is AuditOutcome.PASS:
        reason = f"rule {rule.name} is approximate, though these samples do not show it"
        return replace(check, outcome=AuditOutcome.INCONCLUSIVE, reason=reason)
    failed = any(test.failed for test in check.tests)
    if rule.exact and coupled and not failed and check.exposure.drafted and check.planted and check.planted.kept:
        # Under `match` every draw is that of plain decoding with the same seed, drafts or not.
        reason = "nothing departs from the target; what these tests are too blunt for, seeded parity finds"
        return check if check.outcome is AuditOutcome.PASS else replace(check, outcome=AuditOutcome.PASS, reason=reason)
    return check


@dataclass(frozen=True, slots=True)
class _Samples:
    speculative: Drawn
    control: Drawn
    faulty: Drawn


def _compared(name: str, subject: Subject, rule: str, samples: _Samples, seen: tuple[Exposure, int]) -> AuditCheck:
    """
    Args:
        seen: what was put to the test, and candidates that the planted fault kept.
    """
    put, kept = seen
    tests = _tests(samples.speculative, samples.control, subject.seed)
    planted = _sensitivity(kept, samples, subject.seed)
    ranks = samples.control.all_ranks()
    control = StatisticalTest(CONTROL, len(ranks), uniform_p_value(ranks), BOUND)
    impossible = samples.speculative.impossible
    outcome, reason = _judge(put, tests, control, planted, impossible if subject.speculative.invariant else 0)
    return AuditCheck(name, rule, outcome, reason, put, tests=(*tests, control), impossible=impossible, planted=planted)


def _judge(
    seen: Exposure, tests: Sequence[StatisticalTest], control: StatisticalTest, planted: Planted, impossible: int
) -> tuple[AuditOutcome, str]:
    failed = [test.name for test in tests if test.failed]
    if impossible:
        return AuditOutcome.FAIL, f"{impossible} tokens to which the target gives no probability"
    if failed:
        return AuditOutcome.FAIL, f"the output departs from the target's distribution ({'; '.join(failed)})"
    if control.failed:
        return AuditOutcome.INCONCLUSIVE, "plain decoding failed the same test: the test cannot be relied on here"
    if not seen.drafted:
        return AuditOutcome.INCONCLUSIVE, "the proposer made no draft, so nothing was put to the test"
    if not planted.kept:
        return AuditOutcome.INCONCLUSIVE, "no candidate was refused, so a rule that keeps all of them would not show"
    if not planted.found:
        return AuditOutcome.INCONCLUSIVE, "the planted fault was not found: more samples are needed"
    return AuditOutcome.PASS, (
        f"{seen.tokens} sampled tokens follow the target; a fault in {planted.smallest_share:.1%} of the requests"
        " would have been found"
    )


def _endless(params: SamplingParams, length: int) -> SamplingParams:
    return replace(params, max_tokens=length, min_tokens=0, stop=(), stop_token_ids=(), ignore_eos=True)


def _tests(sample: Drawn, control: Drawn, seed: int) -> tuple[StatisticalTest, ...]:
    ranks, guided = sample.all_ranks(), sample.guided_ranks()
    p_value = permutation_p_value(sample.token_table(), control.token_table(), seed)
    return (
        StatisticalTest(ALL_TOKENS, len(ranks), uniform_p_value(ranks), BOUND),
        StatisticalTest(FIRST_TOKENS, len(guided), mean_p_value(guided), BOUND),
        StatisticalTest(OUTPUTS, len(sample.outputs), p_value, BOUND),
    )


def _sensitivity(kept: int, samples: _Samples, seed: int) -> Planted:
    """The smallest share of faulty requests that the tests notice."""
    mixed = {share: samples.speculative.with_share(samples.faulty, share) for share in SHARES}
    noticed = (share for share in SHARES if any(test.failed for test in _tests(mixed[share], samples.control, seed)))
    smallest = next(noticed, None) if kept else None
    return Planted(kept, smallest is not None, smallest)
