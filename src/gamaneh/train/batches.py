"""Which samples are learned from together: of similar length, about the same number of tokens in each batch."""

from __future__ import annotations

import random
from collections.abc import Sequence

from gamaneh.train.samples import Sample


def make_batches(samples: Sequence[Sample], tokens: int, seed: int) -> list[list[int]]:
    """Indexes of the samples of each batch; padding included, a batch holds `tokens` tokens at most, or one sample."""
    order = list(range(len(samples)))
    random.Random(seed).shuffle(order)
    order.sort(key=lambda index: len(samples[index].tokens))
    batches: list[list[int]] = [[]]
    for index in order:
        # Sorted by length, so the newest is the longest, to which all are padded.
        if batches[-1] and len(samples[index].tokens) * (len(batches[-1]) + 1) > tokens:
            batches.append([])
        batches[-1].append(index)
    return batches


def epoch_order(count: int, seed: int, epoch: int) -> list[int]:
    """In which order the batches come in one pass over the data."""
    order = list(range(count))
    random.Random(f"{seed}-{epoch}").shuffle(order)
    return order
