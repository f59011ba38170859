"""What became of drafts, position by position: one recording at the largest draft length answers every smaller one.

A candidate's fate depends on the text before it and hardly on where its draft began: a draft model that
continues an accepted draft says what it said in it. So the rounds of a recording tell, for each output
position, whether the candidate there was accepted (hit), refused (miss) or not offered (none), and a walk
over these fates gives the rounds of any draft length up to the recorded one. Only the token after a fully
accepted draft has no known fate; it is drawn from what was recorded where rounds began.
"""

from __future__ import annotations

import random
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, auto

UNLIMITED = 1 << 20
"""Candidates behind a refused one, where the draft was as long as was allowed."""


class Fate(Enum):
    """What becomes of the candidate at one output position."""

    HIT = auto()
    MISS = auto()
    NONE = auto()


@dataclass(frozen=True, slots=True)
class Round:
    """One round of one request.

    Args:
        depth: candidates on the draft's longest path.
        rows: candidates that were verified, those of other branches included.
    """

    depth: int
    rows: int
    accepted: int
    emitted: int


PLAIN_ROUND = Round(0, 0, 0, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """The rounds of one answer; its first token, which comes from reading the prompt, has none.

    Args:
        largest: draft length that was allowed.
        prefill_seconds: from the request to the first token.
    """

    id: str
    category: str
    language: str
    prompt_tokens: int
    largest: int
    rounds: tuple[Round, ...]
    prefill_seconds: float = 0.0

    @property
    def tokens(self) -> int:
        """Emitted by the rounds."""
        return sum(round_.emitted for round_ in self.rounds)


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts over the rounds of some traces.

    Args:
        reached, accepted: element i counts drafts with at least i + 1 candidates on their longest path, and
            those whose first i + 1 were all accepted.
    """

    rounds: int
    drafts: int
    drafted: int
    emitted: int
    reached: tuple[int, ...]
    accepted: tuple[int, ...]

    @property
    def acceptance_rate(self) -> float:
        """accepted / drafted; 0 without drafts."""
        return sum(self.accepted) / self.drafted if self.drafted else 0.0

    @property
    def tokens_per_round(self) -> float:
        """emitted / rounds; 0 without rounds."""
        return self.emitted / self.rounds if self.rounds else 0.0

    @property
    def survival(self) -> tuple[float, ...]:
        """s_i: share of drafts with at least i candidates whose first i were all accepted."""
        return tuple(kept / offered for kept, offered in zip(self.accepted, self.reached, strict=True))


def tally(rounds: Sequence[Round]) -> Tally:
    """Sums over rounds."""
    reached = Counter(at for round_ in rounds for at in range(round_.depth))
    accepted = Counter(at for round_ in rounds for at in range(round_.accepted))
    return Tally(
        rounds=len(rounds),
        drafts=sum(round_.depth > 0 for round_ in rounds),
        drafted=sum(round_.rows for round_ in rounds),
        emitted=sum(round_.emitted for round_ in rounds),
        reached=tuple(reached[at] for at in range(len(reached))),
        accepted=tuple(accepted[at] for at in range(len(reached))),
    )


class Walker:
    """Rounds at any draft length, from traces of one proposer at the largest one."""

    def __init__(self, traces: Sequence[Trace]) -> None:
        rounds = [round_ for trace in traces for round_ in trace.rounds]
        self._fresh = Counter(map(_fate_of_first, rounds))
        self._width = _nodes_per_level(rounds)
        self._fates = {trace.id: self._read(trace) for trace in traces}
        self._walks: dict[tuple[str, int], tuple[Round, ...]] = {}

    def walk(self, trace: Trace, k: int) -> tuple[Round, ...]:
        """The rounds of this answer with drafts of at most `k` candidates; 0 is plain decoding."""
        if (trace.id, k) not in self._walks:
            self._walks[trace.id, k] = tuple(self._rounds(self._fates[trace.id], k))
        return self._walks[trace.id, k]

    def _rounds(self, positions: _Positions, k: int) -> list[Round]:
        rounds: list[Round] = []
        at, end = 0, len(positions.fates)
        while at < end:
            # As the engine does: a draft longer than what may still be emitted would be wasted.
            depth, accepted = positions.draft(at, min(k, end - at - 1))
            rounds.append(Round(depth, round(depth * self._width), accepted, accepted + 1))
            at += accepted + 1
        return rounds

    def _read(self, trace: Trace) -> _Positions:
        # Seeded by the name: the same recording gives the same prediction.
        draws = random.Random(zlib.crc32(trace.id.encode()))
        fates: list[Fate] = []
        beyond: dict[int, int] = {}
        for round_ in trace.rounds:
            accepted = min(round_.accepted, round_.emitted)
            fates += [Fate.HIT] * accepted
            if round_.emitted == accepted:
                continue
            fates.append(_fate_of_last(round_, accepted) or self._drawn(draws))
            refused = round_.depth > accepted
            capped = not refused or round_.depth >= trace.largest
            beyond[len(fates) - 1] = UNLIMITED if capped else round_.depth - accepted - 1
        return _Positions(fates, beyond)

    def _drawn(self, draws: random.Random) -> Fate:
        fates = list(self._fresh)
        return draws.choices(fates, [self._fresh[fate] for fate in fates])[0]


@dataclass(frozen=True, slots=True)
class _Positions:
    """The fate of a candidate at each position, and how many more a draft has behind a refused one."""

    fates: Sequence[Fate]
    beyond: dict[int, int]

    def draft(self, at: int, longest: int) -> tuple[int, int]:
        """Depth and accepted candidates of a draft that begins here."""
        accepted = 0
        while accepted < longest and self.fates[at + accepted] is Fate.HIT:
            accepted += 1
        if accepted == longest or self.fates[at + accepted] is Fate.NONE:
            return accepted, accepted
        return min(longest, accepted + 1 + self.beyond[at + accepted]), accepted


def _fate_of_first(round_: Round) -> Fate:
    if round_.depth == 0:
        return Fate.NONE
    return Fate.HIT if round_.accepted else Fate.MISS


def _fate_of_last(round_: Round, accepted: int) -> Fate | None:
    """Of the token that the target added; None after a fully accepted draft, where nothing was asked."""
    if round_.depth == 0:
        return Fate.NONE
    return Fate.MISS if round_.depth > accepted else None


def _nodes_per_level(rounds: Sequence[Round]) -> float:
    """1 for chains."""
    levels = sum(round_.depth for round_ in rounds)
    return sum(round_.rows for round_ in rounds) / levels if levels else 1.0
