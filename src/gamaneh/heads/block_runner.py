"""A block drafter as it drafts: its layers run in the backend of its target, over a paged cache of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from torch import Tensor

from gamaneh.backends.choose import is_compiled
from gamaneh.backends.paged import PagedBackend, PagedModel
from gamaneh.core import Draft, Feed
from gamaneh.heads.block_heads import BlockHeads
from gamaneh.heads.borrowed import head_rows
from gamaneh.heads.layer import TrainedLayer, layer_config
from gamaneh.kv.cache import KVCache
from gamaneh.kv.manager import KVManager, SlotStore
from gamaneh.kv.pool import BlockPool
from gamaneh.models.config import DecoderConfig
from gamaneh.models.decoder import Decoder
from gamaneh.models.formats.int8 import INT8
from gamaneh.models.formats.stored import Floats, StoredTensor
from gamaneh.models.loading import LoadedModel
from gamaneh.models.runner import DecoderRunner
from gamaneh.sampling.noise import check_highest

BLOCK = 16
"""Tokens in a block of the cache."""

CACHED_TOKENS = 1 << 16
"""Of all requests together. Memory that nobody writes to is not taken."""

SHORTLIST = 8.0
"""The correction from left to right looks at candidates whose logit is at most so far below the highest."""


class BlockRunner:
    """Rows of target features in, logits of a whole draft out.

    Beside a compiled target its matrices are int8 in groups of 32, and its output matrix is made of the target's own
    rows in their own format.

    Args:
        heads: the trained drafter.
        loaded: its target.
    """

    def __init__(self, heads: BlockHeads, loaded: LoadedModel) -> None:
        self.heads, self.depth = heads, heads.depth
        self.hidden_layers, self.draft_ids = heads.hidden_layers, heads.draft_ids()
        self._marks = heads.marks.detach().float()
        self._before = heads.before.detach().float().numpy(force=True)
        self._behind = heads.behind.detach().float().numpy(force=True)
        config = replace(
            layer_config(loaded.config, heads.shape.num_layers, heads.shape.intermediate_size),
            vocab_size=len(self._before),
        )
        make = _compiled if is_compiled(loaded) else _on_torch
        self._rows, self._fuse, model, cache = make(heads, loaded, config)
        pool = BlockPool(CACHED_TOKENS // BLOCK, BLOCK, prefix_cache=False)
        self.backend = PagedBackend(model, KVManager(pool, cache))

    @torch.inference_mode()
    def guess(self, reads: Sequence[BlockRead]) -> list[Tensor]:
        """`[1 + marked, draft_vocab]` float32 logits for each request, in one forward; what was read stays."""
        units = self._fuse(torch.cat([self._joint(read) for read in reads]))
        pieces, feeds, at = [], [], 0
        for read, own in zip(reads, torch.split(units, [read.count for read in reads]), strict=True):
            pieces += [own, own[-1] + self._marks[: read.marked].to(units.dtype)]
            length = self.backend.length(read.request_id)
            rows = range(at, at + read.count)
            marked = range(rows.stop, rows.stop + read.marked)
            at = marked.stop
            feeds.append(
                Feed(
                    request_id=read.request_id,
                    tokens=[*([0] * length), *rows],
                    count=read.count,
                    draft=Draft.chain(marked),
                    logit_rows=1 + read.marked,
                )
            )
        self._rows.fill(torch.cat(pieces))
        self.backend.verify(feeds)
        self.backend.commit(feeds)
        return [feed.scores.float() for feed in feeds if feed.scores is not None]

    def corrected(self, logits: Tensor, before: int) -> tuple[Tensor, Tensor]:
        """The candidates of one position behind the draft token `before`: their places and their float32 logits.

        Args:
            logits: `[draft_vocab]` of the position.

        Raises:
            BadLogits: the highest logit is not finite.
        """
        said = logits.numpy(force=True)
        highest = float(said.max())
        check_highest(highest)
        places = np.flatnonzero(said >= highest - SHORTLIST)
        values = said[places] + self._behind[places] @ self._before[before]
        return torch.from_numpy(places), torch.from_numpy(values)

    def memory_bytes(self) -> int:
        """Weights and cache."""
        own = sum(part.nbytes for part in (self._marks, self._before, self._behind))
        return own + self.backend.memory_bytes()

    def _joint(self, read: BlockRead) -> Tensor:
        return self.heads.units(read.hidden, torch.tensor(read.next_ids, device=read.hidden.device))


@dataclass(frozen=True, slots=True, eq=False)
class BlockRead:
    """What one request feeds in one round.

    Args:
        request_id: the request.
        hidden: `[count, num_layers, hidden]` of the tokens that were not read yet, the last one the anchor.
        next_ids: the token behind each of them.
        marked: rows for further candidates.
    """

    request_id: str
    hidden: Tensor
    next_ids: Sequence[int]
    marked: int

    @property
    def count(self) -> int:
        return len(self.hidden)


class _FedRows:
    """Stands where a decoder has its embedding: row i of the input that it is given for each step."""

    def __init__(self, width: int, dtype: torch.dtype, device: torch.device) -> None:
        self.rows = torch.zeros(1, width, dtype=dtype, device=device)

    def fill(self, rows: Tensor) -> None:
        self.rows = rows.to(self.rows.dtype)

    @property
    def dtype(self) -> torch.dtype:
        return self.rows.dtype

    @property
    def device(self) -> torch.device:
        return self.rows.device

    @property
    def nbytes(self) -> int:
        return 0

    def __getitem__(self, at: Tensor) -> Tensor:
        return self.rows[at]


_Made = tuple[_FedRows, Callable[[Tensor], Tensor], PagedModel, SlotStore]
"""The input of a step, the product that makes context rows, the layers, and their cache."""


def _weights(heads: BlockHeads) -> dict[str, Tensor]:
    weights = {"norm": heads.norm.detach()}
    for index, layer in enumerate(heads.layers):
        weights |= cast(TrainedLayer, layer).canonical(index)
    return weights


def _on_torch(heads: BlockHeads, loaded: LoadedModel, config: DecoderConfig) -> _Made:
    dtype, device = loaded.decoder.dtype, loaded.device
    rows = _FedRows(config.hidden_size, dtype, device)
    weights = {name: tensor.to(device, dtype) for name, tensor in _weights(heads).items()}
    weights["head"] = head_rows(loaded.decoder, heads.draft_ids())
    decoder = Decoder(config, {**weights, "embedding": cast(Tensor, rows)})
    cache = KVCache(
        config.num_layers, CACHED_TOKENS // BLOCK, BLOCK, config.num_kv_heads, config.head_dim, dtype, device
    )
    fuse = heads.fuse.to(device, dtype)
    return rows, lambda x: fuse(x.to(dtype)), DecoderRunner(decoder, cache, invariant=False), cache


def _compiled(heads: BlockHeads, loaded: LoadedModel, config: DecoderConfig) -> _Made:
    from gamaneh.backends.compiled.backend import CompiledRunner, pages_for
    from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder, Matrix

    rows = _FedRows(config.hidden_size, torch.float32, torch.device("cpu"))

    class FedDecoder(CompiledDecoder):
        def embed(self, tokens: object) -> Floats:
            return cast(Floats, rows.rows.numpy()[np.asarray(tokens, dtype=np.intp)])

    def stored(weight: Tensor) -> Matrix:
        return (INT8.quantise(weight.detach().float().numpy()),)

    weights: dict[str, Matrix | Floats] = {
        name: stored(tensor) if tensor.ndim == 2 else tensor.detach().float().numpy()
        for name, tensor in _weights(heads).items()
    }
    ids = heads.draft_ids()
    target_head = loaded.decoder.head.tensors  # type: ignore[attr-defined]
    weights["head"] = target_head if ids is None else tuple(_taken(each, ids) for each in target_head)
    weights["embedding"] = stored(torch.zeros(1, config.hidden_size))
    fuse_config = replace(config, layers=(), hidden_size=heads.fuse.in_features, vocab_size=config.hidden_size)
    fuse = CompiledDecoder(
        fuse_config,
        {
            "embedding": stored(torch.zeros(1, heads.fuse.in_features)),
            "head": stored(heads.fuse.weight),
            "norm": np.ones(heads.fuse.in_features, np.float32),
        },
    )
    decoder = FedDecoder(config, weights)
    pages = pages_for(config, CACHED_TOKENS // BLOCK, BLOCK)
    return rows, lambda x: fuse.scores(x, norm=False), CompiledRunner(decoder, pages, BLOCK), pages


def _taken(tensor: StoredTensor, ids: Tensor) -> StoredTensor:
    return tensor.take(ids.numpy().astype(np.intp))
