"""Leaving out of a draft what the request's mask would refuse anyway."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import Tensor

from gamaneh.core import ROOT, Draft, TokenMask


def prune(draft: Draft, mask: TokenMask, end_ids: Collection[int]) -> Draft:
    """The nodes of a draft whose whole path `mask` allows and no end token cuts short.

    A draft with probabilities keeps its law: that a token is left out says which tokens it is not, so
    what is left was drawn from the allowed part of its row, and the rest of the row becomes 0.

    Args:
        end_ids: tokens that end the output; nothing is verified behind them.
    """
    renamed = {ROOT: ROOT}
    rows: list[Tensor] = []
    for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
        if parent not in renamed or (parent != ROOT and draft.tokens[parent] in end_ids):
            continue
        allowed = mask.mask(draft.path_tokens(parent))
        if allowed is not None and not _allows(allowed, token):
            continue
        renamed[node] = len(renamed) - 1
        if draft.probs is not None:
            rows.append(_restricted(draft.probs[node], allowed))
    nodes = [node for node in renamed if node != ROOT]
    return Draft(
        tuple(draft.tokens[node] for node in nodes),
        tuple(renamed[draft.parents[node]] for node in nodes),
        torch.stack(rows) if rows else None,
        draft.grade,
        tuple(draft.sources[node] for node in nodes) if draft.sources else (),
    )


def _allows(allowed: Tensor, token: int) -> bool:
    return token < allowed.shape[0] and bool(allowed[token])


def _restricted(row: Tensor, allowed: Tensor | None) -> Tensor:
    """A row of probabilities `[vocab]` with 0 where not allowed; tokens beyond the mask's end are not."""
    if allowed is None:
        return row
    width = min(row.shape[0], allowed.shape[0])
    restricted = torch.zeros_like(row)
    restricted[:width] = row[:width] * allowed[:width].to(row.device)
    return restricted
