"""Counts of drafts, from requests or from a server's counters. Whoever says less leaves the rest None."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields

from gamaneh.metrics.collector import SpeculationStats


@dataclass(frozen=True, slots=True)
class Counts:
    """What was drafted and what became of it; None where it is not known.

    Args:
        rounds: verifications of one request; drafts: those with a draft.
        accepted_at: accepted_at[i] counts drafts whose first i + 1 candidates were all accepted.
        offered_at: offered_at[i] counts drafts with at least i + 1 candidates on their longest path.
    """

    accepted: int
    rounds: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    emitted: int | None = None
    accepted_at: Counter[int] = field(default_factory=Counter)
    offered_at: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, stats: Iterable[SpeculationStats]) -> Counts:
        """The sum over proposers."""
        return total(
            cls(
                accepted=each.accepted,
                rounds=each.rounds,
                drafts=each.drafts,
                drafted=each.drafted,
                emitted=each.emitted,
                accepted_at=each.accepted_at,
                offered_at=each.offered_at,
            )
            for each in stats
        )

    @property
    def acceptance_rate(self) -> float | None:
        """accepted / drafted."""
        return ratio(self.accepted, self.drafted)

    @property
    def tokens_per_round(self) -> float | None:
        """emitted / rounds."""
        return ratio(self.emitted, self.rounds)

    @property
    def survival(self) -> tuple[float, ...]:
        """s_i: share of drafts with at least i candidates whose first i were all accepted."""
        return tuple(self.accepted_at[at] / offered for at, offered in enumerate(self.offered))

    @property
    def offered(self) -> tuple[int, ...]:
        """Denominators of `survival`."""
        return tuple(self.offered_at[at] for at in range(max(self.offered_at, default=-1) + 1))


def ratio(part: float | None, whole: float | None) -> float | None:
    """part / whole; None where one is not known, or the whole is 0."""
    return None if part is None or not whole else part / whole


def total(counts: Iterable[Counts]) -> Counts:
    """The sum; what one of them does not know, the sum does not either."""
    known = list(counts)
    if not known:
        return Counts(0, 0, 0, 0, 0)
    values = {entry.name: [getattr(each, entry.name) for each in known] for entry in fields(Counts)}
    return Counts(
        accepted=sum(values["accepted"]),
        accepted_at=_merged(values["accepted_at"]),
        offered_at=_merged(values["offered_at"]),
        **{name: _sum(values[name]) for name in ("rounds", "drafts", "drafted", "emitted")},
    )


def _sum(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _merged(counters: Iterable[Counter[int]]) -> Counter[int]:
    merged: Counter[int] = Counter()
    for counter in counters:
        merged.update(counter)
    return merged
