"""One level of drafts: the rows of all requests that a drafting layer computes at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(slots=True)
class Strand:
    """One request's rows.

    Args:
        row: of the request in the cache.
        start: place of its first row; the others follow.
        tokens: the token that each row reads.
        positions: where each row stands in the text.
        ends: how many of the first places each row sees.
        extra: for each row, places beyond that which it sees: its ancestors in a tree and itself.
    """

    row: int
    start: int
    tokens: Sequence[int]
    positions: Sequence[int]
    ends: Sequence[int]
    extra: Sequence[Sequence[int]] = ()

    @classmethod
    def chain(cls, row: int, start: int, tokens: Sequence[int], position: int) -> Strand:
        """Rows that each see all before them."""
        count = len(tokens)
        return cls(row, start, tokens, range(position, position + count), range(start + 1, start + count + 1))

    @property
    def stop(self) -> int:
        """Place behind the last row."""
        return self.start + len(self.tokens)


@dataclass(slots=True)
class Level:
    """Rows that are computed at once, strand after strand.

    Args:
        tokens, positions, slots: `[num_rows]`; a slot is `row * capacity + place`.
        rows: of the requests in the cache.
        length: places of each request that are looked at.
        queries: rows of the strand that has most.
        places: `[num_rows]` where each row stands when all strands are padded to `queries`; None when they all have
            as many.
        mask: `[num_strands, 1, queries, length]`, which places each row sees; None when it sees all.
    """

    tokens: Tensor
    positions: Tensor
    slots: Tensor
    rows: list[int]
    length: int
    queries: int
    places: Tensor | None
    mask: Tensor | None


def build_level(strands: Sequence[Strand], capacity: int, device: torch.device) -> Level:
    """Lay the strands out; `capacity` is the cache's."""
    tokens = [token for strand in strands for token in strand.tokens]
    positions = [position for strand in strands for position in strand.positions]
    slots = [strand.row * capacity + place for strand in strands for place in range(strand.start, strand.stop)]
    columns = torch.tensor([tokens, positions, slots], device=device)
    queries = max(len(strand.tokens) for strand in strands)
    return Level(
        tokens=columns[0],
        positions=columns[1],
        slots=columns[2],
        rows=[strand.row for strand in strands],
        length=max(strand.stop for strand in strands),
        queries=queries,
        places=_places(strands, queries, device),
        mask=_mask(strands, queries, device),
    )


def _places(strands: Sequence[Strand], queries: int, device: torch.device) -> Tensor | None:
    if all(len(strand.tokens) == queries for strand in strands):
        return None
    places = [at * queries + row for at, strand in enumerate(strands) for row in range(len(strand.tokens))]
    return torch.tensor(places, device=device)


def _mask(strands: Sequence[Strand], queries: int, device: torch.device) -> Tensor | None:
    if len(strands) == 1 and queries == 1 and not strands[0].extra:
        return None
    length = max(strand.stop for strand in strands)
    ends = [[*strand.ends, *[1] * (queries - len(strand.tokens))] for strand in strands]
    seen = torch.arange(length, device=device) < torch.tensor(ends, device=device)[..., None]
    for at, strand in enumerate(strands):
        for row, places in enumerate(strand.extra):
            seen[at, row, list(places)] = True
    return seen[:, None]
