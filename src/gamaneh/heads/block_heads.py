"""A block drafter: all positions of a draft in one forward, then corrected from left to right.

A row of the context is made of several layers of the target at one token and of the token behind it; its own output
guesses the first candidate. One row more for each further candidate, which holds what the last context row holds and
a learned mark of its place, guesses that one (DFlash, arXiv 2602.06036: target features as context of a block that is
filled in one forward). What these rows cannot know, the candidate before them, a product of low rank adds to their
logits (DSpark, arXiv 2607.05147: a Markov head).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gamaneh.heads.artifact import DRAFT_IDS, Artifact, load_tensors
from gamaneh.heads.borrowed import target_embedding
from gamaneh.heads.layer import TrainedLayer, layer_config
from gamaneh.heads.output import OutputHead, training_head
from gamaneh.heads.shapes import check, stored_shape, whole
from gamaneh.heads.trainable import Embed, TrainBatch
from gamaneh.models.config import DecoderConfig
from gamaneh.models.formats.int8 import INT8
from gamaneh.models.formats.stored import StoredTensor
from gamaneh.models.loading import LoadedModel
from gamaneh.options import from_mapping

ROUNDED = ".int8"
"""Ends the names of matrices that an artifact keeps as int8."""

SHRINK = 8.0
"""Counts that a pair of tokens is given beforehand, at the rate of chance: rare pairs say little."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockShape:
    """Sizes of a block drafter.

    Args:
        hidden_layers: layers of the target that it reads, in ascending order; 0 is the embedding.
        depth: candidates of a draft.
        num_layers: decoder layers.
        intermediate_size: width of their feed-forward parts.
        markov_rank: of the product that corrects from left to right; 0 for none.
    """

    hidden_layers: tuple[int, ...]
    intermediate_size: int
    depth: int = 5
    num_layers: int = 1
    markov_rank: int = 64

    def __post_init__(self) -> None:
        rules = {
            "hidden_layers": ("must name layers of the target in ascending order", _are_ascending),
            "intermediate_size": whole(1, 1 << 24),
            "depth": whole(1, 16),
            "num_layers": whole(1, 4),
            "markov_rank": whole(0, 1024),
        }
        check(self, rules)


