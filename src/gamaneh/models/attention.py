"""Attention of a flat batch over the paged cache: the reference that runs anywhere."""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from gamaneh.models.batch import KV_MULTIPLE, AttentionGroup, FlatBatch


class LayerCache(Protocol):
    """Keys and values by layer, each `[num_slots, num_kv_heads, head_dim]`."""

    @property
    def num_slots(self) -> int: ...

    def layer(self, index: int) -> tuple[Tensor, Tensor]: ...


def write_cache(keys: Tensor, values: Tensor, batch: FlatBatch, new_keys: Tensor, new_values: Tensor) -> None:
    """Store the rows' keys and values, `[num_rows, num_kv_heads, head_dim]`, at their slots, and never NaN.

    A masked slot still enters the sums of others, with weight zero, and 0 x NaN is NaN. The row that is not finite
    shows it in its own output.
    """
    keys.index_copy_(0, batch.slots, new_keys.nan_to_num(0.0, 0.0, 0.0))
    values.index_copy_(0, batch.slots, new_values.nan_to_num(0.0, 0.0, 0.0))


def attend(
    queries: Tensor,  # [num_rows, num_heads, head_dim]
    keys: Tensor,  # [num_slots, num_kv_heads, head_dim]
    values: Tensor,  # [num_slots, num_kv_heads, head_dim]
    batch: FlatBatch,
    window: int | None,
    scale: float,
    softcap: float | None = None,
) -> Tensor:  # [num_rows, num_heads * head_dim]
    """Each row attends to the cache slots that its group shows it."""
    outputs = [_attend_group(queries, keys, values, group, window, scale, softcap) for group in batch.groups]
    merged = outputs[0] if len(outputs) == 1 else torch.cat(outputs)
    return merged if batch.merge is None else merged[batch.merge]


def softcapped(scores: Tensor, cap: float) -> Tensor:
    """Return `cap * tanh(scores / cap)`.

    It is computed in float64, as vector kernels round the last elements of a tensor unlike the others.
    """
    return scores.double().div_(cap).tanh_().mul_(cap).to(scores.dtype)


def _attend_group(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    group: AttentionGroup,
    window: int | None,
    scale: float,
    softcap: float | None,
) -> Tensor:
    """The query heads of one key head are folded into the rows, so each key is read once."""
    spans, rows = group.num_spans, group.query_rows
    (_, num_heads, head_dim), num_kv_heads = queries.shape, keys.shape[1]
    repeats = num_heads // num_kv_heads
    picked = queries[: spans * rows] if group.rows is None else queries[group.rows]
    folded = picked.view(spans, rows, num_kv_heads, repeats, head_dim).transpose(1, 2).flatten(2, 3)
    seen, mask = (_gather(keys, group), _gather(values, group)), group.mask(window, repeats, queries.dtype)
    if softcap is None:
        output = F.scaled_dot_product_attention(folded, *seen, attn_mask=mask, scale=scale)
    else:
        output = _softcapped_attention(folded, *seen, mask, scale, softcap)
    unfolded = output.view(spans, num_kv_heads, rows, repeats, head_dim).transpose(1, 2)
    return unfolded.reshape(spans * rows, num_heads * head_dim)


def _softcapped_attention(
    queries: Tensor, keys: Tensor, values: Tensor, mask: Tensor, scale: float, softcap: float
) -> Tensor:
    """What `scaled_dot_product_attention` does, with scores capped before the mask.

    Sums over keys go by `KV_MULTIPLE` of them, block after block, so that keys that are masked off change no bit.
    """
    parts = (torch.split(part.float(), KV_MULTIPLE, dim=-2) for part in (keys, values))
    blocks = list(zip(*parts, strict=True))
    masks = torch.split(mask.float(), KV_MULTIPLE, dim=-1)
    queries = queries.float() * scale
    scores = [
        softcapped(queries @ key.transpose(-1, -2), softcap) + hidden
        for (key, _), hidden in zip(blocks, masks, strict=True)
    ]
    top = torch.stack([block.amax(-1, keepdim=True) for block in scores]).amax(0)
    output, total = queries.new_zeros(()), queries.new_zeros(())
    for block, (_, value) in zip(scores, blocks, strict=True):
        weights = (block - top).double().exp_().float()
        output, total = output + weights @ value, total + weights.sum(-1, keepdim=True)
    return (output / total).to(values.dtype)


def _gather(cache: Tensor, group: AttentionGroup) -> Tensor:
    """`[num_spans, num_kv_heads, kv_rows, head_dim]`; a view where the slots are consecutive."""
    if group.kv_index is None:
        taken = cache[group.first_slot : group.first_slot + group.kv_rows]
    else:
        taken = cache.index_select(0, group.kv_index)
    return taken.view(group.num_spans, group.kv_rows, *cache.shape[1:]).transpose(1, 2)
