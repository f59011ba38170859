"""What an audit found, as data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from gamaneh.bench.result import Machine, Setup


class AuditOutcome(StrEnum):
    """How a check ended, and how all of them did."""

    PASS = "pass"
    FAIL = "fail"
    INCONCLUSIVE = "inconclusive"
    """Nothing wrong was seen, but a planted fault would not have been seen either."""
    SKIPPED = "skipped"
    """Not promised by the rule, or not asked for."""


@dataclass(frozen=True, slots=True)
class Exposure:
    """How much there was to go wrong.

    Args:
        outputs, tokens: that were checked.
        drafted, accepted: candidates in them; `rounds` with a draft and without.
    """

    outputs: int = 0
    tokens: int = 0
    rounds: int = 0
    drafted: int = 0
    accepted: int = 0


@dataclass(frozen=True, slots=True)
class Departure:
    """Where an output parts from plain decoding.

    Args:
        way: how the prompts were answered, `alone` or `together`.
        position: first output position that differs.
        plain_token, speculative_token: None where that output had ended.
        margin: by how much plain decoding's choice won there, in logits, noise included; None when
            there was nothing else to choose, or the request failed.
        tie: the margin is within what rounding changes on this machine.
        error: why the request failed; None when it did not.
    """

    prompt: str
    way: str
    position: int
    plain_token: int | None
    speculative_token: int | None
    margin: float | None
    tie: bool
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StatisticalTest:
    """One statistical test.

    Args:
        name: what was tested.
        count: values that went into it.
        p_value: chance of a result at least this odd if nothing is wrong.
        bound: the test fails below it.
    """

    name: str
    count: int
    p_value: float
    bound: float

    @property
    def failed(self) -> bool:
        return self.p_value < self.bound


@dataclass(frozen=True, slots=True)
class Planted:
    """The check of the check: the same run with a rule that keeps candidates which are to be refused.

    Args:
        kept: candidates that it kept wrongly.
        found: the check noticed.
        smallest_share: the smallest share of faulty requests, of those that were tried, which the
            check notices; None where the question makes no sense, or nothing was noticed.
    """

    kept: int
    found: bool
    smallest_share: float | None = None


@dataclass(frozen=True, slots=True)
class AuditCheck:
    """One question and its answer, with the evidence.

    Args:
        rule: the rule that judged the drafts.
        reason: the outcome in a sentence.
        rounding: largest change of a margin when only the batch changes; None when not measured.
        impossible: sampled tokens to which the target gives no probability.
    """

    name: str
    rule: str
    outcome: AuditOutcome
    reason: str
    exposure: Exposure = Exposure()
    differences: tuple[Departure, ...] = ()
    rounding: float | None = None
    tests: tuple[StatisticalTest, ...] = ()
    impossible: int = 0
    planted: Planted | None = None


@dataclass(frozen=True, slots=True)
class Audit:
    """All checks of one target, proposer and sampling; `stopped` says why not all of them ended."""

    verdict: AuditOutcome
    checks: tuple[AuditCheck, ...]
    setup: Setup
    machine: Machine
    version: str
    seed: int
    stopped: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)


def overall(checks: Sequence[AuditCheck]) -> AuditOutcome:
    """Fail if anything failed, pass if something passed and nothing is open."""
    outcomes = {check.outcome for check in checks}
    if AuditOutcome.FAIL in outcomes:
        return AuditOutcome.FAIL
    settled = AuditOutcome.PASS in outcomes and AuditOutcome.INCONCLUSIVE not in outcomes
    return AuditOutcome.PASS if settled else AuditOutcome.INCONCLUSIVE
