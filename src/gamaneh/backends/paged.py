"""A backend over a paged cache: the block manager keeps the books, a model computes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from gamaneh.core import Caps, Feed, Room
from gamaneh.kv.manager import KVManager
from gamaneh.kv.placing import TRASH_SLOT, Placed
from gamaneh.models.runner import Forward


class PagedModel(Protocol):
    """A model that reads and writes a paged cache at the slots that it is told."""

    @property
    def caps(self) -> Caps: ...

    @property
    def lanes_differ(self) -> bool:
        """Whether a prompt row and a generated row of the same token may differ in their bits, though rows are
        invariant: then the one must not stand in for the other as a prefix."""
        ...

    def forward(self, placed: Sequence[Placed], *, taps: Sequence[int] = (), num_layers: int | None = None) -> Forward:
        """Compute all rows at once, and write their keys and values."""
        ...

    def computed_rows(self, rows: int) -> int:
        """Return how many rows a forward of `rows` generated rows really computes."""
        ...


class PagedBackend:
    """Runs a model over blocks of a cache that sequences share.

    Args:
        model: computes; it holds the cache's tensors.
        kv: says which block belongs to whom.
    """

    def __init__(self, model: PagedModel, kv: KVManager) -> None:
        self.model, self.kv = model, kv

    @property
    def caps(self) -> Caps:
        return self.model.caps

    def admit(self, request_id: str, tokens: Sequence[int], *, prompt_len: int = 0, salt: str = "") -> int:
        return self.kv.admit(request_id, tokens, prompt_len if self.model.lanes_differ else 0, salt)

    def length(self, request_id: str) -> int:
        return self.kv.length(request_id)

    def reserve(self, request_id: str, extra: int) -> bool:
        return self.kv.reserve(request_id, extra)

    def room(self) -> Room:
        pool = self.kv.pool
        return Room(pool.available * pool.block_size, pool.num_blocks * pool.block_size, pool.block_size)

    def verify(self, feeds: Sequence[Feed], *, taps: Sequence[int] = (), num_layers: int | None = None) -> None:
        if not feeds:
            return
        placed = [self._place(feed) for feed in feeds]
        forward = self.model.forward(placed, taps=taps, num_layers=num_layers)
        for at, feed in enumerate(feeds):
            feed.scores = forward.logits[at]
            feed.hidden = forward.hidden[at] if forward.hidden else None
            feed.broken = forward.broken.get(at, ())

    def commit(self, feeds: Sequence[Feed]) -> None:
        for feed in feeds:
            self.kv.commit(feed.request_id, feed.tokens, feed.count, feed.kept)

    def truncate(self, request_id: str, length: int) -> int:
        return self.kv.truncate(request_id, length)

    def release(self, request_ids: Iterable[str], *, publish: bool = True) -> None:
        for request_id in request_ids:
            if not publish:
                self.kv.withdraw(request_id)
            self.kv.free(request_id)

    def computed_rows(self, rows: int) -> int:
        return self.model.computed_rows(rows)

    def time_rows(self, rows: int, clock: Callable[[], float]) -> float:
        started = clock()
        self.model.forward([Placed([0] * rows, 0, 0, [TRASH_SLOT] * rows, logit_rows=rows)])
        return clock() - started

    def memory_bytes(self) -> int:
        return self.caps.weight_bytes + (0 if self.kv.cache is None else self.kv.cache.nbytes)

    def check_integrity(self) -> None:
        self.kv.check_integrity()

    def _place(self, feed: Feed) -> Placed:
        table = self.kv.table(feed.request_id)
        start = table.length + feed.written
        tokens = [*feed.tokens[start : start + feed.count], *feed.draft.tokens]
        return Placed(
            tokens=tokens,
            start=start,
            prompt_len=feed.prompt_len,
            slots=table.slots(0, start + len(tokens)),
            first_slot=table.run(),
            parents=feed.draft.parents,
            logit_rows=feed.logit_rows,
            blocks=table.blocks,
        )
