"""One runner for target and draft: feeds in, logits out, keys and values into the cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from gamaneh.core import Caps
from gamaneh.kv.placing import Placed
from gamaneh.models.attention import LayerCache
from gamaneh.models.batch import build_batch
from gamaneh.models.decoder import Decoder
from gamaneh.models.invariance import measured_tiling
from gamaneh.models.tiling import FREE

DISTINCT_ROWS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64)
"""Sizes of a forward that are worth telling apart when its cost is measured."""


@dataclass(slots=True)
class Forward:
    """Outcome of one forward.

    Args:
        logits: for each feed `[logit_rows, vocab]`, in the type of the weights.
        hidden: for each feed `[num_tokens, num_taps, hidden]`; empty without taps.
        broken: rows of a feed whose numbers are not finite, by the place of the feed.
    """

    logits: list[Tensor]
    hidden: list[Tensor]
    broken: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


class DecoderRunner:
    """Runs a decoder over its paged cache."""

    def __init__(self, decoder: Decoder, cache: LayerCache, *, invariant: bool) -> None:
        self.decoder, self.cache = decoder, cache
        self.tiling = measured_tiling(decoder) if invariant else FREE
        config = decoder.config
        self.caps = Caps(
            vocab_size=config.vocab_size,
            max_context=config.max_context,
            num_layers=config.num_layers,
            invariant=self.tiling.invariant,
            weight_bytes=decoder.nbytes(),
        )

    @property
    def lanes_differ(self) -> bool:
        """Prompt rows are computed in tiles of another size than generated rows."""
        return self.tiling.invariant

    @torch.inference_mode()
    def forward(self, feeds: Sequence[Placed], *, taps: Sequence[int] = (), num_layers: int | None = None) -> Forward:
        """One forward over all feeds.

        Args:
            taps: layers whose outputs are returned as hidden states; 0 is the embedding.
            num_layers: leave after this many layers, for the final norm and the head; None runs them all.
        """
        batch = build_batch(feeds, self.tiling, self.cache.num_slots, self.decoder.device)
        hidden, tapped = self.decoder.forward(batch, self.cache, taps=taps, num_layers=num_layers)
        logits = self._logits(hidden[batch.logit_index])
        return Forward(
            logits=list(torch.split(logits, batch.logit_counts)),
            hidden=[torch.stack([tap[rows] for tap in tapped], dim=1) for rows in batch.feed_rows] if tapped else [],
            broken=_broken(hidden, batch.feed_rows),
        )

    def computed_rows(self, rows: int) -> int:
        """Rows after padding to tiles; without tiles, rounded up to a few sizes worth telling apart."""
        rows = self.tiling.padded(rows)
        return next((size for size in DISTINCT_ROWS if size >= rows), -(-rows // 64) * 64)

    def _logits(self, hidden: Tensor) -> Tensor:
        """Rows that need logits are padded to tiles like generated rows, whichever lane they came from."""
        count = hidden.shape[0]
        if not self.tiling.invariant or count == 0:
            return self.decoder.logits(hidden, [count])
        padded = self.tiling.padded(count)
        if padded > count:
            hidden = torch.cat([hidden, hidden.new_zeros(padded - count, hidden.shape[1])])
        return self.decoder.logits(hidden, self.tiling.splits(padded, 0))[:count]


def _broken(hidden: Tensor, feed_rows: Sequence[Sequence[int]]) -> dict[int, tuple[int, ...]]:
    """Rows of each feed whose last hidden state is not finite."""
    if bool(hidden.sum().isfinite()):
        return {}
    bad = set((~hidden.isfinite().all(-1)).nonzero().flatten().tolist())
    found = {at: tuple(place for place, row in enumerate(rows) if row in bad) for at, rows in enumerate(feed_rows)}
    return {at: rows for at, rows in found.items() if rows}
