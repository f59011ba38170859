"""The compiled decoder behind the paged backend: rows with their places in, scores out."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder, FedSpan
from gamaneh.backends.compiled.pages import Pages
from gamaneh.backends.compiled.vectors import BLOCK
from gamaneh.core import Caps
from gamaneh.errors import InvalidOption
from gamaneh.kv.placing import Placed
from gamaneh.models.config import DecoderConfig
from gamaneh.models.runner import Forward


def pages_for(config: DecoderConfig, num_blocks: int, block_size: int) -> Pages:
    """Return a cache for so many blocks of the block manager.

    Raises:
        InvalidOption: `block_size` is no multiple of 16.
        OutOfMemory: the machine cannot hold it.
    """
    check_blocks(block_size)
    blocks = (num_blocks + 1) * (block_size // BLOCK) - 1
    return Pages(config.num_layers, blocks, config.num_kv_heads, config.head_dim)


def check_blocks(block_size: int) -> None:
    """
    Raises:
        InvalidOption: `block_size` is no multiple of 16.
    """
    if block_size % BLOCK:
        raise InvalidOption("block_size", f"must be a multiple of {BLOCK} for the compiled backend", block_size)


class CompiledRunner:
    """Runs a compiled decoder over its cache.

    Args:
        block_size: tokens in a block of the block manager, a multiple of 16.
    """

    lanes_differ = False
    """All rows are computed alike, so generated rows may be reused as prompt rows."""

    def __init__(self, decoder: CompiledDecoder, pages: Pages, block_size: int = BLOCK) -> None:
        self.decoder, self.pages = decoder, pages
        self._per_block = block_size // BLOCK
        config = decoder.config
        self.caps = Caps(
            config.vocab_size,
            config.max_context,
            config.num_layers,
            invariant=True,
            weight_bytes=decoder.nbytes(),
            own_threads=True,
        )

    @torch.inference_mode()
    def forward(self, placed: Sequence[Placed], *, taps: Sequence[int] = (), num_layers: int | None = None) -> Forward:
        """Compute all rows in one step.

        Args:
            taps: layers whose outputs are returned as hidden states, in ascending order; 0 is the embedding.
            num_layers: leave after this many layers, for the final norm and the head; None runs them all.
        """
        spans = [self._span(rows) for rows in placed]
        order = sorted(set(taps))
        outcome = self.decoder.step(spans, self.pages, taps=order, num_layers=num_layers)
        counts = [len(span.tokens) for span in spans]
        return Forward(
            logits=list(torch.split(outcome.logits, [span.logit_rows for span in spans])),
            hidden=[] if outcome.hidden is None else list(torch.split(outcome.hidden, counts)),
            broken=self._broken(counts),
        )

    def computed_rows(self, rows: int) -> int:
        """Three rows are computed as four, and seven as eight; beyond 16, sizes are not worth telling apart."""
        return rows if rows <= 16 else -(-rows // 16) * 16

    def _span(self, rows: Placed) -> FedSpan:
        blocks = rows.blocks
        if self._per_block > 1:
            blocks = [block * self._per_block + at for block in blocks for at in range(self._per_block)]
        if not blocks:  # timed rows without a sequence: everything goes to the trash block
            blocks = [0] * ((rows.start + len(rows.tokens)) // BLOCK + 1)
        return FedSpan(rows.tokens, rows.start, blocks, rows.parents, rows.logit_rows)

    def _broken(self, counts: Sequence[int]) -> dict[int, tuple[int, ...]]:
        """Rows of each feed whose last hidden state is not finite."""
        hidden = self.decoder.last_hidden(sum(counts))
        if np.isfinite(hidden.sum()):
            return {}
        found: dict[int, tuple[int, ...]] = {}
        first = 0
        bad = np.isnan(hidden * np.float32(0)).any(axis=1)
        for at, count in enumerate(counts):
            rows = tuple(int(row) for row in np.flatnonzero(bad[first : first + count]))
            if rows:
                found[at] = rows
            first += count
        return found
