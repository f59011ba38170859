"""How often each token occurs in a list that only grows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class TokenCounts:
    """Counts of the tokens of a live list from `start` on; every committed token is read once."""

    def __init__(self, tokens: Sequence[int], start: int = 0) -> None:
        self._tokens = tokens
        self._cursor = start
        self._slots: dict[int, int] = {}
        self._ids = torch.empty(0, dtype=torch.long)
        self._counts = torch.empty(0)

    def with_path(self, path: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Distinct ids `[num_distinct]` and their counts in the list followed by `path`."""
        self._catch_up()
        ids, counts, _ = self._extended(path) if path else (self._ids, self._counts, {})
        return ids, counts

    def _catch_up(self) -> None:
        new = self._tokens[self._cursor :]
        if not new:
            return
        self._ids, self._counts, fresh = self._extended(new)
        self._slots.update(fresh)
        self._cursor += len(new)

    def _extended(self, new: Sequence[int]) -> tuple[Tensor, Tensor, dict[int, int]]:
        fresh: dict[int, int] = {}
        for token in new:
            if token not in self._slots:
                fresh.setdefault(token, len(self._slots) + len(fresh))
        slots = torch.tensor([self._slots[token] if token in self._slots else fresh[token] for token in new])
        ids = torch.cat((self._ids, torch.tensor(list(fresh), dtype=torch.long)))
        counts = torch.cat((self._counts, torch.zeros(len(fresh))))
        return ids, counts.index_add_(0, slots, torch.ones(len(new))), fresh
