"""The whole audit: greedy parity, seeded parity, and the law of sampled output."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import gamaneh
from gamaneh.bench.audit.findings import Audit, AuditCheck, AuditOutcome, overall
from gamaneh.bench.audit.law import check_law
from gamaneh.bench.audit.parity import check_parity
from gamaneh.bench.audit.subject import Subject, ask
from gamaneh.bench.machine import describe_machine
from gamaneh.bench.result import Setup
from gamaneh.bench.time_limit import INTERRUPTED, OUT_OF_TIME, TimeLimit
from gamaneh.errors import InvalidOption, InvalidRequest
from gamaneh.options import SamplingParams

GREEDY, SEEDED, LAW = "greedy parity", "seeded parity", "law of sampled output"
_ANSWERS_PER_PARITY_PROMPT = 4
_ANSWERS_PER_SAMPLE = 6

_SPARE = 0.9
"""Share of the time that is left which the samples are planned to take."""


class _TimeUp(Exception):
    """The limit was reached between two answers."""


@dataclass(frozen=True, slots=True)
class AuditEffort:
    """How much is asked.

    Args:
        draws: samples of each prompt, at least two.
        length: tokens of each sample, at least two.
    """

    draws: int = 64
    length: int = 8

    def __post_init__(self) -> None:
        for name, value in (("draws", self.draws), ("length", self.length)):
            if value < 2:
                raise InvalidOption(name, "must be at least 2", value)

    def answers(self, cases: int, sampled: bool) -> int:
        """Answers that an audit of so many prompts takes, at most."""
        parity = _ANSWERS_PER_PARITY_PROMPT * (2 if sampled else 1)
        return cases * (parity + (_ANSWERS_PER_SAMPLE * self.draws if sampled else 0))


def audit(
    subject: Subject, sampling: SamplingParams, setup: Setup, effort: AuditEffort, limit: TimeLimit | None = None
) -> Audit:
    """Check that a proposer changes nothing of what the target writes under these settings.

    An interrupt, or the end of the time, ends the check that runs and leaves out those behind it: they are
    inconclusive. Fewer samples are drawn where the time would not suffice for all.

    Args:
        sampling: with temperature 0 only greedy parity is checked. Its seed is not read: every prompt
            and sample gets one counted up from that of the subject.
        limit: of the whole run; None sets none.

    Raises:
        KeyboardInterrupt: before the first check ended.
        InvalidRequest: there is no prompt, or plain decoding cannot answer one.
    """
    if not subject.cases:
        raise InvalidRequest("prompts", "must be at least one", 0)
    sampling = replace(sampling, seed=None)
    limit = limit or TimeLimit()
    timed = replace(subject, tick=_timed(subject.tick, limit))
    makers: dict[str, Callable[[], AuditCheck]] = {
        GREEDY: lambda: check_parity(GREEDY, timed, replace(sampling, temperature=0.0)),
        SEEDED: lambda: _seeded(timed, sampling),
        LAW: lambda: _law(timed, sampling, effort, limit),
    }
    checks: list[AuditCheck] = []
    stopped: str | None = None
    for name, make in makers.items():
        try:
            found = make() if stopped is None else _unfinished(name, stopped)
        except _TimeUp:
            stopped = OUT_OF_TIME
            found = _unfinished(name, stopped)
        except KeyboardInterrupt:
            if not checks:
                raise
            stopped = INTERRUPTED
            found = _unfinished(name, stopped)
        checks.append(found)
    return Audit(
        overall(checks), tuple(checks), setup, describe_machine(), gamaneh.__version__, subject.seed, stopped=stopped
    )


def _timed(tick: Callable[[], None], limit: TimeLimit) -> Callable[[], None]:
    def after_answer() -> None:
        tick()
        if limit.over:
            raise _TimeUp

    return after_answer


def _unfinished(name: str, stopped: str) -> AuditCheck:
    return AuditCheck(name, "", AuditOutcome.INCONCLUSIVE, f"not finished: {stopped}")


def _seeded(subject: Subject, sampling: SamplingParams) -> AuditCheck:
    if sampling.greedy:
        return _skipped(SEEDED, "", "temperature 0 leaves nothing to sample")
    rule = subject.rule(replace(sampling, seed=0))
    if rule.name != "match":
        return _skipped(SEEDED, rule.name, f"rule {rule.name} does not promise the tokens of plain decoding")
    return check_parity(SEEDED, subject, sampling)


def _law(subject: Subject, sampling: SamplingParams, effort: AuditEffort, limit: TimeLimit) -> AuditCheck:
    if sampling.greedy:
        return _skipped(LAW, "", "temperature 0 leaves nothing to sample")
    return check_law(LAW, subject, sampling, _affordable(subject, sampling, effort, limit), effort.length)


def _affordable(subject: Subject, sampling: SamplingParams, effort: AuditEffort, limit: TimeLimit) -> int:
    """Return how many draws of each prompt the time suffices for, as two of each tell, and at most those asked for."""
    left = limit.left
    if left == float("inf"):
        return effort.draws
    short = replace(sampling, max_tokens=effort.length, min_tokens=0, ignore_eos=True)
    ask(subject.plain, subject.questions(short, draws=2))
    seconds = (left - limit.left) / 2
    return max(min(effort.draws, int(_SPARE * limit.left / (_ANSWERS_PER_SAMPLE * max(seconds, 1e-9)))), 2)


def _skipped(name: str, rule: str, reason: str) -> AuditCheck:
    return AuditCheck(name, rule, AuditOutcome.SKIPPED, reason)
