import pytest

from gamaneh.errors import OutOfMemory
from gamaneh.kv import BlockPool, BlockTable


def filled(pool: BlockPool, length: int) -> BlockTable:
    table = BlockTable(pool)
    table.reserve(length)
    table.commit(length)
    return table


def test_a_reservation_covers_the_extra_tokens_in_whole_blocks() -> None:
    table = filled(BlockPool(8, 4), 3)
    table.reserve(2)
    assert len(table.blocks) == 2


def test_a_reservation_that_fits_takes_no_block() -> None:
    table = filled(BlockPool(8, 4), 3)
    table.reserve(1)
    assert len(table.blocks) == 1


def test_a_short_reservation_changes_nothing() -> None:
    table = filled(BlockPool(2, 4), 4)
    blocks = list(table.blocks)
    with pytest.raises(OutOfMemory):
        table.reserve(9)
    assert table.blocks == blocks


def test_slots_follow_the_blocks() -> None:
    table = BlockTable(BlockPool(8, 4))
    table.blocks = [3, 1]
    assert table.slots(2, 7) == [14, 15, 4, 5, 6]


def test_slots_beyond_the_reservation_are_refused() -> None:
    table = filled(BlockPool(8, 4), 4)
    with pytest.raises(ValueError, match="within the 4 reserved positions, got 3 to 5"):
        table.slots(3, 5)


def test_a_run_is_the_first_slot_of_consecutive_blocks() -> None:
    table = filled(BlockPool(8, 4), 8)
    assert table.run() == table.slots(0, 1)[0]


def test_there_is_no_run_across_a_gap_until_it_is_given_back() -> None:
    pool = BlockPool(3, 4)
    first, second, third = (filled(pool, 4) for _ in range(3))
    lowest, _, highest = sorted([first, second, third], key=lambda table: table.blocks[0])
    highest.free()
    lowest.reserve(4)
    assert lowest.run() is None
    lowest.commit(0)
    assert lowest.run() is not None


def test_an_empty_table_has_no_run() -> None:
    assert BlockTable(BlockPool(1, 4)).run() is None


def test_commit_gives_the_rest_of_the_reservation_back() -> None:
    pool = BlockPool(8, 4)
    table = BlockTable(pool)
    table.reserve(20)
    table.commit(5)
    assert (table.length, pool.in_use) == (5, 2)


def test_commit_beyond_the_reservation_is_refused() -> None:
    table = filled(BlockPool(8, 4), 4)
    with pytest.raises(ValueError, match="within 0 reserved positions, got 1"):
        table.commit(1)


def test_truncate_gives_whole_blocks_back() -> None:
    pool = BlockPool(8, 4)
    table = filled(pool, 14)
    assert table.truncate(5) == 5
    assert pool.in_use == 2


def test_truncate_into_a_shared_block_falls_back_to_its_border() -> None:
    pool = BlockPool(8, 4)
    table = filled(pool, 8)
    other = BlockTable(pool)
    other.adopt(table.blocks[0])
    assert other.truncate(2) == 0
    assert (other.blocks, pool.holders(table.blocks[0])) == ([], 1)


def test_truncate_to_more_than_there_is_is_refused() -> None:
    table = filled(BlockPool(8, 4), 4)
    with pytest.raises(ValueError, match="at most the 4 committed tokens, got 5"):
        table.truncate(5)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("length", 9, "9 tokens in 2 blocks"),
        ("blocks", [1, 1], "occurs twice"),
        ("_gaps", 1, "1 in the books"),
    ],
)
def test_planted_corruption_is_found(field: str, value: object, message: str) -> None:
    table = filled(BlockPool(8, 4), 8)
    setattr(table, field, value)
    with pytest.raises(AssertionError, match=message):
        table.check_integrity()
