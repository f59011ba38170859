"""The target reads whole texts: hidden states of any of its layers, and what it would have said next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from gamaneh.backends.choose import runner_for
from gamaneh.kv.placing import Placed
from gamaneh.models.loading import LoadedModel

TOKENS_AT_ONCE = 2048
"""In one forward, unless a single text may be longer."""

ROWS_AT_ONCE = 256
"""Rows of logits that are in memory at a time."""

BLOCK = 16
"""Tokens in a block of the cache."""


class TargetReader:
    """Runs texts through a model in the backend that it was loaded for, each from its beginning and alone.

    Args:
        longest: tokens of the longest text.
    """

    def __init__(self, loaded: LoadedModel, longest: int) -> None:
        self.decoder = loaded.decoder
        self._num_blocks = -(-max(TOKENS_AT_ONCE, longest) // BLOCK)
        self._runner, _ = runner_for(loaded, self._num_blocks, BLOCK, invariant=False)

    def read(self, texts: Sequence[Sequence[int]], layers: Sequence[int]) -> list[Tensor]:
        """For each text `[length, num_layers, hidden]` outputs of `layers`; as many texts at once as fit."""
        groups = grouped([_whole_blocks(len(text)) for text in texts], self._num_blocks)
        return [hidden for group in groups for hidden in self._read(texts[group.start : group.stop], layers)]

    def _read(self, texts: Sequence[Sequence[int]], layers: Sequence[int]) -> list[Tensor]:
        placed, used = [], 1
        for text in texts:
            blocks = range(used, used + _whole_blocks(len(text)))
            used = blocks.stop
            first = BLOCK * blocks.start
            slots = range(first, first + len(text))
            placed.append(Placed(text, 0, 0, slots, first_slot=first, logit_rows=0, blocks=blocks))
        order = sorted(set(layers))
        columns = [order.index(layer) for layer in layers]
        return [hidden[:, columns] for hidden in self._runner.forward(placed, taps=order).hidden]

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


def _whole_blocks(length: int) -> int:
    return -(-length // BLOCK)


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
