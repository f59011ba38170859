"""Law: sampled speculative output follows the distribution of the target alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from gamaneh.bench.audit.answers import exposure, own_rule
from gamaneh.bench.audit.findings import Check, Exposure, Outcome, Planted, StatisticalTest
from gamaneh.bench.audit.sample import Sample, Sampler
from gamaneh.bench.audit.statistic import permutation_p_value, uniform_p_value
from gamaneh.bench.audit.subject import Fault, Subject
from gamaneh.options import SamplingParams

FALSE_ALARMS = 0.001
"""Chance that any of the tests fails although nothing is wrong; shared among them."""
NUM_TESTS = 3
BOUND = FALSE_ALARMS / NUM_TESTS
SHARES = (0.125, 0.25, 0.5, 1.0)
"""Shares of faulty requests that the sensitivity is told for."""


def check_law(name: str, subject: Subject, params: SamplingParams, draws: int, length: int) -> Check:
    """Sample every prompt `draws` times and hold the tokens against the target's own probabilities.

    Three samples are taken: speculative, plain as a control, and speculative with a faulty rule. The
    control must pass, the faulty one must fail.

    Args:
        params: with a temperature. End tokens and stop texts are ignored: an output that ends early
            says something about its tokens.
        length: tokens of each output, at least two.
    """
    rule, sampled = subject.rule(params), Sampler(subject, _endless(params, length), draws)
    answers = sampled.ask(subject.speculative, 0, lambda number, own: rule)
    errors = [answer.error for answer in answers if answer.error]
    if errors:
        reason = f"{len(errors)} of {len(answers)} requests failed: {errors[0]}"
        return Check(name, rule.name, Outcome.FAIL, reason, exposure(answers))
    control = sampled.rank(1, sampled.ask(subject.plain, 1, own_rule))
    fault = Fault(rule)
    faulty = sampled.rank(2, sampled.ask(subject.speculative, 2, fault.judges))
    return _compared(name, subject, rule.name, _Samples(sampled.rank(0, answers), control, faulty), fault.kept)


@dataclass(frozen=True, slots=True)
class _Samples:
    speculative: Sample
    control: Sample
    faulty: Sample


def _compared(name: str, subject: Subject, rule: str, samples: _Samples, kept: int) -> Check:
    seen = exposure(samples.speculative.answers)
    tests = _tests(samples.speculative, samples.control, subject.seed)
    planted = _sensitivity(kept, samples, subject.seed)
    control = StatisticalTest("control: plain decoding against its own probabilities", *_uniform(samples.control))
    impossible = samples.speculative.impossible
    outcome, reason = _judge(seen, tests, control, planted, impossible if subject.speculative.invariant else 0)
    return Check(name, rule, outcome, reason, seen, tests=(*tests, control), impossible=impossible, planted=planted)


def _judge(
    seen: Exposure, tests: Sequence[StatisticalTest], control: StatisticalTest, planted: Planted, impossible: int
) -> tuple[Outcome, str]:
    failed = [test.name for test in tests if test.failed]
    if impossible:
        return Outcome.FAIL, f"{impossible} tokens to which the target gives no probability"
    if failed:
        return Outcome.FAIL, f"the output departs from the target's distribution ({'; '.join(failed)})"
    if control.failed:
        return Outcome.INCONCLUSIVE, "plain decoding failed the same test: the test cannot be relied on here"
    if not seen.drafted:
        return Outcome.INCONCLUSIVE, "the proposer made no draft, so nothing was put to the test"
    if not planted.kept:
        return Outcome.INCONCLUSIVE, "no candidate was refused, so a rule that keeps all of them would not show"
    if not planted.found:
        return Outcome.INCONCLUSIVE, "the planted fault was not found: more samples are needed"
    return Outcome.PASS, (
        f"{seen.tokens} sampled tokens follow the target; a fault in {planted.smallest_share:.1%} of the requests"
        " would have been found"
    )


def _endless(params: SamplingParams, length: int) -> SamplingParams:
    return replace(params, max_tokens=length, min_tokens=0, stop=(), stop_token_ids=(), ignore_eos=True)


def _uniform(sample: Sample, choose: Callable[[Sample], list[float]] = Sample.all_ranks) -> tuple[int, float, float]:
    """Count, p-value and bound of the test that these ranks are uniform."""
    ranks = choose(sample)
    return len(ranks), uniform_p_value(ranks), BOUND


def _tests(sample: Sample, control: Sample, seed: int) -> tuple[StatisticalTest, ...]:
    p_value = permutation_p_value(sample.outputs(), control.outputs(), seed)
    return (
        StatisticalTest("all tokens against the target's probabilities", *_uniform(sample)),
        StatisticalTest("first tokens of rounds with a draft", *_uniform(sample, Sample.guessed_ranks)),
        StatisticalTest("outputs against plain outputs, token by token", len(sample.answers), p_value, BOUND),
    )


def _sensitivity(kept: int, samples: _Samples, seed: int) -> Planted:
    """The smallest share of faulty requests that the tests notice."""
    mixed = {share: samples.speculative.with_share(samples.faulty, share) for share in SHARES}
    noticed = (share for share in SHARES if any(test.failed for test in _tests(mixed[share], samples.control, seed)))
    smallest = next(noticed, None) if kept else None
    return Planted(kept, smallest is not None, smallest)
