"""What the target computed about the training texts, once, in a file that is mapped into memory.

One row per token: its hidden states, then the token that the target would have put behind it and the
log-sum-exp of its logits there. The last two are zero where what follows is not learned from.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from gamaneh.backends.choose import is_compiled
from gamaneh.files import append_to
from gamaneh.heads.target import mark_target
from gamaneh.models.loading import LoadedModel
from gamaneh.train.reading import TOKENS_AT_ONCE, TargetReader, grouped
from gamaneh.train.runs import Tick
from gamaneh.train.samples import Sample

SCORE_BYTES = 8
"""Of a token id (int32) and a log-sum-exp (float32)."""


@dataclass(frozen=True, slots=True)
class FeatureBatch:
    """Padded texts and what the target computed about them.

    Args:
        tokens: `[batch, length]` token ids.
        hidden: `[batch, length, num_layers, hidden]` of all stored layers.
        learned: `[batch, length]`, true where a token may be learned from.
        greedy: `[batch, length]` the target's most likely token behind each.
        logsumexp: `[batch, length]` float32, of the target's logits for the token behind each.
    """

    tokens: Tensor
    hidden: Tensor
    learned: Tensor
    greedy: Tensor
    logsumexp: Tensor

    def to(self, device: torch.device) -> FeatureBatch:
        """The same on another device."""
        return FeatureBatch(*(getattr(self, name).to(device) for name in self.__slots__))


class FeatureStore:
    """Rows of all samples, one after the other.

    Args:
        path: a whole file of them.
        layers: layers whose outputs are stored.
        hidden_size: width of each.
        dtype: type of each number.
    """

    def __init__(
        self, path: Path, samples: Sequence[Sample], layers: Sequence[int], hidden_size: int, dtype: torch.dtype
    ) -> None:
        self.samples, self.layers = list(samples), tuple(layers)
        self._hidden_size, self._dtype = hidden_size, dtype
        self._starts = [0, *accumulate(len(sample.tokens) for sample in samples)]
        size = self._starts[-1] * self.row_bytes
        self._rows = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8).view(-1, self.row_bytes)

    @property
    def row_bytes(self) -> int:
        return row_bytes(len(self.layers), self._hidden_size, self._dtype)

    def columns(self, layers: Sequence[int]) -> list[int]:
        """Where these layers stand in `FeatureBatch.hidden`."""
        return [self.layers.index(layer) for layer in layers]

    def batch(self, indexes: Sequence[int]) -> FeatureBatch:
        """These samples, padded behind their ends."""
        samples = [self.samples[index] for index in indexes]
        shape = len(samples), max(len(sample.tokens) for sample in samples)
        tokens = torch.zeros(shape, dtype=torch.long)
        learned = torch.zeros(shape, dtype=torch.bool)
        rows = torch.zeros(*shape, self.row_bytes, dtype=torch.uint8)
        for at, (index, sample) in enumerate(zip(indexes, samples, strict=True)):
            length = len(sample.tokens)
            tokens[at, :length] = torch.tensor(sample.tokens)
            rows[at, :length] = self._rows[self._starts[index] : self._starts[index + 1]]
            for start, stop in sample.spans:
                learned[at, start:stop] = True
        split = self.row_bytes - SCORE_BYTES
        hidden = rows[..., :split].contiguous().view(self._dtype)
        if self._dtype == torch.float16:
            hidden = hidden.float()
        return FeatureBatch(
            tokens=tokens,
            hidden=hidden.view(*shape, len(self.layers), self._hidden_size),
            learned=learned,
            greedy=rows[..., split : split + 4].contiguous().view(torch.int32).squeeze(-1).long(),
            logsumexp=rows[..., split + 4 :].contiguous().view(torch.float32).squeeze(-1),
        )


def row_bytes(num_layers: int, hidden_size: int, dtype: torch.dtype) -> int:
    """Bytes that one token takes in the file."""
    return num_layers * hidden_size * dtype.itemsize + SCORE_BYTES


def stored_dtype(loaded: LoadedModel) -> torch.dtype:
    """The type that hidden states are kept in: half of what the compiled backend computes, else the target's own."""
    return torch.float16 if is_compiled(loaded) else loaded.decoder.dtype


