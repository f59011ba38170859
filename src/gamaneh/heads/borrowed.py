"""What heads use of their target without owning it: its embedding and rows of its output matrix."""

from __future__ import annotations

import torch
from torch import Tensor

from gamaneh.heads.trainable import Embed
from gamaneh.models.decoder import Decoder


def target_embedding(decoder: Decoder) -> Embed:
    """Token ids `[...]` -> `[..., hidden]`, as the target's first layer reads them."""
    scale = torch.tensor(decoder.config.embedding_scale, dtype=decoder.dtype)
    if decoder.config.embedding_scale == 1.0:
        return lambda ids: decoder.embedding[ids]
    return lambda ids: decoder.embedding[ids] * scale


@torch.no_grad()
def head_rows(decoder: Decoder, ids: Tensor | None = None) -> Tensor:
    """`[num_ids, hidden]` rows of the output matrix for these tokens; all of it for None."""
    rows = decoder.embedding if decoder.config.tied_embedding else decoder.head.dense()
    return (rows if ids is None else rows[ids]).contiguous()