class BlockHeads(nn.Module):
    """The drafter as it is trained; implements `DraftHeads`.

    Args:
        config: of the target.
        embed: the target's embedding.
        output: rows of the target's output matrix; its norm is what the drafter's own begins as.
        draft_ids: `[draft_vocab]` tokens that are drafted; None for all.
    """

    kind = "block"
    _draft_ids: Tensor | None
    _places: Tensor

    def __init__(
        self, shape: BlockShape, config: DecoderConfig, embed: Embed, output: OutputHead, draft_ids: Tensor | None
    ) -> None:
        super().__init__()
        hidden, vocab = config.hidden_size, output.linear.out_features
        self.shape, self.hidden_layers, self.depth = shape, shape.hidden_layers, shape.depth
        self.fuse = nn.Linear((len(self.hidden_layers) + 1) * hidden, hidden, bias=False)
        self.marks = nn.Parameter(torch.zeros(shape.depth - 1, hidden))
        self.layers = nn.ModuleList(
            TrainedLayer(layer_config(config, 1, shape.intermediate_size)) for _ in range(shape.num_layers)
        )
        self.norm = nn.Parameter(output.norm.detach().float().clone())
        self.before = nn.Parameter(torch.zeros(vocab, shape.markov_rank))
        self.behind = nn.Parameter(torch.zeros(vocab, shape.markov_rank))
        self.register_buffer("_draft_ids", draft_ids, persistent=False)
        self.register_buffer("_places", _inverse(draft_ids, config.vocab_size), persistent=False)
        self._embed, self._output, self._eps = embed, output, config.norm_eps

    def draft_logits(self, batch: TrainBatch) -> list[Tensor]:
        """For each draft position i, `[batch, length, draft_vocab]` logits at t of the token t + 1 + i."""
        context = self.context(batch.hidden, batch.tokens.roll(-1, dims=1))
        features = self._run(context)
        logits = [self._output.linear(self.normed(features[:, :, at])) for at in range(self.depth)]
        return [
            part if at == 0 else part + self._correction(batch.tokens.roll(-1 - at, dims=1))
            for at, part in enumerate(logits)
        ]

    def context(self, hidden: Tensor, next_ids: Tensor) -> Tensor:
        """Rows `[..., hidden]` of the context.

        Args:
            hidden: `[..., num_layers, hidden]` of the target.
            next_ids: `[...]` the token behind each.
        """
        return self.fuse(self.units(hidden, next_ids))  # type: ignore[no-any-return]

    def units(self, hidden: Tensor, next_ids: Tensor) -> Tensor:
        """`[..., (num_layers + 1) * hidden]` float32: what `context` fuses, each part of length 1 on average."""
        parts = torch.cat([hidden.float(), self._embed(next_ids)[..., None, :].float()], dim=-2)
        return F.rms_norm(parts, parts.shape[-1:], eps=self._eps).flatten(-2)

    def normed(self, features: Tensor) -> Tensor:
        """Outputs of the last layer as the output matrix reads them."""
        return F.rms_norm(features, self.norm.shape, self.norm.to(features.dtype), self._eps)

    def draft_ids(self) -> Tensor | None:
        """`[draft_vocab]` the target's token id of each draft token; None where the vocabulary is the target's."""
        return self._draft_ids

    def module(self) -> nn.Module:
        """What is trained."""
        return self

    @torch.no_grad()
    def start(self) -> None:
        """Begin with rows that hold the target's last layer and a little of the rest."""
        nn.init.normal_(self.fuse.weight, std=0.5 / self.fuse.in_features**0.5)
        nn.init.normal_(self.marks, std=0.1)
        nn.init.normal_(self.before, std=0.02)
        size = len(self.fuse.weight)
        last = size * (len(self.hidden_layers) - 1)
        self.fuse.weight[:, last : last + size] += torch.eye(size)

    @torch.no_grad()
    def learn_pairs(self, texts: Sequence[Sequence[int]]) -> None:
        """Begin the correction with what pairs of neighbours in `texts` say beyond chance.

        It is the best product of its rank to the logarithm of how much more often a pair came than by chance, with
        rare pairs shrunk towards 0.
        """
        if not self.shape.markov_rank:
            return
        places = self._places.tolist()
        pairs: Counter[tuple[int, int]] = Counter()
        for text in texts:
            pairs.update(pairwise(text))
        counted = [(places[a], places[b], count) for (a, b), count in pairs.items() if places[a] >= 0 <= places[b]]
        vocab = len(self.before)
        if not counted:
            return
        rows, columns, counts = (torch.tensor(column) for column in zip(*counted, strict=True))
        counts = counts.float()
        total = counts.sum()
        left = torch.zeros(vocab).index_add_(0, rows, counts)
        right = torch.zeros(vocab).index_add_(0, columns, counts)
        chance = right[columns] / total
        excess = ((counts + SHRINK * chance) / (left[rows] + SHRINK) / chance).log()
        shrunk = excess.clamp(min=0) * counts / (counts + SHRINK)
        matrix = torch.sparse_coo_tensor(
            torch.stack([rows, columns]), shrunk, (vocab, vocab), check_invariants=True
        ).coalesce()
        rank = min(self.shape.markov_rank, vocab)
        u, s, v = torch.svd_lowrank(matrix, q=rank, niter=2)
        self.before[:, :rank] = u * s.sqrt()
        self.behind[:, :rank] = v * s.sqrt()

    def _run(self, context: Tensor) -> Tensor:
        """`[batch, length, hidden]` rows of the context -> `[batch, length, depth, hidden]` outputs."""
        batch, length, hidden = context.shape
        marked = (context[:, :, None] + self.marks.to(context.dtype)).flatten(1, 2)
        x = torch.cat([context, marked], dim=1)
        positions, visible = _block_mask(length, self.depth - 1, context.device)
        for layer in self.layers:
            x = layer(x, positions, visible)
        first, others = x[:, :length], x[:, length:]
        return torch.cat([first[:, :, None], others.view(batch, length, self.depth - 1, hidden)], dim=2)

    def _correction(self, before: Tensor) -> Tensor:
        """What the token before adds, `[..., draft_vocab]`; nothing for one that cannot be drafted."""
        places = self._places[before]
        known = (places >= 0)[..., None]
        return (self.before[places.clamp(min=0)] * known) @ self.behind.T


