"""The tokens that heads draft from: a smaller output matrix is read faster, and rare tokens are seldom guessed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from gamaneh.errors import InvalidOption
from gamaneh.train.samples import Sample


def frequent_tokens(samples: Sequence[Sample], size: int, vocab_size: int) -> Tensor:
    """`[size]` ids in ascending order: those that come most often among the learned tokens, then among all.

    Raises:
        InvalidOption: the target's vocabulary is smaller.
    """
    if not 1 <= size <= vocab_size:
        raise InvalidOption("draft_vocab", f"must be from 1 to the target's {vocab_size}", size)
    learned: Counter[int] = Counter()
    read: Counter[int] = Counter()
    for sample in samples:
        read.update(sample.tokens)
        for start, stop in sample.spans:
            learned.update(sample.tokens[start:stop])
    order = sorted(range(vocab_size), key=lambda token: (-learned[token], -read[token], token))
    return torch.tensor(sorted(order[:size]))


def coverage(samples: Sequence[Sample], ids: Tensor) -> float:
    """Share of the learned tokens that are among `ids`."""
    known = set(ids.tolist())
    tokens = [token for sample in samples for start, stop in sample.spans for token in sample.tokens[start:stop]]
    return sum(token in known for token in tokens) / max(len(tokens), 1)
