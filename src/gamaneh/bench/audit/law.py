"""Law: sampled speculative output follows the distribution of the target alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gamaneh.bench.audit.answers import exposure
from gamaneh.bench.audit.findings import Check, Exposure, Outcome, Planted, StatisticalTest
from gamaneh.bench.audit.sample import Sample, Sampler
from gamaneh.bench.audit.statistic import mean_p_value, permutation_p_value, uniform_p_value
from gamaneh.bench.audit.subject import Fault, Subject
from gamaneh.core import Rule
from gamaneh.options import SamplingParams

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


def check_law(name: str, subject: Subject, params: SamplingParams, draws: int, length: int) -> Check:
    """Sample every prompt `draws` times and hold the tokens against the target's own probabilities.

    Three samples are taken: speculative, plain as a control, and speculative with a faulty rule. The
    control must pass, the faulty one must fail.

    Args:
        params: with a temperature. End tokens and stop texts are ignored: an output that ends early
            says something about its tokens.
        length: tokens of each output, at least two.
    """
    rule = subject.rule(params)
    coupled = not rule.wants_probs and subject.speculative.gives_probs(subject.speculative.speculation)
    sampler = Sampler(subject, _endless(params, length), draws, coupled=coupled)
    answers, guides = sampler.speculative(0, lambda: rule)
    errors = [answer.error for answer in answers if answer.error]
    if errors:
        reason = f"{len(errors)} of {len(answers)} requests failed: {errors[0]}"
        return Check(name, rule.name, Outcome.FAIL, reason, exposure(answers))
    fault = Fault()
    faulty = sampler.ranked(2, *sampler.speculative(2, lambda: fault.plant(rule)))
    samples = _Samples(sampler.ranked(0, answers, guides), sampler.plain(1), faulty)
    outcome = _compared(name, subject, rule.name, samples, (exposure(answers), fault.kept))
    return _settled(outcome, rule, coupled)


def _settled(check: Check, rule: Rule, coupled: bool) -> Check:
    """What the rule itself says about a check that was not failed."""
    if not rule.exact and check.outcome is Outcome.PASS:
        reason = f"rule {rule.name} is approximate, though these samples do not show it"
        return replace(check, outcome=Outcome.INCONCLUSIVE, reason=reason)
    failed = any(test.failed for test in check.tests)
    if rule.exact and coupled and not failed and check.exposure.drafted and check.planted and check.planted.kept:
        # Under `match` every draw is that of plain decoding with the same seed, drafts or not.
        reason = "nothing departs from the target; what these tests are too blunt for, seeded parity finds"
        return check if check.outcome is Outcome.PASS else replace(check, outcome=Outcome.PASS, reason=reason)
    return check


@dataclass(frozen=True, slots=True)
class _Samples:
    speculative: Sample
    control: Sample
    faulty: Sample


def _compared(name: str, subject: Subject, rule: str, samples: _Samples, seen: tuple[Exposure, int]) -> Check:
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
    return Check(name, rule, outcome, reason, put, tests=(*tests, control), impossible=impossible, planted=planted)


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


def _tests(sample: Sample, control: Sample, seed: int) -> tuple[StatisticalTest, ...]:
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