def compute_features(
    loaded: LoadedModel, samples: Sequence[Sample], layers: Sequence[int], folder: Path, tick: Tick
) -> FeatureStore:
    """The features of these samples, computed unless `folder` has them; a part that it has is not computed again.

    Args:
        layers: of the target; its last layer has to be among them.
        tick: called with tokens done and tokens in all.

    Raises:
        ModelError: the file cannot be written.
    """
    config, dtype = loaded.config, stored_dtype(loaded)
    path = folder / f"features-{_key(loaded, samples, layers)}.bin"
    size = row_bytes(len(layers), config.hidden_size, dtype)
    ends = list(accumulate(len(sample.tokens) for sample in samples))
    done = _resume(path, ends, size)
    reader = TargetReader(loaded, max(len(sample.tokens) for sample in samples))
    tick(ends[done - 1] if done else 0, ends[-1])
    for rows, number in _rows(reader, samples[done:], layers, dtype):
        done += number
        append_to(path, rows.numpy().tobytes())
        tick(ends[done - 1], ends[-1])
    return FeatureStore(path, samples, layers, config.hidden_size, dtype)


def _key(loaded: LoadedModel, samples: Sequence[Sample], layers: Sequence[int]) -> str:
    """Names a file of features, so that two of one folder are not mixed up."""
    digest = hashlib.sha256()
    digest.update(json.dumps([mark_target(loaded).fingerprint, str(loaded.dtype), list(layers)]).encode())
    for sample in samples:
        digest.update(json.dumps([sample.tokens, sample.spans]).encode())
    return digest.hexdigest()[:16]


def _resume(path: Path, ends: Sequence[int], size: int) -> int:
    """Samples that the file holds whole; what stands behind them is cut off."""
    if not path.is_file():
        return 0
    tokens = path.stat().st_size // size
    done = sum(end <= tokens for end in ends)
    with path.open("r+b") as file:
        file.truncate(size * (ends[done - 1] if done else 0))
    return done


def _rows(
    reader: TargetReader, samples: Sequence[Sample], layers: Sequence[int], dtype: torch.dtype
) -> Iterator[tuple[Tensor, int]]:
    """`[num_tokens, row_bytes]` of some consecutive samples at a time, and how many they are."""
    for group in grouped([len(sample.tokens) for sample in samples], TOKENS_AT_ONCE):
        part = samples[group.start : group.stop]
        hidden = torch.cat(reader.read([sample.tokens for sample in part], layers))
        greedy, sums = _scores(reader, hidden[:, layers.index(reader.decoder.config.num_layers)], part)
        columns = [_kept(hidden, dtype).flatten(1), greedy[:, None].int(), sums[:, None]]
        yield torch.cat([column.contiguous().cpu().view(torch.uint8) for column in columns], dim=1), len(part)


def _kept(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """Outliers of the last layers are cut to what float16 holds; a norm follows wherever they are read."""
    if dtype == torch.float16:
        largest = torch.finfo(dtype).max
        hidden = hidden.clamp(-largest, largest)
    return hidden.to(dtype)


def _scores(reader: TargetReader, last_hidden: Tensor, samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """Zero but where the next token is learned from, which saves the output matrix for prompts."""
    needed = torch.tensor(_before_learned(samples), device=last_hidden.device)
    greedy = torch.zeros(len(last_hidden), dtype=torch.long, device=last_hidden.device)
    sums = torch.zeros(len(last_hidden), device=last_hidden.device)
    greedy[needed], sums[needed] = reader.scores(last_hidden[needed])
    return greedy, sums


def _before_learned(samples: Sequence[Sample]) -> list[int]:
    """Rows, counted through all samples, behind which a token stands that may be learned from."""
    starts = accumulate((len(sample.tokens) for sample in samples), initial=0)
    spans = [(first, span) for first, sample in zip(starts, samples, strict=False) for span in sample.spans]
    return [first + at - 1 for first, (start, stop) in spans for at in range(max(start, 1), stop)]
