"""A smaller language model with the target's tokenizer guesses the next tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, Draft, Needs, ProposalRow, Verdict
from gamaneh.kv.manager import KVManager
from gamaneh.models.batch import Feed
from gamaneh.models.runner import Runner

CHUNK = 256
"""Tokens that one request feeds in one forward of the draft model while it catches up."""


@dataclass(slots=True)
class _Cached:
    """Tokens whose keys and values the draft model holds; the first `agreed` are known to be the request's."""

    tokens: list[int]
    agreed: int


@dataclass(slots=True)
class _Path:
    """One request's draft while it grows."""

    row: ProposalRow
    tokens: list[int] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)
    stopped: bool = False

    @property
    def sequence(self) -> list[int]:
        return [*self.row.tokens, *self.tokens]


class DraftModelProposer:
    """Drafts a chain per request, all requests of a round in one batch.

    The draft model feeds whatever its cache lacks, `tokens[cached_len:]`: the prompt at first, the
    last token of a fully accepted draft, or all that was emitted while drafting was off.

    Args:
        runner: runs the draft model.
        kv: manages the draft model's cache.
        vocab_size: size of the target's vocabulary, padding included.
        sampling: `request` draws as the request does, `greedy` takes the most likely token.
        min_confidence: a path ends where the draft model's most likely token is less likely than
            this. The test must not look at the token that was drawn: leaving out unlikely draws
            would change the law that `rejection` and `block` divide by, and with it the output's.
    """

    name = "draft_model"

    def __init__(
        self,
        runner: Runner,
        kv: KVManager,
        *,
        vocab_size: int,
        sampling: Literal["request", "greedy"] = "request",
        min_confidence: float = 0.0,
    ) -> None:
        self.runner, self.kv, self.vocab_size = runner, kv, vocab_size
        self.sampling, self.min_confidence = sampling, min_confidence
        self.needs = Needs(probs=sampling == "request")
        self._cached: dict[str, _Cached] = {}

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One chain per row; empty where the draft model's context or cache is full."""
        paths = [_Path(row) for row in rows]
        growing = [path for path in paths if self._start(path)]
        while growing:
            for path, logits in zip(growing, self._next_logits(growing), strict=True):
                self._grow(path, logits)
            growing = [path for path in growing if self._goes_on(path)]
        return [_draft(path) for path in paths]

    def observe(self, rows: Sequence[ProposalRow], verdicts: Sequence[Verdict]) -> None:
        """Nothing to do: the next `propose` compares its cache with the tokens."""

    def drop(self, request_ids: Iterable[str]) -> None:
        for request_id in request_ids:
            if self._cached.pop(request_id, None) is not None:
                self.kv.free(request_id)

    def memory_bytes(self) -> int:
        cache = self.kv.cache
        return self.runner.weight_bytes + (0 if cache is None else cache.nbytes)

    def _start(self, path: _Path) -> bool:
        """Bring the cache back to what it shares with the request's tokens."""
        request_id, tokens = path.row.request_id, path.row.tokens
        if request_id not in self._cached:
            self.kv.admit(request_id, tokens, salt=request_id)
            self._cached[request_id] = _Cached([], 0)
        cached = self._cached[request_id]
        shared = min(_common_prefix(cached.tokens, tokens, cached.agreed), len(tokens) - 1)
        if shared < len(cached.tokens):
            shared = self.kv.truncate(request_id, shared)
            del cached.tokens[shared:]
        cached.agreed = shared
        return self._has_room(path)

    def _has_room(self, path: _Path) -> bool:
        request_id, length = path.row.request_id, len(path.row.tokens) + len(path.tokens)
        extra = length - len(self._cached[request_id].tokens)
        return length < self.runner.max_context and self.kv.reserve(request_id, extra)

    def _goes_on(self, path: _Path) -> bool:
        return not path.stopped and len(path.tokens) < path.row.max_depth and self._has_room(path)

    def _next_logits(self, paths: Sequence[_Path]) -> list[Tensor]:
        """Feed what is pending and return `[vocab]` logits after the last token of each path."""
        behind = [path for path in paths if self._num_pending(path) > CHUNK]
        while behind:
            self._feed(behind, limit=CHUNK)
            behind = [path for path in behind if self._num_pending(path) > CHUNK]
        return [logits[-1] for logits in self._feed(paths, limit=CHUNK)]

    def _num_pending(self, path: _Path) -> int:
        return len(path.row.tokens) + len(path.tokens) - len(self._cached[path.row.request_id].tokens)

    def _feed(self, paths: Sequence[_Path], *, limit: int) -> list[Tensor]:
        counts = [min(self._num_pending(path), limit) for path in paths]
        for path in paths:
            self.kv.reserve(path.row.request_id, self._num_pending(path))
        logits = self.runner.forward([self._make_feed(p, count) for p, count in zip(paths, counts, strict=True)]).logits
        for path, count in zip(paths, counts, strict=True):
            cached, sequence = self._cached[path.row.request_id].tokens, path.sequence
            cached += sequence[len(cached) : len(cached) + count]
            self.kv.commit(path.row.request_id, cached, count)
        return logits

    def _make_feed(self, path: _Path, count: int) -> Feed:
        request_id = path.row.request_id
        start, table = len(self._cached[request_id].tokens), self.kv.table(request_id)
        tokens = path.sequence[start : start + count]
        return Feed(tokens, start, 0, table.slots(0, start + count), table.run())

    def _grow(self, path: _Path, logits: Tensor) -> None:
        """Choose the next token from `[vocab]` logits, or end the path."""
        row = path.row
        logits = _fit(logits.float(), self.vocab_size)
        if path.tokens and self.min_confidence > 0 and float(logits.softmax(0).amax()) < self.min_confidence:
            path.stopped = True
            return
        scores = row.sampler.scores(logits, path.tokens)
        position = len(row.tokens) + len(path.tokens)
        token = int(scores.argmax()) if self.sampling == "greedy" else row.sampler.pick(scores, position, row.use)
        path.tokens.append(token)
        if row.want_probs and self.needs.probs:
            path.probs.append(row.sampler.probs(scores))


def _draft(path: _Path) -> Draft:
    if not path.tokens:
        return EMPTY_DRAFT
    return Draft.chain(path.tokens, torch.stack(path.probs) if path.probs else None)


def _fit(logits: Tensor, vocab_size: int) -> Tensor:
    """Crop or extend to the target's vocabulary: the two may be padded differently."""
    missing = vocab_size - logits.shape[-1]
    if missing <= 0:
        return logits[:vocab_size]
    return torch.cat([logits, logits.new_full((missing,), float("-inf"))])


def _common_prefix(first: Sequence[int], second: Sequence[int], known: int) -> int:
    """Length of the common prefix, of which the first `known` tokens need not be compared."""
    shortest = min(len(first), len(second))
    return next((at for at in range(known, shortest) if first[at] != second[at]), shortest)
