"""Heads that guess all draft positions at once, each for itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamaneh.heads.borrowed import head_rows
from gamaneh.heads.output import OutputHead
from gamaneh.heads.trainable import Embed, TrainBatch
from gamaneh.models.decoder import Decoder


class ParallelHeads(nn.Module):
    """One tower per draft position over the last layer's output; implements `DraftHeads`.

    A tower maps `[..., hidden]` to `[..., hidden]` and is followed by the target's final norm and output
    matrix, or by an output matrix of its own. As the norm takes the scale away, a tower that changes
    nothing gives the target's own logits.

    Args:
        kind: name of this kind of heads.
        towers: one for each draft position.
        layer: the target's last layer.
        embed: the target's embedding, for heads that see the next token; None for heads that do not.
        output: the target's norm and output matrix over the tokens that are drafted.
        own_output: each head has an output matrix of its own.
        draft_ids: `[draft_vocab]` tokens that are drafted; None for all.
    """

    hidden_layers: tuple[int, ...]
    next_token: nn.Linear | None
    _draft_ids: Tensor | None

    def __init__(
        self,
        kind: str,
        towers: Sequence[nn.Module],
        *,
        layer: int,
        embed: Embed | None,
        output: OutputHead,
        own_output: bool,
        draft_ids: Tensor | None,
    ) -> None:
        super().__init__()
        size, vocab = output.linear.in_features, output.linear.out_features
        self.kind, self.hidden_layers, self.depth = kind, (layer,), len(towers)
        self.towers = nn.ModuleList(towers)
        self.next_token = None if embed is None else nn.Linear(size, size, bias=False)
        self.matrices = nn.ModuleList(nn.Linear(size, vocab, bias=False) for _ in towers if own_output)
        self.register_buffer("_draft_ids", draft_ids, persistent=False)
        self._embed, self._output = embed, output

    def forward(self, hidden: Tensor, next_ids: Tensor) -> Tensor:
        """`[depth, ..., draft_vocab]` logits for all draft positions.

        Args:
            hidden: `[..., hidden]` outputs of the target's last layer.
            next_ids: `[...]` the token that follows each.
        """
        mixed = self._mixed(hidden, next_ids)
        features = torch.stack([tower(mixed) for tower in self.towers])
        if not self.matrices:
            return self._output(features)
        units = self._unit(features)
        return self._output.capped(
            torch.stack([matrix(unit) for matrix, unit in zip(self.matrices, units, strict=True)])
        )

    def draft_logits(self, batch: TrainBatch) -> list[Tensor]:
        """For each draft position i, `[batch, length, draft_vocab]` logits at t of the token t + 1 + i."""
        return list(self.forward(batch.hidden[:, :, 0], batch.tokens.roll(-1, dims=1)))

    def draft_ids(self) -> Tensor | None:
        """`[draft_vocab]` the target's token id of each draft token; None where the vocabulary is the target's."""
        return self._draft_ids

    def module(self) -> nn.Module:
        """What is trained."""
        return self

    def nbytes(self) -> int:
        """Bytes of the weights, and of what was copied from the target."""
        return sum(parameter.nbytes for parameter in self.parameters()) + self._output.nbytes

    @torch.no_grad()
    def start_neutral(self, decoder: Decoder) -> None:
        """Begin with the target's own logits: the next token changes nothing, and own matrices are the target's."""
        if self.next_token is not None:
            self.next_token.weight.zero_()
        if self.matrices:
            rows = head_rows(decoder, self._draft_ids).float() * decoder.norm.float()
            for weight in self.matrices.parameters():
                weight.copy_(rows)

    def _mixed(self, hidden: Tensor, next_ids: Tensor) -> Tensor:
        unit = self._unit(hidden)
        if self.next_token is None or self._embed is None:
            return unit
        seen: Tensor = self.next_token(self._unit(self._embed(next_ids).to(unit.dtype)))
        return unit + seen

    def _unit(self, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=self._output.eps)
