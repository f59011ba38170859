"""The target's final norm and output matrix, lent to heads: for training with gradients, for drafting packed."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from gamaneh.heads.borrowed import head_rows
from gamaneh.models.decoder import Decoder
from gamaneh.models.linear import DenseLinear, Linear, make_linear


class OutputHead:
    """`[..., hidden]` before the final norm -> `[..., draft_vocab]` logits.

    Args:
        norm: `[hidden]` weight of the target's final norm.
        linear: rows of the target's output matrix, in some format.
        nbytes: what it takes in memory beside the target.
    """

    def __init__(self, norm: Tensor, eps: float, linear: Linear, nbytes: int) -> None:
        self.norm, self.eps, self.linear, self.nbytes = norm, eps, linear, nbytes

    def __call__(self, hidden: Tensor) -> Tensor:
        normed = F.rms_norm(hidden, self.norm.shape, self.norm, self.eps)
        return self.linear(normed.flatten(0, -2)).view(*hidden.shape[:-1], self.linear.out_features)


def drafting_head(decoder: Decoder, ids: Tensor | None) -> OutputHead:
    """In the target's type; the target's own matrix, or a copy of the rows of these tokens."""
    linear = decoder.head if ids is None else make_linear(head_rows(decoder, ids))
    return OutputHead(decoder.norm, decoder.config.norm_eps, linear, 0 if ids is None else linear.nbytes())


def training_head(decoder: Decoder, ids: Tensor | None) -> OutputHead:
    """In float32, through which gradients flow; its own weights have none."""
    linear = DenseLinear(head_rows(decoder, ids).to(torch.float32))
    return OutputHead(decoder.norm.to(torch.float32), decoder.config.norm_eps, linear, linear.nbytes())
