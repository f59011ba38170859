from hypothesis import given, settings
from hypothesis import strategies as st

from gamaneh.kv.extents import FreeExtents


def test_everything_is_free_at_first_as_one_run() -> None:
    assert FreeExtents(1, 8).runs() == [(1, 8)]


def test_taking_continues_the_run_after_a_block() -> None:
    free = FreeExtents(1, 100)
    first = free.take(3)
    assert free.take(2, after=first[-1]) == [first[-1] + 1, first[-1] + 2]


def test_a_new_run_leaves_room_for_the_run_before_it() -> None:
    free = FreeExtents(1, 100)
    first, second = free.take(3), free.take(3)
    assert free.take(20, after=first[-1]) == list(range(first[-1] + 1, first[-1] + 21))
    assert free.take(20, after=second[-1]) == list(range(second[-1] + 1, second[-1] + 21))


def test_runs_are_put_together_when_no_run_is_long_enough() -> None:
    free = FreeExtents(1, 9)
    blocks = free.take(9)
    for block in (1, 2, 5, 6, 9):
        free.add(blocks[block - 1])
    assert sorted(free.take(5)) == [1, 2, 5, 6, 9]


def test_added_blocks_join_their_neighbours() -> None:
    free = FreeExtents(1, 5)
    free.take(5)
    for block in (2, 4, 3):
        free.add(block)
    assert free.runs() == [(2, 3)]


@given(st.lists(st.integers(0, 1000), max_size=80), st.integers(1, 40))
@settings(max_examples=100, deadline=None)
def test_any_sequence_of_takes_and_adds_keeps_the_blocks(choices: list[int], count: int) -> None:
    free = FreeExtents(1, count)
    taken: list[int] = []
    for choice in choices:
        if choice % 2 and taken:
            free.add(taken.pop(choice % len(taken)))
        else:
            taken += free.take(min(choice % 5, len(free)), after=taken[-1] if taken else None)
        free.check_integrity()
        rest = [block for start, length in free.runs() for block in range(start, start + length)]
        assert sorted(taken + rest) == list(range(1, count + 1))
