"""Free blocks, kept as runs of consecutive ids."""

from __future__ import annotations

_WORTH_SPLITTING = 32
"""A new run is set apart from its neighbour only where this many blocks remain for the two to grow."""


class FreeExtents:
    """Free block ids as maximal runs of consecutive ids.

    Taking and adding cost O(1) for each run that is touched, whatever the number of blocks: the
    two ends of a run know each other, and runs are binned by the bit length of their size.

    Args:
        first: lowest block id.
        count: number of blocks, all free at first.
    """

    def __init__(self, first: int, count: int) -> None:
        self._first = first
        self._count = 0
        self._length_at: dict[int, int] = {}  # first id of a run -> blocks in it
        self._start_at: dict[int, int] = {}  # last id of a run -> its first id
        self._bins: list[dict[int, None]] = [{} for _ in range(count.bit_length() + 1)]
        self._insert(first, count)

    def __len__(self) -> int:
        return self._count

    def take(self, count: int, after: int | None = None) -> list[int]:
        """Take `count` of the free blocks, at best the run that continues `after`.

        The caller makes sure that so many are free. A run that cannot continue starts in the
        middle of a large one, so that the sequence in front of it has room to grow as well.
        """
        blocks = [] if after is None else self._take_at(after + 1, count)
        while len(blocks) < count:
            blocks += self._take_largest(count - len(blocks))
        return blocks

    def add(self, block: int) -> None:
        """Give a block back; it is joined with the runs on both sides."""
        start = self._start_at.get(block - 1, block)
        length = block - start + 1 + self._length_at.get(block + 1, 0)
        if start < block:
            self._remove(start)
        if start + length - 1 > block:
            self._remove(block + 1)
        self._insert(start, length)

    def runs(self) -> list[tuple[int, int]]:
        """First id and length of every run, in ascending order."""
        return sorted(self._length_at.items())

    def check_integrity(self) -> None:
        """Raise AssertionError where the run tables contradict each other."""
        previous_end = self._first - 2
        for start, length in self.runs():
            assert start > previous_end + 1, f"run at block {start} touches the run that ends at {previous_end}"
            assert length > 0, f"run at block {start} has length {length}"
            assert self._start_at.get(start + length - 1) == start, f"run at block {start} has lost its end"
            assert start in self._bins[length.bit_length()], f"run at block {start} is in the wrong bin"
            previous_end = start + length - 1
        assert len(self._start_at) == len(self._length_at), "runs have more ends than starts"
        assert sum(map(len, self._bins)) == len(self._length_at), "bins hold a run that does not exist"
        assert sum(self._length_at.values()) == self._count, f"runs do not sum up to {self._count} free blocks"

    def _take_at(self, start: int, count: int) -> list[int]:
        available = min(count, self._length_at.get(start, 0))
        return self._cut(start, 0, available) if available else []

    def _take_largest(self, count: int) -> list[int]:
        largest = next(runs for runs in reversed(self._bins) if runs)
        start = next(reversed(largest))
        length = self._length_at[start]
        spare = length - count
        split = start != self._first and spare >= _WORTH_SPLITTING
        return self._cut(start, spare // 2 if split else 0, min(count, length))

    def _cut(self, start: int, offset: int, count: int) -> list[int]:
        """Take `count` blocks out of the run at `start`, leaving what lies on both sides."""
        length = self._length_at[start]
        self._remove(start)
        self._insert(start, offset)
        self._insert(start + offset + count, length - offset - count)
        return list(range(start + offset, start + offset + count))

    def _insert(self, start: int, length: int) -> None:
        if length == 0:
            return
        self._length_at[start] = length
        self._start_at[start + length - 1] = start
        self._bins[length.bit_length()][start] = None
        self._count += length

    def _remove(self, start: int) -> None:
        length = self._length_at.pop(start)
        del self._start_at[start + length - 1]
        del self._bins[length.bit_length()][start]
        self._count -= length
