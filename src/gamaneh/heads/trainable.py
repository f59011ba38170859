"""What a trainer and the heads that it trains agree on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor, nn

Embed = Callable[[Tensor], Tensor]
"""The target's embedding: token ids `[...]` -> `[..., hidden]`. Its weights are not trained."""


@dataclass(frozen=True, slots=True)
class TrainBatch:
    """Text that the target has read.

    Args:
        tokens: `[batch, length]` token ids.
        hidden: `[batch, length, num_layers, hidden]` outputs of the layers that the heads read.
        mask: `[batch, length]`, true where a token was written by the target and may be learned from.
    """

    tokens: Tensor
    hidden: Tensor
    mask: Tensor


class DraftHeads(Protocol):
    """A module that drafts `depth` tokens behind the next one.

    At position t the hidden states of token t and token t + 1 itself are known, as they are when a
    round begins; draft position i = 1 ... depth is the token t + 1 + i.
    """

    kind: str
    hidden_layers: tuple[int, ...]
    depth: int

    def draft_logits(self, batch: TrainBatch) -> list[Tensor]:
        """For each draft position i, `[batch, length, draft_vocab]` logits at t of the token t + 1 + i.

        Tokens up to t + i are given (teacher forcing). Rows whose token would lie behind the end are
        to be left out of the loss by the caller.
        """
        ...

    def draft_ids(self) -> Tensor | None:
        """`[draft_vocab]` the target's token id of each draft token; None where the vocabulary is the target's."""
        ...

    def module(self) -> nn.Module:
        """What is trained, and nothing of the target."""
        ...
