"""Drafts of chained multi-token prediction: one layer per position, with keys and values of its own.

Level i drafts position i + 1. Its entry j combines what level i - 1 put out at token j (the target's last layer
for level 0) with the token i + 1 places further on, and attends to the entries of its own level up to j, as in
training. Entries whose token is known stay in the cache; those that stand on candidates are computed
again in the next round.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, Draft, Needs, ProposalRow, Proposer
from gamaneh.heads.mtp_heads import ChainedHeads, load_chained, load_parallel
from gamaneh.kv.cache import KVCache
from gamaneh.kv.manager import KVManager
from gamaneh.kv.placing import Placed
from gamaneh.kv.pool import BlockPool
from gamaneh.models.batch import build_batch
from gamaneh.models.decoder import Layer, Rotary
from gamaneh.models.rope import rope_tables
from gamaneh.models.tiling import FREE
from gamaneh.proposers.builtin import MIN_CONFIDENCE
from gamaneh.proposers.medusa import build_parallel
from gamaneh.proposers.recipe import Ingredients
from gamaneh.proposers.tree import CHAINS, Style, TreeBuilder
from gamaneh.proposers.vocabulary import DraftVocabulary

WINDOW = 256
"""Tokens of a request whose hidden states are read when it begins to draft; what lies before them is not seen."""


@dataclass(slots=True)
class _Entries:
    """What the levels hold of one request.

    Args:
        base: place of entry 0 among the request's tokens.
        done: for each level, how many entries are in the cache to stay.
        inputs: for each level `[num_waiting, hidden]`, what it has still to read, from entry `done` on.
    """

    base: int
    done: list[int]
    inputs: list[Tensor]

    def settle(self, count: int, levels: int) -> None:
        """Keep what stands on known tokens, after `levels` levels have read `count` entries each."""
        before = self.done
        self.done = [max(count - level, 0) if level < levels else done for level, done in enumerate(before)]
        known = [count, *self.done]
        for level, (old, new) in enumerate(zip(before, self.done, strict=True)):
            self.inputs[level] = self.inputs[level][new - old : known[level] - old].clone()


@dataclass(slots=True)
class _Growing:
    """A request that drafts in this round.

    Args:
        count: entries that each level reads, those that stand on candidates included.
        levels: how many levels have read them.
    """

    chain: TreeBuilder
    entries: _Entries
    count: int
    levels: int = 0

    @property
    def request_id(self) -> str:
        return self.chain.row.request_id


@dataclass(frozen=True, slots=True)
class _LevelCache:
    """The cache of one level, for a layer that may serve several."""

    cache: KVCache
    level: int

    @property
    def num_slots(self) -> int:
        return self.cache.num_slots

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return self.cache.layer(self.level)


class ChainedHeadsProposer(Proposer):
    """Drafts a chain, each token by the level that was trained for its position.

    Args:
        heads: the networks; their layers are moved into the format that is fastest here.
        rotary: the target's rotation.
        vocab_size: size of the target's vocabulary, padding included.
        num_blocks, block_size: of the cache; a request takes no more of it than of the target's.
        style: the form of its drafts, which are chains.
        expected: survival of its drafts as measured, for the controller; empty for unknown.
    """

    def __init__(
        self,
        heads: ChainedHeads,
        rotary: Rotary,
        *,
        vocab_size: int,
        num_blocks: int,
        block_size: int,
        style: Style = CHAINS,
        expected: tuple[float, ...] = (),
    ) -> None:
        config, weight = heads.config, heads.block(0).project.weight
        self.name, self.heads, self.rotary = heads.kind, heads, rotary
        self.style = style
        self.needs = Needs(
            hidden_layers=heads.hidden_layers,
            hidden_window=WINDOW,
            probs=True,
            max_depth=heads.depth,
            expected_survival=expected,
        )
        self.cache = KVCache(
            heads.depth, num_blocks, block_size, config.num_kv_heads, config.head_dim, weight.dtype, weight.device
        )
        self.kv = KVManager(BlockPool(num_blocks, block_size, prefix_cache=False))
        self._layers = _packed_layers(heads)
        self._vocabulary = DraftVocabulary(heads.draft_ids(), vocab_size)
        self._entries: dict[str, _Entries] = {}

    @torch.inference_mode()
    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One chain per row; empty where the hidden state of the last token but one is not known."""
        started = [growing for row in rows if (growing := self._start(row)) is not None]
        going = started
        for level in range(self.heads.depth):
            going = [growing for growing in going if growing.chain.is_open]
            if going:
                for growing, own in zip(going, self._read(level, going), strict=True):
                    growing.chain.grow([own])
        for growing in started:
            growing.entries.settle(growing.count, growing.levels)
        drafts = {growing.request_id: growing.chain.draft() for growing in started}
        return [drafts.get(row.request_id, EMPTY_DRAFT) for row in rows]

    def forget(self, request_id: str) -> None:
        """Free the entries of a request."""
        if self._entries.pop(request_id, None) is not None:
            self.kv.free(request_id)

    def memory_bytes(self) -> int:
        """Weights, what was copied from the target, and the cache."""
        return self.heads.nbytes() + self.cache.nbytes

    def _start(self, row: ProposalRow) -> _Growing | None:
        """Give level 0 the hidden states that it has not read; None where nothing can be drafted."""
        if row.hidden is None or len(row.hidden) == 0:
            return None
        first = len(row.tokens) - 1 - len(row.hidden)
        entries = self._known(row, first)
        count = len(row.tokens) - 1 - entries.base
        if not self.kv.reserve(row.request_id, count):
            return None
        entries.inputs[0] = row.hidden[entries.base + entries.done[0] - first :, 0]
        return _Growing(TreeBuilder(row, self.style), entries, count)

    def _known(self, row: ProposalRow, first: int) -> _Entries:
        """The request's entries; none where there would be a gap between them and the `first` hidden state."""
        entries = self._entries.get(row.request_id)
        if entries is None or not first <= entries.base + entries.done[0] < len(row.tokens) - 1:
            self.forget(row.request_id)
            self.kv.admit(row.request_id, row.tokens)
            nothing = self.heads.block(0).project.weight.new_empty(0, self.heads.config.hidden_size)
            entries = _Entries(first, [0] * self.heads.depth, [nothing] * self.heads.depth)
            self._entries[row.request_id] = entries
        return entries

    def _read(self, level: int, going: Sequence[_Growing]) -> Tensor:
        """Let one level read what it lacks; returns `[num_requests, vocab]` logits after the last candidates."""
        feeds = [self._feed(level, growing) for growing in going]
        batch = build_batch(feeds, FREE, self.cache.num_slots, self.cache.keys.device)
        inputs = [growing.entries.inputs[level] for growing in going]
        block = self.heads.block(level)
        x = block.combine(torch.cat(inputs), self.heads.embed(batch.token_ids))
        layer = self._layers[level % len(self._layers)]
        x = layer(x, batch, _LevelCache(self.cache, level), self.rotary.rows(batch.positions))
        for growing, outputs in zip(going, torch.split(x, list(map(len, inputs))), strict=True):
            growing.levels = level + 1
            if growing.levels < self.heads.depth:
                waiting = growing.entries.inputs[growing.levels]
                growing.entries.inputs[growing.levels] = torch.cat([waiting, outputs])
        return self._vocabulary.widen(self.heads.output(x[batch.logit_index]))

    def _feed(self, level: int, growing: _Growing) -> Placed:
        entries, table = growing.entries, self.kv.table(growing.request_id)
        start = entries.done[level]
        tokens = growing.chain.sequence[entries.base + start + level + 1 :]
        return Placed(tokens, start, 0, table.slots(0, growing.count), table.run())


def _packed_layers(heads: ChainedHeads) -> list[Layer]:
    """A layer to draft with for each block. The module keeps the shapes of the weights but not their memory."""
    blocks = [heads.block(level) for level in range(len(heads.blocks))]
    layers = [Layer(0, heads.config, heads.config.layers[0], block.layer.canonical(0)) for block in blocks]
    for block in blocks:
        block.layer.to("meta")
    return layers


def build(parts: Ingredients) -> Proposer:
    """Return the proposer that chained or parallel heads make."""
    artifact = parts.heads_of("mtp")
    if artifact.shape.get("form") == "parallel":
        return build_parallel(parts, load_parallel(artifact, parts.target.loaded), artifact)
    loaded, room = parts.target.loaded, parts.target.backend.room()
    tables = rope_tables(loaded.config.ropes[0], loaded.config.head_dim, loaded.config.max_context)
    return ChainedHeadsProposer(
        load_chained(artifact, loaded),
        Rotary(*(table.to(loaded.device, loaded.dtype) for table in tables)),
        vocab_size=parts.vocab_size,
        num_blocks=room.total // room.unit,
        block_size=room.unit,
        style=Style(parts.value(MIN_CONFIDENCE)),
        expected=artifact.survival,
    )
