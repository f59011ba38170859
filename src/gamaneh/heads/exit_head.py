"""A trained way out of the target after some of its layers: a norm and a small network before the output matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamaneh.errors import CorruptModel, InvalidOption
from gamaneh.heads.artifact import DRAFT_IDS, Artifact, load_tensors
from gamaneh.heads.borrowed import head_rows
from gamaneh.heads.shapes import check, stored_shape, whole
from gamaneh.heads.trainable import TrainBatch
from gamaneh.models.decoder import Decoder
from gamaneh.models.loading import LoadedModel
from gamaneh.options import from_mapping

INITIAL_SPREAD = 0.02


@dataclass(frozen=True, slots=True, kw_only=True)
class ExitShape:
    """Sizes of an exit.

    Args:
        num_layers: layers of the target that run before it.
        width: of the network between.
        depth: draft positions by which it is judged while it is trained; it may draft more.
    """

    num_layers: int
    width: int = 256
    depth: int = 4

    def __post_init__(self) -> None:
        check(self, {"num_layers": whole(1, 1 << 16), "width": whole(1, 1 << 20), "depth": whole(1, 32)})


class ExitHead(nn.Module):
    """Hidden states after `num_layers` layers -> logits of the next token; implements `DraftHeads`.

    x + up(SiLU(down(norm(x)))), then a final norm of its own and the target's output matrix. The network
    begins at zero and the norm as the target's, so that training starts from the target's own head.

    Args:
        draft_ids: `[draft_vocab]` tokens that it can draft; None for all.

    Raises:
        InvalidOption: the target has no more layers than run before it.
    """

    kind = "early_exit"
    hidden_layers: tuple[int, ...]
    _draft_ids: Tensor | None
    _rows: Tensor

    def __init__(self, shape: ExitShape, decoder: Decoder, draft_ids: Tensor | None) -> None:
        super().__init__()
        size, layers = decoder.config.hidden_size, decoder.config.num_layers
        if shape.num_layers >= layers:
            raise InvalidOption("num_layers", f"must be below the target's {layers}", shape.num_layers)
        self.shape, self.hidden_layers, self.depth = shape, (shape.num_layers,), shape.depth
        self.eps = decoder.config.norm_eps
        self.inner_norm = nn.Parameter(torch.ones(size))
        self.down = nn.Linear(size, shape.width, bias=False)
        self.up = nn.Linear(shape.width, size, bias=False)
        self.norm = nn.Parameter(torch.ones(size))
        self.register_buffer("_draft_ids", draft_ids, persistent=False)
        self.register_buffer("_rows", head_rows(decoder, draft_ids), persistent=False)

    def forward(self, hidden: Tensor) -> Tensor:
        """`[..., hidden]` -> `[..., draft_vocab]` logits of the next token."""
        return F.linear(self.features(hidden.to(self.norm.dtype)), self._rows)

    def features(self, hidden: Tensor) -> Tensor:
        """`[..., hidden]` -> `[..., hidden]`, what the output matrix reads."""
        inner = F.rms_norm(hidden, self.inner_norm.shape, self.inner_norm, self.eps)
        return F.rms_norm(hidden + self.up(F.silu(self.down(inner))), self.norm.shape, self.norm, self.eps)

    def draft_logits(self, batch: TrainBatch) -> list[Tensor]:
        """As `DraftHeads` says. The target's first layers read every candidate, so all positions are guessed alike."""
        logits = self(batch.hidden[:, :, 0])
        return [F.pad(logits[:, step:], (0, 0, 0, min(step, logits.shape[1]))) for step in range(1, self.depth + 1)]

    def draft_ids(self) -> Tensor | None:
        """`[draft_vocab]` the target's token id of each draft token; None where the vocabulary is the target's."""
        return self._draft_ids

    def module(self) -> nn.Module:
        """What is trained."""
        return self

    @torch.no_grad()
    def start(self, decoder: Decoder) -> None:
        """Begin as the target's own head."""
        self.down.weight.normal_(std=INITIAL_SPREAD, generator=torch.Generator().manual_seed(0))
        self.up.weight.zero_()
        self.norm.copy_(decoder.norm)


def exit_shape(values: Mapping[str, Any], loaded: LoadedModel) -> dict[str, Any]:
    """A shape of which any part may be left out -> every part of it; after a third of the layers if not told.

    Raises:
        InvalidOption: `values` has an unknown part, or one that breaks a rule.
    """
    return asdict(_shape_for(values, loaded))


def blank_exit(values: Mapping[str, Any], loaded: LoadedModel, draft_ids: Tensor | None) -> ExitHead:
    """An exit to be trained, in float32.

    Raises:
        InvalidOption: `values` has an unknown part, or one that breaks a rule.
    """
    head = ExitHead(_shape_for(values, loaded), loaded.decoder, draft_ids)
    head.start(loaded.decoder)
    return head.to(loaded.device, torch.float32)


def load_exit(artifact: Artifact, loaded: LoadedModel) -> ExitHead:
    """An exit to draft with, in the target's type.

    Raises:
        CorruptModel: shape or tensors are wrong.
    """
    try:
        head = ExitHead(stored_shape(ExitShape, artifact.shape), loaded.decoder, artifact.tensors.get(DRAFT_IDS))
    except InvalidOption as error:
        raise CorruptModel(f"shape of early_exit heads must fit {loaded.name}: {error}") from error
    load_tensors(head, artifact)
    return head.to(loaded.device, loaded.dtype).requires_grad_(False)


def _shape_for(values: Mapping[str, Any], loaded: LoadedModel) -> ExitShape:
    return from_mapping(ExitShape, {"num_layers": max(loaded.config.num_layers // 3, 1), **values})
