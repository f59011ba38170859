"""Losses on the target's own distribution: which token comes next is learned from all of its probabilities."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from gamaneh.heads.borrowed import head_rows
from gamaneh.models.decoder import Decoder
from gamaneh.train.settings import Divergence

ROWS_AT_ONCE = 64
"""Rows of a loss that are worked on at a time."""


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


class Pairs:
    """Which rows of draft and target speak of the same token.

    Args:
        learned: `[batch, length]` tokens that may be learned from.
    """

    def __init__(self, learned: Tensor) -> None:
        self.before = F.pad(learned[:, 1:], (0, 1))
        """`[batch, length]`, true where the token behind may be learned from: there the target's opinion is known."""
        self._place = self.before.flatten().cumsum(0) - 1

    def rows(self, draft_position: int) -> tuple[Tensor, Tensor]:
        """Rows of `[batch * length]` in which this draft position guesses a learned token, and the places of the
        target's opinions about these among all that are known.
        """
        known = self.before.clone()
        known[:, :draft_position] = False
        behind = known.flatten().nonzero()[:, 0]
        return behind - draft_position, self._place[behind]


class SoftCrossEntropy(torch.autograd.Function):
    """Scale times the sum over pairs of rows of -sum_v target_probs[v] log softmax(logits)[v].

    With probabilities that leave out part of the vocabulary, each row counts by the share that it can reach. The
    gradient, softmax(logits) * sum(target_probs) - target_probs, is made at once and a few rows at a time, as long as
    they are in the processor's cache.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, target_probs: Tensor, rows: Tensor, places: Tensor, scale: float) -> Tensor:
        """
        Args:
            logits: `[num_rows, vocab]`.
            target_probs: `[num_known, vocab]` float32.
            rows, places: `[num_pairs]` of the two; no row comes twice.
        """
        total = torch.zeros((), dtype=torch.float32, device=logits.device)
        gradient = torch.zeros_like(logits)
        for some, known in zip(torch.split(rows, ROWS_AT_ONCE), torch.split(places, ROWS_AT_ONCE), strict=True):
            scores, probs = logits[some].float(), target_probs[known]
            sums, mass = scores.logsumexp(-1, keepdim=True), probs.sum(-1, keepdim=True)
            total += (mass * sums).sum() - torch.dot(probs.flatten(), scores.flatten())
            gradient[some] = scores.sub_(sums).exp_().mul_(mass).sub_(probs).mul_(scale).to(logits.dtype)
        ctx.save_for_backward(gradient)
        return total * scale

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        (gradient,) = ctx.saved_tensors
        # In place: another tensor of this size costs more than the product.
        return gradient.mul_(gradients[0]), None, None, None, None


def divergence(logits: Tensor, target_logprobs: Tensor, kind: Divergence) -> Tensor:
    """Mean over rows of KL(target || draft) (`forward`) or KL(draft || target) (`reverse`).

    Args:
        logits: `[num_rows, vocab]` of the draft.
        target_logprobs: `[num_rows, vocab]`.
    """
    draft_logprobs = logits.float().log_softmax(-1)
    first, second = (target_logprobs, draft_logprobs) if kind == "forward" else (draft_logprobs, target_logprobs)
    return (first.exp() * (first - second)).sum() / max(len(logits), 1)


def draft_loss(logits: Sequence[Tensor], target_probs: Tensor, pairs: Pairs, decay: float) -> Tensor:
    """Mean soft cross-entropy over rows and draft positions, position i weighted with decay^(i - 1).

    Cai et al. 2024 (Medusa, section 2.2.1) weight by a power of 0.8 too.

    Args:
        logits: for each draft position i `[batch, length, draft_vocab]`, at t for the token t + 1 + i.
        target_probs: `[num_known, draft_vocab]` of the target, for the tokens behind `pairs.before`.
    """
    shares = [decay**at for at in range(len(logits))]
    found = [pairs.rows(at) for at in range(1, len(logits) + 1)]
    whole = max(sum(share * len(rows) for share, (rows, _) in zip(shares, found, strict=True)), 1.0)
    apply: Callable[..., Tensor] = SoftCrossEntropy.apply
    losses = [
        apply(part.flatten(0, 1), target_probs, rows, places, share / whole)
        for part, share, (rows, places) in zip(logits, shares, found, strict=True)
    ]
    return torch.stack(losses).sum()
