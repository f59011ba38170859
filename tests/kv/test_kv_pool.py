from itertools import pairwise

import pytest

from gamaneh.errors import OutOfMemory
from gamaneh.kv import TRASH_BLOCK, BlockPool


def publish(pool: BlockPool, block: int, name: str) -> None:
    pool.publish(block, pool.prefixes.extend(pool.prefixes.top, name))


def lookup(pool: BlockPool, name: str) -> int | None:
    node = pool.prefixes.find(pool.prefixes.top, name)
    return None if node is None else node.block


def test_the_trash_block_is_never_handed_out() -> None:
    assert TRASH_BLOCK not in BlockPool(10, 4).allocate(10)


def test_a_short_allocation_changes_nothing() -> None:
    pool = BlockPool(4, 4)
    pool.allocate(3)
    with pytest.raises(OutOfMemory, match="2 asked, 1 available"):
        pool.allocate(2)
    assert (pool.in_use, pool.available) == (3, 1)


def test_a_block_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(2, 4)
    (block,) = pool.allocate(1)
    pool.share(block)
    pool.release(block)
    assert pool.in_use == 1
    pool.release(block)
    assert pool.in_use == 0


def test_releasing_a_block_without_holder_is_refused() -> None:
    pool = BlockPool(2, 4)
    with pytest.raises(AssertionError, match="block 1 is released but has no holder"):
        pool.release(1)


def test_a_released_published_block_can_be_shared_again() -> None:
    pool = BlockPool(2, 4)
    (block,) = pool.allocate(1)
    publish(pool, block, "a")
    pool.release(block)
    assert lookup(pool, "a") == block
    pool.share(block)
    assert pool.holders(block) == 1
    pool.check_integrity()


def test_the_least_recently_used_block_is_evicted_first() -> None:
    pool = BlockPool(3, 4)
    blocks = pool.allocate(3)
    for block, name in zip(blocks, "abc", strict=True):
        publish(pool, block, name)
    for block in blocks:
        pool.release(block)
    pool.share(blocks[0])
    pool.release(blocks[0])
    pool.allocate(1)
    assert [lookup(pool, name) for name in "abc"] == [blocks[0], None, blocks[2]]
    assert pool.evictions == 1


def test_blocks_in_use_are_never_evicted() -> None:
    pool = BlockPool(2, 4)
    kept, other = pool.allocate(2)
    publish(pool, kept, "kept")
    publish(pool, other, "other")
    pool.release(other)
    assert pool.allocate(1) == [other]
    assert lookup(pool, "kept") == kept


def test_the_first_block_published_under_a_prefix_stays() -> None:
    pool = BlockPool(2, 4)
    first, second = pool.allocate(2)
    publish(pool, first, "a")
    publish(pool, second, "a")
    assert lookup(pool, "a") == first
    pool.release(second)
    assert pool.evictable == 0


def test_nothing_is_published_without_a_prefix_cache() -> None:
    pool = BlockPool(1, 4, prefix_cache=False)
    (block,) = pool.allocate(1)
    assert not pool.publish(block, pool.prefixes.extend(pool.prefixes.top, "a"))


def test_a_claimed_block_is_not_offered_any_more() -> None:
    pool = BlockPool(1, 4)
    (block,) = pool.allocate(1)
    publish(pool, block, "a")
    assert pool.claim(block)
    assert lookup(pool, "a") is None
    pool.check_integrity()


def test_a_shared_block_cannot_be_claimed() -> None:
    pool = BlockPool(1, 4)
    (block,) = pool.allocate(1)
    publish(pool, block, "a")
    pool.share(block)
    assert not pool.claim(block)
    assert lookup(pool, "a") == block


def test_growth_stays_consecutive_while_others_grow_beside_it() -> None:
    pool = BlockPool(100_000, 16)
    tables = [pool.allocate(2) for _ in range(16)]
    for _ in range(500):
        for table in tables:
            table += pool.allocate(1, after=table[-1])
    assert all(table == list(range(table[0], table[0] + len(table))) for table in tables)


def test_blocks_of_evicted_sequences_are_reused_as_runs() -> None:
    pool = BlockPool(256, 16)
    for block in reversed(pool.allocate(256)):
        publish(pool, block, str(block))
        pool.release(block)
    table = pool.allocate(1)
    for _ in range(15):
        table += pool.allocate(1, after=table[-1])
    assert sum(after != before + 1 for before, after in pairwise(table)) <= 3


@pytest.mark.parametrize(("num_blocks", "block_size"), [(0, 16), (4, 0)])
def test_a_pool_without_blocks_is_refused(num_blocks: int, block_size: int) -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        BlockPool(num_blocks, block_size)


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda pool: pool._holders.__setitem__(1, 0), "a block is lost"),
        (lambda pool: pool._holders.__setitem__(3, 1), "in use at once"),
        (lambda pool: pool._published.pop(1), "cannot be found by its prefix"),
        (lambda pool: setattr(pool._published[1], "block", 2), "published under a node that holds 2"),
        (lambda pool: pool.prefixes.top.children.clear(), "cannot be found by its prefix"),
        (lambda pool: pool.prefixes.extend(pool.prefixes.top, "idle"), "is kept for nothing"),
        (lambda pool: pool._evictable.__setitem__(2, None), "in use at once"),
        (lambda pool: setattr(pool._free, "_count", 9), "do not sum up to 9"),
    ],
)
def test_planted_corruption_is_found(corrupt, message: str) -> None:  # type: ignore[no-untyped-def]
    pool = BlockPool(4, 4)
    block, _ = pool.allocate(2)
    publish(pool, block, "a")
    pool.check_integrity()
    corrupt(pool)
    with pytest.raises(AssertionError, match=message):
        pool.check_integrity()