def block_shape(values: Mapping[str, Any], loaded: LoadedModel) -> dict[str, Any]:
    """Every part of a shape.

    Raises:
        InvalidOption: `values` has an unknown part, or one that breaks a rule.
    """
    shape = _shape_for(values, loaded.config)
    return {**asdict(shape), "hidden_layers": list(shape.hidden_layers)}


def blank_block(values: Mapping[str, Any], loaded: LoadedModel, draft_ids: Tensor | None) -> BlockHeads:
    """A drafter to be trained, in float32.

    Raises:
        InvalidOption: `values` has an unknown part, or one that breaks a rule.
    """
    heads = _heads(_shape_for(values, loaded.config), loaded, draft_ids)
    heads.start()
    return heads


def load_block(artifact: Artifact, loaded: LoadedModel) -> BlockHeads:
    """A drafter with its weights, in float32.

    Raises:
        CorruptModel: shape or tensors are wrong.
    """
    values = {**artifact.shape, "hidden_layers": tuple(artifact.shape.get("hidden_layers", ()))}
    heads = _heads(stored_shape(BlockShape, values), loaded, artifact.tensors.get(DRAFT_IDS))
    load_tensors(heads, replace(artifact, tensors=_expanded(artifact.tensors, heads.state_dict())))
    return heads.to(loaded.device).requires_grad_(False)


def kept_tensors(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as an artifact keeps them: matrices as int8 in groups of 32 with float16 scales, under names of their
    own, the rest in float16.
    """
    kept: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim == 2 and tensor.is_floating_point():
            kept[name + ROUNDED] = torch.from_numpy(INT8.quantise(tensor.detach().float().numpy(force=True)).raw)
        else:
            kept[name] = tensor.half() if tensor.is_floating_point() else tensor
    return kept


def _expanded(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors in float32, whichever way they were kept.

    Raises:
        CorruptModel: the bytes of a matrix do not fit its shape.
    """
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        own = name.removesuffix(ROUNDED)
        if own != name and own in wanted and tensor.dtype == torch.uint8:
            stored = StoredTensor.read(INT8, tensor.numpy(), tuple(wanted[own].shape), own)
            found[own] = torch.from_numpy(stored.expand().copy())
        else:
            found[name] = tensor.float() if tensor.is_floating_point() else tensor
    return found


def default_taps(num_layers: int) -> tuple[int, ...]:
    """A third, two thirds and all of the target's layers."""
    return tuple(sorted({max(num_layers // 3, 1), max(2 * num_layers // 3, 1), num_layers}))


def _shape_for(values: Mapping[str, Any], config: DecoderConfig) -> BlockShape:
    own = {"hidden_layers": default_taps(config.num_layers), "intermediate_size": config.intermediate_size}
    given = dict(values)
    if isinstance(given.get("hidden_layers"), list):
        given["hidden_layers"] = tuple(given["hidden_layers"])
    return from_mapping(BlockShape, {**own, **given})


def _heads(shape: BlockShape, loaded: LoadedModel, draft_ids: Tensor | None) -> BlockHeads:
    decoder = loaded.decoder
    return BlockHeads(shape, decoder.config, target_embedding(decoder), training_head(decoder, draft_ids), draft_ids)


def _are_ascending(layers: Any) -> bool:
    whole_numbers = isinstance(layers, tuple) and all(isinstance(layer, int) and layer >= 0 for layer in layers)
    return whole_numbers and len(layers) > 0 and list(layers) == sorted(set(layers))


def _inverse(draft_ids: Tensor | None, vocab_size: int) -> Tensor:
    """`[vocab_size]` place of each token among those that are drafted, -1 for the others."""
    if draft_ids is None:
        return torch.arange(vocab_size)
    places = torch.full((vocab_size,), -1, dtype=torch.long)
    places[draft_ids] = torch.arange(len(draft_ids))
    return places


def _block_mask(length: int, marked: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Positions of `length` context rows and of `marked` rows behind each, and which rows see which."""
    at = torch.arange(length, device=device)
    anchors = torch.cat([at, at.repeat_interleave(marked)])
    steps = torch.cat([torch.zeros_like(at), torch.arange(1, marked + 1, device=device).repeat(length)])
    visible = torch.zeros(len(anchors), len(anchors), dtype=torch.bool, device=device)
    visible[:, :length] = anchors[:, None] >= at
    same = (anchors[:, None] == anchors[length:]) & (steps[:, None] >= steps[length:])
    visible[:, length:] = same
    return anchors + steps, visible
