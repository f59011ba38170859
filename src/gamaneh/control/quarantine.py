"""Fallback: a proposer that fails or is too slow is left out for a while, and requests go on plain."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

FIRST_ROUNDS = 16
LONGEST_ROUNDS = 4096

PROBATION = 32
"""Rounds without failure after a quarantine that clear the record."""


class Fault(StrEnum):
    """How a proposer failed."""

    ERROR = "error"
    """It raised an exception."""
    NONSENSE = "nonsense"
    """Its draft breaks a rule: tokens that do not exist, too many of them, probabilities that are none."""
    MEMORY = "memory"
    """It ran out of memory."""
    SLOW = "slow"
    """It takes more time than it saves."""


@dataclass(slots=True)
class _Case:
    fault: Fault
    reason: str
    rounds: int
    left: int
    passed: int = 0


class Quarantine:
    """Counts rounds, doubling the stay at each further failure until a probation is passed."""

    def __init__(self) -> None:
        self._cases: dict[str, _Case] = {}
        self.counts: Counter[tuple[str, Fault]] = Counter()

    @property
    def failures(self) -> int:
        """Failures of all proposers."""
        return self.counts.total()

    def report(self, proposer: str, reason: str, fault: Fault = Fault.ERROR) -> None:
        """The proposer failed in this round."""
        self.counts[proposer, fault] += 1
        known = self._cases.get(proposer)
        rounds = FIRST_ROUNDS if known is None else min(known.rounds * 2, LONGEST_ROUNDS)
        self._cases[proposer] = _Case(fault, reason, rounds, rounds)

    def passed(self, proposer: str) -> None:
        """The proposer made drafts without fault in this round."""
        case = self._cases.get(proposer)
        if case is None or case.left > 0:
            return
        case.passed += 1
        if case.passed >= PROBATION:
            del self._cases[proposer]

    def tick(self) -> None:
        """One round went by."""
        for case in self._cases.values():
            case.left = max(case.left - 1, 0)

    def allows(self, proposer: str, *, slow: bool = False) -> bool:
        """Whether the proposer may be used; with `slow` also one whose only fault is that it takes time."""
        return self.rounds_left(proposer) == 0 or (slow and self.fault(proposer) is Fault.SLOW)

    def rounds_left(self, proposer: str) -> int:
        """Rounds until the proposer is tried again; 0 when it may be used."""
        return self._cases[proposer].left if proposer in self._cases else 0

    def on_probation(self, proposer: str) -> bool:
        """Whether the proposer is used again, and its last failure is not forgotten yet."""
        return proposer in self._cases and self.allows(proposer)

    def fault(self, proposer: str) -> Fault | None:
        """Of which kind the proposer's last failure was; None with a clear record."""
        return self._cases[proposer].fault if proposer in self._cases else None

    def reason(self, proposer: str) -> str:
        """What the proposer's last failure was; empty with a clear record."""
        return self._cases[proposer].reason if proposer in self._cases else ""
