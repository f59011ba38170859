"""Hidden states of a request's last tokens, kept for the proposers that read them."""

from __future__ import annotations

from torch import Tensor


class HiddenWindow:
    """The tapped hidden states of the last tokens in the cache.

    Args:
        size: most rows that are kept, at least 1.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._buffer: Tensor | None = None
        self._used = 0
        self._end = 0

    def add(self, start: int, rows: Tensor) -> None:
        """Append `[num_rows, num_taps, hidden]` of the tokens from `start` on; a gap forgets what was before it."""
        end = start + len(rows)
        if start != self._end:
            self._used = 0
        rows = rows[-self._size :]
        if self._buffer is None:
            # Twice the size: old rows are moved once in `size` tokens, and not in every step.
            self._buffer = rows.new_empty(2 * self._size, *rows.shape[1:])
        if self._used + len(rows) > len(self._buffer):
            self._make_room(self._buffer, self._size - len(rows))
        self._buffer[self._used : self._used + len(rows)] = rows
        self._used, self._end = self._used + len(rows), end

    def last(self) -> Tensor | None:
        """`[num_known, num_taps, hidden]`, or None where nothing was added."""
        return None if self._buffer is None else self._buffer[max(self._used - self._size, 0) : self._used]

    def clear(self) -> None:
        """Forget everything."""
        self._buffer, self._used, self._end = None, 0, 0

    def _make_room(self, buffer: Tensor, kept: int) -> None:
        """Move the last `kept` rows to the front."""
        buffer[:kept] = buffer[self._used - kept : self._used].clone()
        self._used = kept
