"""Multi-token prediction: heads that look several tokens ahead.

parallel   one feed-forward head per position over the last layer's output (Gloeckle et al. 2024,
           2404.19737, section 2; there the heads are whole layers)
chained    one decoder layer per position, fed by the one before it and by the token in between
           (DeepSeek-V3, 2412.19437, section 2.2, eq. 21 to 23)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, cast, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamaneh.errors import InvalidOption
from gamaneh.heads.artifact import DRAFT_IDS, Artifact, load_tensors
from gamaneh.heads.borrowed import target_embedding
from gamaneh.heads.layer import TrainedLayer, layer_config
from gamaneh.heads.output import OutputHead, drafting_head, training_head
from gamaneh.heads.parallel import ParallelHeads
from gamaneh.heads.shapes import FLAG, Rule, check, stored_shape, whole
from gamaneh.heads.trainable import DraftHeads, Embed, TrainBatch
from gamaneh.models.config import DecoderConfig
from gamaneh.models.decoder import Decoder
from gamaneh.models.loading import LoadedModel
from gamaneh.options import from_mapping

Form = Literal["parallel", "chained"]

_FORM: Rule = (f"must be one of {', '.join(get_args(Form))}", lambda value: value in get_args(Form))
_SIZE: Rule = ("must be a whole number above 0, or none", lambda value: value is None or whole(1, 1 << 20)[1](value))


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpShape:
    """Sizes and switches of multi-token prediction heads.

    Args:
        form: `parallel` or `chained`.
        depth: draft positions.
        intermediate_size: width of the feed-forward parts; None for the target's.
        shared: one layer serves all positions of a chain.
    """

    form: Form = "chained"
    depth: int = 3
    intermediate_size: int | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        check(self, {"form": _FORM, "depth": whole(1, 32), "intermediate_size": _SIZE, "shared": FLAG})
        if self.shared and self.form == "parallel":
            raise InvalidOption("shared", "needs the form chained", self.shared)


class GatedBlock(nn.Module):
    """x + down(SiLU(gate x) * up x), where down begins at zero, so that the block begins as the identity."""

    def __init__(self, size: int, inner: int) -> None:
        super().__init__()
        self.gate_up = nn.Linear(size, 2 * inner, bias=False)
        self.down = nn.Linear(inner, size, bias=False)
        nn.init.zeros_(self.down.weight)

    def forward(self, x: Tensor) -> Tensor:
        gate, up = self.gate_up(x).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)  # type: ignore[no-any-return]


class ChainedBlock(nn.Module):
    """One position of a chain: M [norm(h); norm(embedding)], then a decoder layer. It begins as norm(h)."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        size = config.hidden_size
        self.hidden_norm = nn.RMSNorm(size, config.norm_eps)
        self.embed_norm = nn.RMSNorm(size, config.norm_eps)
        self.project = nn.Linear(2 * size, size, bias=False)
        self.layer = TrainedLayer(config)
        with torch.no_grad():
            self.project.weight.copy_(torch.eye(size, 2 * size))

    def forward(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """`[batch, length, hidden]` outputs of the position before, and embeddings of the token that follows."""
        return self.layer(self.combine(hidden, embedded))  # type: ignore[no-any-return]

    def combine(self, hidden: Tensor, embedded: Tensor) -> Tensor:
        """What goes into the layer, `[..., hidden]`."""
        both = torch.cat([self.hidden_norm(hidden), self.embed_norm(embedded.to(hidden.dtype))], dim=-1)
        return self.project(both)  # type: ignore[no-any-return]


class ChainedHeads(nn.Module):
    """A chain of blocks that share the target's embedding, final norm and output matrix; implements `DraftHeads`.

    Args:
        config: of the blocks' layers, one for each draft position.
        num_blocks: blocks; where they are fewer than positions, they serve in turns.
        layer: the target's last layer.
        draft_ids: `[draft_vocab]` tokens that are drafted; None for all.
    """

    kind = "mtp"
    hidden_layers: tuple[int, ...]
    _draft_ids: Tensor | None

    def __init__(
        self,
        config: DecoderConfig,
        num_blocks: int,
        *,
        layer: int,
        embed: Embed,
        output: OutputHead,
        draft_ids: Tensor | None,
    ) -> None:
        super().__init__()
        self.config, self.hidden_layers, self.depth = config, (layer,), config.num_layers
        self.blocks = nn.ModuleList(ChainedBlock(config) for _ in range(num_blocks))
        self.register_buffer("_draft_ids", draft_ids, persistent=False)
        self.embed, self.output = embed, output

    def block(self, level: int) -> ChainedBlock:
        """The block of draft position `level` + 1."""
        return cast(ChainedBlock, self.blocks[level % len(self.blocks)])

    def draft_logits(self, batch: TrainBatch) -> list[Tensor]:
        """For each draft position i, `[batch, length, draft_vocab]` logits at t of the token t + 1 + i."""
        hidden, logits = batch.hidden[:, :, 0], []
        for level in range(self.depth):
            hidden = self.block(level)(hidden, self.embed(batch.tokens.roll(-1 - level, dims=1)))
            logits.append(self.output(hidden))
        return logits

    def draft_ids(self) -> Tensor | None:
        """`[draft_vocab]` the target's token id of each draft token; None where the vocabulary is the target's."""
        return self._draft_ids

    def module(self) -> nn.Module:
        """What is trained."""
        return self

    def nbytes(self) -> int:
        """Bytes of the weights, and of what was copied from the target."""
        return sum(parameter.nbytes for parameter in self.parameters()) + self.output.nbytes


def mtp_shape(values: Mapping[str, Any], loaded: LoadedModel) -> dict[str, Any]:
    """Every part of a shape.

    Raises:
        InvalidOption: `values` has an unknown part, or one that breaks a rule.
    """
    return asdict(from_mapping(MtpShape, values))


def blank_mtp(values: Mapping[str, Any], loaded: LoadedModel, draft_ids: Tensor | None) -> DraftHeads:
    """Heads to be trained, in float32.

    Raises:
        InvalidOption: `values` has an unknown part, or one that breaks a rule.
    """
    shape, output = from_mapping(MtpShape, values), training_head(loaded.decoder, draft_ids)
    if shape.form == "chained":
        return _chained(shape, loaded.decoder, output, draft_ids)
    return _parallel(shape, loaded.decoder, output, draft_ids)


def load_mtp(artifact: Artifact, loaded: LoadedModel) -> DraftHeads:
    """Heads of either form to draft with.

    Raises:
        CorruptModel: shape or tensors are wrong.
    """
    chained = stored_shape(MtpShape, artifact.shape).form == "chained"
    return load_chained(artifact, loaded) if chained else load_parallel(artifact, loaded)


def load_parallel(artifact: Artifact, loaded: LoadedModel) -> ParallelHeads:
    """Heads of the form `parallel`."""
    shape, draft_ids = stored_shape(MtpShape, artifact.shape), artifact.tensors.get(DRAFT_IDS)
    heads = _parallel(shape, loaded.decoder, drafting_head(loaded.decoder, draft_ids), draft_ids)
    load_tensors(heads, artifact)
    return heads.to(loaded.device, loaded.dtype).requires_grad_(False)


def load_chained(artifact: Artifact, loaded: LoadedModel) -> ChainedHeads:
    """Heads of the form `chained`."""
    shape, draft_ids = stored_shape(MtpShape, artifact.shape), artifact.tensors.get(DRAFT_IDS)
    heads = _chained(shape, loaded.decoder, drafting_head(loaded.decoder, draft_ids), draft_ids)
    load_tensors(heads, artifact)
    return heads.to(loaded.device, loaded.dtype).requires_grad_(False)


def _parallel(shape: MtpShape, decoder: Decoder, output: OutputHead, draft_ids: Tensor | None) -> ParallelHeads:
    config = decoder.config
    inner = shape.intermediate_size or config.intermediate_size
    heads = ParallelHeads(
        "mtp",
        [GatedBlock(config.hidden_size, inner) for _ in range(shape.depth)],
        layer=config.num_layers,
        embed=target_embedding(decoder),
        output=output,
        own_output=False,
        draft_ids=draft_ids,
    )
    heads.start_neutral(decoder)
    return heads


def _chained(shape: MtpShape, decoder: Decoder, output: OutputHead, draft_ids: Tensor | None) -> ChainedHeads:
    return ChainedHeads(
        layer_config(decoder.config, shape.depth, shape.intermediate_size),
        1 if shape.shared else shape.depth,
        layer=decoder.config.num_layers,
        embed=target_embedding(decoder),
        output=output,
        draft_ids=draft_ids,
    )
