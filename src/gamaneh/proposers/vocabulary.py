"""Logits over a part of the target's vocabulary, laid out over all of it."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class DraftVocabulary:
    """What heads can draft.

    Args:
        ids: `[draft_vocab]` the target's token id of each draft token; None for all of its tokens.
        vocab_size: of the target, padding included.
    """

    def __init__(self, ids: Tensor | None, vocab_size: int) -> None:
        self._ids, self._vocab_size = ids, vocab_size

    def widen(self, logits: Tensor) -> Tensor:
        """`[..., draft_vocab]` -> float32 `[..., vocab]`, -inf at tokens that cannot be drafted."""
        logits = logits.float()
        if self._ids is None:
            return logits
        wide = logits.new_full((*logits.shape[:-1], self._vocab_size), -math.inf)
        return wide.index_copy_(-1, self._ids, logits)

    def spread(self, places: Tensor, values: Tensor) -> Tensor:
        """Logits of some draft tokens, by their places, -> float32 `[vocab]`, -inf at all other tokens."""
        wide = torch.full((self._vocab_size,), -math.inf)
        wide[places if self._ids is None else self._ids[places]] = values
        return wide
