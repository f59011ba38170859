"""What a draft model has read of each request, and what it has to read yet."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from torch import Tensor

from gamaneh.core import Backend, Draft, Feed
from gamaneh.prefix import common_prefix

CHUNK = 256
"""Tokens that one request feeds in one forward of the draft model while it catches up."""


@dataclass(frozen=True, slots=True)
class DraftReading:
    """What the draft model is to know of one request, in its own tokens.

    Args:
        context: tokens of the request, at least one. Not to be changed.
        drafted: tokens behind them, one after another; they stay in the cache as a guess.
        nodes: tokens of a tree behind all these, in node order; they do not stay.
        parents: parent of each node, `ROOT` for the first ones.
        logit_rows: how many of the last rows need logits.
        keep_last: the last of `context` and `drafted` stays in the cache; a tree is read together
            with the token that it grows from, so there it does not.
        unchanged: first tokens of `context` that are those of the last round; None for all that there were.
    """

    request_id: str
    context: Sequence[int]
    drafted: Sequence[int] = ()
    nodes: Sequence[int] = ()
    parents: tuple[int, ...] = ()
    logit_rows: int = 1
    keep_last: bool = True
    unchanged: int | None = None

    @property
    def length(self) -> int:
        """Tokens in a row, the tree apart."""
        return len(self.context) + len(self.drafted)


@dataclass(slots=True)
class _Cached:
    """Tokens whose keys and values are in the cache; the first `agreed` are known to be the request's."""

    tokens: list[int]
    agreed: int


class DraftReader:
    """Runs a draft model over a cache of its own that it keeps in step with the requests.

    The model feeds whatever the cache lacks, `tokens[cached_len:]`: the prompt at first, the last
    token of a fully accepted draft, or all that was emitted while drafting was off.

    Args:
        backend: where the draft model runs.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self._cached: dict[str, _Cached] = {}

    def begin(self, reading: DraftReading) -> None:
        """Bring the cache back to what it shares with the request's tokens; the last one stays pending."""
        request_id, context = reading.request_id, reading.context
        if request_id not in self._cached:
            self.backend.admit(request_id, context, salt=request_id)
            self._cached[request_id] = _Cached([], 0)
        cached = self._cached[request_id]
        known = cached.agreed if reading.unchanged is None else min(cached.agreed, reading.unchanged)
        shared = min(common_prefix(cached.tokens, context, known), len(context) - 1)
        if shared < len(cached.tokens):
            shared = self.backend.truncate(request_id, shared)
            del cached.tokens[shared:]
        cached.agreed = shared

    def has_room(self, reading: DraftReading) -> bool:
        """Whether context and cache of the draft model have room for all of it, which is then reserved."""
        inside = reading.length + len(reading.nodes) < self.backend.caps.max_context
        return inside and self._reserve(reading)

    def read(self, readings: Sequence[DraftReading]) -> list[Tensor]:
        """Placed what is pending, all requests in one forward; `[logit_rows, vocab]` of each one's last rows.

        Whoever lacks more than `CHUNK` tokens catches up first.
        """
        while behind := [reading for reading in readings if self._num_pending(reading) > CHUNK]:
            self._run([self._feed(reading, CHUNK, logit_rows=0) for reading in behind])
        feeds = [
            self._feed(reading, self._num_pending(reading), reading.nodes, reading.parents, reading.logit_rows)
            for reading in readings
        ]
        self._run(feeds, [reading.keep_last for reading in readings])
        return [feed.scores for feed in feeds if feed.scores is not None]

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget these requests."""
        for request_id in request_ids:
            if self._cached.pop(request_id, None) is not None:
                self.backend.release([request_id], publish=False)

    def memory_bytes(self) -> int:
        """Weights and cache."""
        return self.backend.memory_bytes()

    def _num_pending(self, reading: DraftReading) -> int:
        return reading.length - len(self._cached[reading.request_id].tokens)

    def _reserve(self, reading: DraftReading) -> bool:
        return self.backend.reserve(reading.request_id, self._num_pending(reading) + len(reading.nodes))

    def _feed(
        self,
        reading: DraftReading,
        count: int,
        nodes: Sequence[int] = (),
        parents: tuple[int, ...] = (),
        logit_rows: int = 1,
    ) -> Feed:
        """`count` pending tokens, then the tree. What was committed gave the reservation back."""
        self._reserve(reading)
        tokens = [*reading.context, *reading.drafted]
        return Feed(
            request_id=reading.request_id,
            tokens=tokens,
            count=count,
            draft=Draft(tuple(nodes), parents),
            logit_rows=logit_rows,
        )

    def _run(self, feeds: Sequence[Feed], keep_last: Sequence[bool] = ()) -> None:
        """One forward; the pending tokens count as read, the last one only where it is kept."""
        self.backend.verify(feeds)
        for feed, keep in zip(feeds, keep_last or [True] * len(feeds), strict=True):
            feed.count -= not keep
            cached = self._cached[feed.request_id].tokens
            cached += feed.tokens[len(cached) : len(cached) + feed.count]
        self.backend.commit(feeds)
