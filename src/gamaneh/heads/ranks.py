"""How often the token that came was a head's first, second, ... guess: what trees of candidates are made by."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from gamaneh.heads.trainable import DraftHeads, TrainBatch

MOST_GUESSES = 10


@torch.inference_mode()
def rank_shares(heads: DraftHeads, batches: Iterable[TrainBatch], most: int = MOST_GUESSES) -> list[list[float]]:
    """For each draft position the shares of tokens that were its first, second, ... guess, `[depth][most]`.

    Tokens count where they may be learned from; those that the heads cannot draft are nobody's guess.
    """
    hits, totals = torch.zeros(heads.depth, most), torch.zeros(heads.depth, 1)
    for batch in batches:
        for level, logits in enumerate(heads.draft_logits(batch)):
            labels, mask = _labels(batch, level)
            guesses = _guesses(logits[:, : labels.shape[1]], heads.draft_ids(), most)
            found = (guesses == labels[..., None]) & mask[..., None]
            hits[level, : found.shape[-1]] += found.sum((0, 1)).cpu()
            totals[level] += mask.sum().cpu()
    shares: list[list[float]] = (hits / totals.clamp(min=1.0)).tolist()
    return shares


def _labels(batch: TrainBatch, level: int) -> tuple[Tensor, Tensor]:
    """At t the token t + 2 + `level`, as far as the text goes, and whether it counts."""
    return batch.tokens[:, 2 + level :], batch.mask[:, 2 + level :]


def _guesses(logits: Tensor, draft_ids: Tensor | None, most: int) -> Tensor:
    """`[..., most]` the target's ids of the likeliest tokens."""
    best = logits.topk(min(most, logits.shape[-1]), dim=-1).indices
    return best if draft_ids is None else draft_ids[best]
