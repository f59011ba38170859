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
        softcap: of the target's logits, as in `DecoderConfig`.
    """

    def __init__(self, norm: Tensor, eps: float, linear: Linear, nbytes: int, softcap: float | None) -> None:
        self.norm, self.eps, self.linear, self.nbytes, self.softcap = norm, eps, linear, nbytes, softcap

    def __call__(self, hidden: Tensor) -> Tensor:
        normed = F.rms_norm(hidden, self.norm.shape, self.norm, self.eps)
        return self.capped(self.linear(normed.flatten(0, -2)).view(*hidden.shape[:-1], self.linear.out_features))

    def capped(self, logits: Tensor) -> Tensor:
        """Return the logits as the target's own soft cap leaves them; gradients flow through."""
        return logits if self.softcap is None else self.softcap * torch.tanh(logits / self.softcap)


def drafting_head(decoder: Decoder, ids: Tensor | None) -> OutputHead:
    """In the target's type; the target's own matrix, or a copy of the rows of these tokens."""
    linear = decoder.head if ids is None else make_linear(head_rows(decoder, ids))
    nbytes = 0 if ids is None else linear.nbytes()
    return OutputHead(decoder.norm, decoder.config.norm_eps, linear, nbytes, decoder.config.logit_softcap)


def training_head(decoder: Decoder, ids: Tensor | None) -> OutputHead:
    """In float32, through which gradients flow; its own weights have none."""
    linear = DenseLinear(head_rows(decoder, ids).to(torch.float32))
    norm, config = decoder.norm.to(torch.float32), decoder.config
    return OutputHead(norm, config.norm_eps, linear, linear.nbytes(), config.logit_softcap)
