"""Hidden states of a request's last tokens, kept for the proposers that read them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


class HiddenWindow:
    """The tapped hidden states of the last tokens in the cache.

    Args:
        size: most rows that are kept, at least 1.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._buffer: Tensor | None = None
        self._array: np.ndarray[Any, Any] | None = None
        self._used = 0
        self._end = 0

    def add(self, start: int, rows: Tensor) -> None:
        """Append `[num_rows, num_taps, hidden]` of the tokens from `start` on; a gap forgets what was before it."""
        count = len(rows)
        if start != self._end:
            self._used = 0
        self._end = start + count
        if count > self._size:
            rows, count = rows[-self._size :], self._size
        if self._buffer is None:
            # Twice the size: old rows are moved once in `size` tokens, and not in every step.
            self._buffer = rows.new_empty(2 * self._size, *rows.shape[1:])
            self._array = _array(self._buffer)
        if self._used + count > 2 * self._size:
            self._make_room(self._buffer, self._size - count)
        if self._array is None:
            self._buffer[self._used : self._used + count] = rows
        else:
            self._array[self._used : self._used + count] = _array(rows)
        self._used += count

    def last(self) -> Tensor | None:
        """`[num_known, num_taps, hidden]`, or None where nothing was added."""
        if self._buffer is None or not self._used:
            return None
        return self._buffer[max(self._used - self._size, 0) : self._used]

    def clear(self) -> None:
        """Forget everything, and keep the memory for what comes next."""
        self._used, self._end = 0, 0

    def _make_room(self, buffer: Tensor, kept: int) -> None:
        """Move the last `kept` rows to the front."""
        buffer[:kept] = buffer[self._used - kept : self._used].clone()
        self._used = kept


def _array(rows: Tensor) -> np.ndarray[Any, Any] | None:
    """The same memory for numpy, which copies on one thread: torch waits for all of its own; None off the CPU."""
    if rows.device.type != "cpu":
        return None
    found: np.ndarray[Any, Any] = (rows.view(torch.int16) if rows.element_size() == 2 else rows).numpy()
    return found
