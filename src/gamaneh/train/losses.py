"""Losses on the target's own distribution: which token comes next is learned from all of its probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from gamaneh.heads.borrowed import head_rows
from gamaneh.models.decoder import Decoder
from gamaneh.train.options import Divergence


class TargetProbs:
    """The target's probabilities for the tokens that can be drafted.

    Args:
        decoder: the target.
        draft_ids: `[draft_vocab]` tokens; None for all.
    """

    def __init__(self, decoder: Decoder, draft_ids: Tensor | None) -> None:
        self._normed = decoder.normed
        self._rows = head_rows(decoder, None if draft_ids is None else draft_ids.to(decoder.device))

    @torch.no_grad()
    def __call__(self, last_hidden: Tensor, logsumexp: Tensor) -> Tensor:
        """`[..., hidden]` outputs of the last layer and `[...]` log-sum-exps of the whole vocabulary's logits ->
        `[..., draft_vocab]` float32. They add up to less than 1 where other tokens are likely as well.
        """
        logits = F.linear(self._normed(last_hidden), self._rows).float()
        return logits.sub_(logsumexp[..., None]).exp_()


def cross_entropy(logits: Tensor, target_probs: Tensor, weights: Tensor) -> Tensor:
    """Sum over rows of weight * -sum_v target_probs[v] log softmax(logits)[v].

    With probabilities that leave out part of the vocabulary, each row counts by the share that it can reach.

    Args:
        logits: `[..., vocab]`.
        target_probs: `[..., vocab]`.
        weights: `[...]`, 0 leaves a row out.
    """
    return -(torch.einsum("...v,...v->...", target_probs, logits.float().log_softmax(-1)) * weights).sum()


def divergence(logits: Tensor, target_logprobs: Tensor, weights: Tensor, kind: Divergence) -> Tensor:
    """Sum over rows of weight * KL(target || draft) (`forward`) or KL(draft || target) (`reverse`).

    Args:
        logits: `[..., vocab]` of the draft.
        target_logprobs: `[..., vocab]`.
        weights: `[...]`, 0 leaves a row out.
    """
    draft_logprobs = logits.float().log_softmax(-1)
    first, second = (target_logprobs, draft_logprobs) if kind == "forward" else (draft_logprobs, target_logprobs)
    return ((first.exp() * (first - second)).sum(-1) * weights).sum()


def draft_loss(
    logits: Sequence[Tensor], target_probs: Tensor, weights: Tensor, decay: float, loss: Callable[..., Tensor]
) -> Tensor:
    """Mean over rows and draft positions of a loss, position i weighted with decay^(i - 1).

    Cai et al. 2024 (Medusa, section 2.2.1) and Li et al. 2025 (EAGLE-3) weight by a power of 0.8 too.

    Args:
        logits: for each draft position i `[batch, length, draft_vocab]`, at t for the token t + 1 + i.
        target_probs: `[batch, length, draft_vocab]` of the target, at t for the token t + 1.
        weights: `[batch, length]`, at t 1 where the token t + 1 may be learned from, else 0.
    """
    total = norm = torch.zeros((), device=weights.device)
    for at, part in enumerate(logits, start=1):
        rows = slice(None, part.shape[1] - at)
        share = decay ** (at - 1)
        total = total + share * loss(part[:, rows], target_probs[:, at:], weights[:, at:])
        norm = norm + share * weights[:, at:].sum()
    return total / norm.clamp(min=1)


def next_weights(learned: Tensor) -> Tensor:
    """`[batch, length]` learned tokens -> `[batch, length]`, at t 1 where the token t + 1 is one, as float32."""
    return F.pad(learned[:, 1:], (0, 1)).float()
