"""Find the few large values of a long row through the maxima of its blocks.

Taking maxima of blocks reads the row once at memory speed; comparing and compacting 152,000 values
one by one costs ten times as much.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

BLOCK = 64


def split(row: Tensor) -> tuple[Tensor, Tensor]:
    """`[n]` -> whole blocks `[n // BLOCK, BLOCK]` and the ids `[n % BLOCK]` left over."""
    whole = row.shape[0] // BLOCK * BLOCK
    return row[:whole].view(-1, BLOCK), torch.arange(whole, row.shape[0], device=row.device)


def ids_of(blocks: Tensor) -> Tensor:
    """Ids `[num_blocks * BLOCK]` of all members of these blocks, in their order."""
    return (blocks.unsqueeze(1) * BLOCK + torch.arange(BLOCK, device=blocks.device)).flatten()


def argmax(row: Tensor) -> int:
    """The lowest id of the highest value; NaN counts as higher than any number."""
    if row.device.type == "cpu" and row.dtype == torch.float32:
        # On one thread: to wake the others takes longer than to read the row.
        return int(np.argmax(row.numpy()))
    blocks, ids = split(row)
    if blocks.shape[0] > 0:
        ids = torch.cat((ids_of(blocks.amax(1).argmax(0, keepdim=True)), ids))
    return int(ids[row[ids].argmax()])


def ids_from(row: Tensor, floor: float | Tensor) -> Tensor:
    """Ascending ids of the values that are at least `floor`."""
    blocks, rest = split(row)
    hits = (blocks.amax(1) >= floor).nonzero().squeeze(1)
    ids = torch.cat((ids_of(hits), rest))
    return ids[row[ids] >= floor]


def largest(row: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest values, descending, and their ids; among equals the lowest id first."""
    maxima = split(row)[0].amax(1)
    if count < maxima.shape[0]:
        # That many blocks hold a value at least as large, so no smaller value is needed.
        ids = ids_from(row, maxima.topk(max(count, 1)).values[-1])
    else:
        ids = torch.arange(row.shape[0], device=row.device)
    values, order = row[ids].sort(descending=True, stable=True)
    return values[:count], ids[order[:count]]
