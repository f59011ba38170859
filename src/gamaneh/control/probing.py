"""What may be spent on finding out whether drafting pays where it did not before."""

from __future__ import annotations

from dataclasses import dataclass, field

PROBE_SHARE = 0.02
"""Most of the time of plain decoding that probes may take, in the long run."""

PROBE_DEPTH = 2
MOST_SAVED = 4.0
"""Plain rounds that may be saved up; what costs more goes into debt, and waits until that is paid back."""


@dataclass(slots=True)
class ProbeBudget:
    """Seconds saved up for probes, and who was tried when.

    Each round in which something is left untried adds `PROBE_SHARE` of its plain seconds; each probe takes
    what it adds to a round, and afterwards what it took beyond that. So probes never take a larger share than that,
    but for the last one and the first of each proposer, which is not waited for.
    """

    credit: float = 0.0
    limit: float = 0.0
    rounds: int = 0
    tried: dict[str, int] = field(default_factory=dict)

    def earn(self, plain_seconds: float) -> None:
        """One round with something untried goes by."""
        self.rounds += 1
        self.limit = MOST_SAVED * plain_seconds
        self.credit = min(self.credit + PROBE_SHARE * plain_seconds, self.limit)

    def affords(self, proposer: str, seconds: float) -> bool:
        """Whether a probe that adds `seconds` to a round may be made."""
        return proposer not in self.tried or self.credit >= min(seconds, self.limit)

    def spend(self, proposer: str, seconds: float) -> None:
        """A probe of this proposer."""
        self.tried[proposer] = self.rounds
        self.credit -= seconds

    def last_tried(self, proposer: str) -> int:
        """Round of the last probe; -1 without one."""
        return self.tried.get(proposer, -1)
