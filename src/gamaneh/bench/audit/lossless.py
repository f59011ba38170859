"""The whole audit: greedy parity, seeded parity, and the law of sampled output."""

from __future__ import annotations

from dataclasses import dataclass, replace

import gamaneh
from gamaneh.bench.audit.findings import Audit, AuditCheck, AuditOutcome, overall
from gamaneh.bench.audit.law import check_law
from gamaneh.bench.audit.parity import check_parity
from gamaneh.bench.audit.subject import Subject
from gamaneh.bench.machine import describe_machine
from gamaneh.bench.result import Setup
from gamaneh.errors import InvalidOption, InvalidRequest
from gamaneh.options import SamplingParams

GREEDY, SEEDED, LAW = "greedy parity", "seeded parity", "law of sampled output"
_ANSWERS_PER_PARITY_PROMPT = 4
_ANSWERS_PER_SAMPLE = 6


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


def audit(subject: Subject, sampling: SamplingParams, setup: Setup, effort: AuditEffort) -> Audit:
    """AuditCheck that a proposer changes nothing of what the target writes under these settings.

    Args:
        sampling: with temperature 0 only greedy parity is checked. Its seed is not read: every prompt
            and sample gets one counted up from that of the subject.

    Raises:
        InvalidRequest: there is no prompt, or plain decoding cannot answer one.
    """
    if not subject.cases:
        raise InvalidRequest("prompts", "must be at least one", 0)
    sampling = replace(sampling, seed=None)
    checks = (
        check_parity(GREEDY, subject, replace(sampling, temperature=0.0)),
        _seeded(subject, sampling),
        _law(subject, sampling, effort),
    )
    return Audit(overall(checks), checks, setup, describe_machine(), gamaneh.__version__, subject.seed)


def _seeded(subject: Subject, sampling: SamplingParams) -> AuditCheck:
    if sampling.greedy:
        return _skipped(SEEDED, "", "temperature 0 leaves nothing to sample")
    rule = subject.rule(replace(sampling, seed=0))
    if rule.name != "match":
        return _skipped(SEEDED, rule.name, f"rule {rule.name} does not promise the tokens of plain decoding")
    return check_parity(SEEDED, subject, sampling)


def _law(subject: Subject, sampling: SamplingParams, effort: AuditEffort) -> AuditCheck:
    if sampling.greedy:
        return _skipped(LAW, "", "temperature 0 leaves nothing to sample")
    return check_law(LAW, subject, sampling, effort.draws, effort.length)


def _skipped(name: str, rule: str, reason: str) -> AuditCheck:
    return AuditCheck(name, rule, AuditOutcome.SKIPPED, reason)
