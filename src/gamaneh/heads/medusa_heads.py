"""Medusa heads: residual blocks on the last hidden state (Cai et al. 2024, 2401.10774, section 2.1)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from gamaneh.heads.artifact import DRAFT_IDS, Artifact, load_tensors
from gamaneh.heads.borrowed import target_embedding
from gamaneh.heads.output import OutputHead, drafting_head, training_head
from gamaneh.heads.parallel import ParallelHeads
from gamaneh.heads.shapes import FLAG, check, stored_shape, whole
from gamaneh.models.decoder import Decoder
from gamaneh.models.loading import LoadedModel
from gamaneh.options import from_mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaShape:
    """Sizes and switches of Medusa heads.

    Args:
        depth: heads, one for each draft position.
        num_blocks: residual blocks of each head.
        share_head: the target's output matrix serves all heads; else each has one of its own.
        see_next: the heads see the token that is about to be verified as well, which the original does not.
    """

    depth: int = 4
    num_blocks: int = 1
    share_head: bool = True
    see_next: bool = True

    def __post_init__(self) -> None:
        check(self, {"depth": whole(1, 32), "num_blocks": whole(1, 16), "share_head": FLAG, "see_next": FLAG})


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b), where W and b begin at zero, so that the block begins as the identity."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.linear = nn.Linear(size, size)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + F.silu(self.linear(x))


def medusa_shape(values: Mapping[str, Any], loaded: LoadedModel) -> dict[str, Any]:
    """Every part of a shape.

    Raises:
        InvalidOption: `values` has an unknown part, or one that breaks a rule.
    """
    return asdict(from_mapping(MedusaShape, values))


def blank_medusa(values: Mapping[str, Any], loaded: LoadedModel, draft_ids: Tensor | None) -> ParallelHeads:
    """Heads to be trained, in float32.

    Raises:
        InvalidOption: `values` has an unknown part, or one that breaks a rule.
    """
    shape = from_mapping(MedusaShape, values)
    heads = _heads(shape, loaded.decoder, training_head(loaded.decoder, draft_ids), draft_ids)
    heads.start_neutral(loaded.decoder)
    return heads


def load_medusa(artifact: Artifact, loaded: LoadedModel) -> ParallelHeads:
    """Heads to draft with.

    Raises:
        CorruptModel: shape or tensors are wrong.
    """
    shape, draft_ids = stored_shape(MedusaShape, artifact.shape), artifact.tensors.get(DRAFT_IDS)
    heads = _heads(shape, loaded.decoder, drafting_head(loaded.decoder, draft_ids), draft_ids)
    load_tensors(heads, artifact)
    return heads.to(loaded.device, loaded.dtype).requires_grad_(False)


def _heads(shape: MedusaShape, decoder: Decoder, output: OutputHead, draft_ids: Tensor | None) -> ParallelHeads:
    size = decoder.config.hidden_size
    towers = [nn.Sequential(*(ResidualBlock(size) for _ in range(shape.num_blocks))) for _ in range(shape.depth)]
    return ParallelHeads(
        "medusa",
        towers,
        layer=decoder.config.num_layers,
        embed=target_embedding(decoder) if shape.see_next else None,
        output=output,
        own_output=not shape.share_head,
        draft_ids=draft_ids,
    )
