"""From how sure a drafter is to how often its candidates are accepted, learned while they are."""

from __future__ import annotations

from dataclasses import dataclass

BINS = 10
"""Classes of confidence, of equal width."""

PRIOR = 8.0
"""Candidates that the drafter's own confidence counts for, before any was seen."""

MEMORY = 2000.0
"""Candidates that a class remembers; behind that, older ones count half."""


@dataclass(slots=True)
class _Class:
    seen: float = 0.0
    accepted: float = 0.0
    confidence: float = 0.0


@dataclass(frozen=True, slots=True)
class Reliability:
    """One line of a reliability table.

    Args:
        kind: what candidates are told apart by, beside confidence.
        confidence: of the drafter, on average.
        accepted: share that was accepted.
        seen: candidates that the line is made of.
    """

    kind: tuple[int, bool]
    confidence: float
    accepted: float
    seen: float


class AcceptanceTable:
    """The chance of acceptance by position, by whether tokens are drawn, and by confidence.

    Each class is the share that was accepted, shrunk towards the drafter's own confidence.
    """

    def __init__(self) -> None:
        self._classes: dict[tuple[int, bool], list[_Class]] = {}

    def chance(self, position: int, drawn: bool, confidence: float) -> float:
        """The chance that a candidate is accepted whose predecessors all were.

        Args:
            position: in the draft, from 0.
            drawn: the request samples.
            confidence: share of the drafter's likeliest token, from 0 to 1.
        """
        found = self._class(position, drawn, confidence)
        return (found.accepted + PRIOR * confidence) / (found.seen + PRIOR)

    def learn(self, position: int, drawn: bool, confidence: float, accepted: bool) -> None:
        """Take in what became of one candidate whose predecessors were all accepted."""
        found = self._class(position, drawn, confidence)
        if found.seen >= MEMORY:
            found.seen, found.accepted, found.confidence = (
                found.seen / 2,
                found.accepted / 2,
                found.confidence / 2,
            )
        found.seen += 1
        found.accepted += accepted
        found.confidence += confidence

    def reliability(self) -> list[Reliability]:
        """What was seen so far, by kind and confidence."""
        return [
            Reliability(kind, one.confidence / one.seen, one.accepted / one.seen, one.seen)
            for kind, classes in sorted(self._classes.items())
            for one in classes
            if one.seen
        ]

    def _class(self, position: int, drawn: bool, confidence: float) -> _Class:
        classes = self._classes.setdefault((position, drawn), [_Class() for _ in range(BINS)])
        return classes[min(int(confidence * BINS), BINS - 1)]
