"""Fallback: a proposer that fails is left out for a while, and requests go on plain."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_ROUNDS = 16
LONGEST_ROUNDS = 4096


@dataclass(slots=True)
class _Case:
    reason: str
    rounds: int
    left: int


class Quarantine:
    """Counts rounds, doubling the stay at each further failure."""

    def __init__(self) -> None:
        self._cases: dict[str, _Case] = {}
        self.failures = 0

    def report(self, proposer: str, reason: str) -> None:
        """The proposer failed in this round."""
        self.failures += 1
        known = self._cases.get(proposer)
        rounds = FIRST_ROUNDS if known is None else min(known.rounds * 2, LONGEST_ROUNDS)
        self._cases[proposer] = _Case(reason, rounds, rounds)

    def passed(self, proposer: str) -> None:
        """The proposer worked again after its quarantine."""
        if self.allows(proposer):
            self._cases.pop(proposer, None)

    def tick(self) -> None:
        """One round went by."""
        for case in self._cases.values():
            case.left = max(case.left - 1, 0)

    def allows(self, proposer: str) -> bool:
        return proposer not in self._cases or self._cases[proposer].left == 0

    def reason(self, proposer: str) -> str:
        return self._cases[proposer].reason if proposer in self._cases else ""
