"""The target reads whole texts: hidden states of any of its layers, and what it would have said next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gamaneh.kv.cache import KVCache
from gamaneh.kv.placing import Placed
from gamaneh.models.batch import build_batch
from gamaneh.models.decoder import Decoder
from gamaneh.models.tiling import FREE

TOKENS_AT_ONCE = 2048
"""In one forward, unless a single text may be longer."""

ROWS_AT_ONCE = 256
"""Rows of logits that are in memory at a time."""


class TargetReader:
    """Runs texts through a decoder, each from its beginning and independent of the others.

    Args:
        longest: tokens of the longest text.
    """

    def __init__(self, decoder: Decoder, longest: int) -> None:
        self.decoder = decoder
        config = decoder.config
        slots = max(TOKENS_AT_ONCE, longest)
        self._cache = KVCache(
            config.num_layers, slots, 1, config.num_kv_heads, config.head_dim, decoder.dtype, decoder.device
        )

    def read(self, texts: Sequence[Sequence[int]], layers: Sequence[int]) -> list[Tensor]:
        """For each text `[length, num_layers, hidden]` outputs of `layers`; as many texts at once as fit."""
        groups = grouped(list(map(len, texts)), self._cache.num_blocks)
        return [hidden for group in groups for hidden in self._read(texts[group.start : group.stop], layers)]

    @torch.inference_mode()
    def _read(self, texts: Sequence[Sequence[int]], layers: Sequence[int]) -> list[Tensor]:
        feeds, used = [], 1
        for text in texts:
            feeds.append(Placed(text, 0, 0, range(used, used + len(text)), first_slot=used, logit_rows=0))
            used += len(text)
        batch = build_batch(feeds, FREE, self._cache.num_slots, self.decoder.device)
        _, tapped = self.decoder.forward(batch, self._cache, taps=layers)
        by_layer = dict(zip(sorted(set(layers)), tapped, strict=True))
        stacked = torch.stack([by_layer[layer] for layer in layers], dim=1)
        return [stacked[rows] for rows in batch.feed_rows]

    @torch.inference_mode()
    def scores(self, last_hidden: Tensor) -> tuple[Tensor, Tensor]:
        """The target's next token, and the logarithm of what its probabilities are divided by.

        Args:
            last_hidden: `[num_rows, hidden]` outputs of the last layer.

        Returns:
            `[num_rows]` most likely token ids, and `[num_rows]` float32 log-sum-exp of the logits.
        """
        parts = [self._scores(rows) for rows in torch.split(last_hidden, ROWS_AT_ONCE)]
        return torch.cat([tokens for tokens, _ in parts]), torch.cat([sums for _, sums in parts])

    def _scores(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        logits = self.decoder.logits(rows, [len(rows)]).float()
        return logits.argmax(-1), logits.logsumexp(-1)


def grouped(lengths: Sequence[int], limit: int) -> Iterator[range]:
    """Consecutive indexes whose lengths add up to at most `limit`; a longer one stands alone."""
    start = total = 0
    for at, length in enumerate(lengths):
        if at > start and total + length > limit:
            yield range(start, at)
            start, total = at, 0
        total += length
    if start < len(lengths):
        yield range(start, len(lengths))
