import random

import pytest
import torch

from gamaneh.kv import BlockPool, KVCache, KVManager, KVStats

COLLIDING = 2**61 - 1
"""Hashes like 0."""


def make_manager(num_blocks: int = 16, prefix_cache: bool = True) -> KVManager:
    pool = BlockPool(num_blocks, 4, prefix_cache)
    return KVManager(pool, KVCache(1, num_blocks, 4, 1, 1, torch.int64))


def run(manager: KVManager, request_id: str, tokens: list[int], prompt_len: int = 0, salt: str = "") -> int:
    """Admit a sequence and feed what is not cached."""
    cached = manager.admit(request_id, tokens, prompt_len, salt)
    assert manager.reserve(request_id, len(tokens) - cached)
    manager.commit(request_id, tokens, len(tokens) - cached)
    return cached


def test_an_equal_prefix_is_reused_in_full_blocks() -> None:
    manager = make_manager()
    run(manager, "a", list(range(10)))
    assert run(manager, "b", [*range(10), 99]) == 8
    assert manager.table("a").blocks[:2] == manager.table("b").blocks[:2]


def test_a_prefix_outlives_its_sequence() -> None:
    manager = make_manager()
    run(manager, "a", list(range(10)))
    manager.free("a")
    assert run(manager, "b", list(range(10))) == 8


@pytest.mark.parametrize(("length", "cached"), [(4, 0), (5, 4), (8, 4), (9, 8)])
def test_at_least_one_token_remains_to_be_fed(length: int, cached: int) -> None:
    manager = make_manager()
    run(manager, "a", list(range(12)))
    assert manager.admit("b", list(range(length))) == cached


def test_nothing_is_reused_after_a_difference() -> None:
    manager = make_manager()
    run(manager, "a", list(range(12)))
    assert manager.admit("b", [0, 1, 2, 3, 77, 5, 6, 7, 8, 9, 10, 11, 12]) == 4


def test_prefixes_that_hash_alike_are_told_apart() -> None:
    assert hash((0, 1, 2, 3)) == hash((COLLIDING, 1, 2, 3))
    manager = make_manager()
    run(manager, "a", [0, 1, 2, 3, 4])
    assert manager.admit("b", [COLLIDING, 1, 2, 3, 4]) == 0


def test_equal_blocks_after_colliding_prefixes_are_told_apart() -> None:
    manager = make_manager()
    run(manager, "a", [0, 1, 2, 3, 4, 5, 6, 7, 8])
    run(manager, "b", [COLLIDING, 1, 2, 3, 4])
    assert manager.admit("c", [COLLIDING, 1, 2, 3, 4, 5, 6, 7, 8]) == 4


def test_salts_share_nothing() -> None:
    manager = make_manager()
    run(manager, "a", list(range(10)), salt="tenant 1")
    assert manager.admit("b", list(range(10)), salt="tenant 2") == 0


def test_prompt_rows_and_generated_rows_do_not_stand_in_for_each_other() -> None:
    manager = make_manager()
    run(manager, "a", list(range(13)), prompt_len=6)
    assert manager.admit("longer prompt", list(range(13)), prompt_len=13) == 4
    assert manager.admit("resumed", list(range(13)), prompt_len=6) == 12


def test_without_a_prefix_cache_nothing_is_reused() -> None:
    manager = make_manager(prefix_cache=False)
    run(manager, "a", list(range(10)))
    assert run(manager, "b", list(range(10))) == 0
    manager.check_integrity()


def test_only_committed_tokens_are_published() -> None:
    manager = make_manager()
    manager.admit("a", [1, 2, 3])
    manager.reserve("a", 8)
    manager.commit("a", [1, 2, 3, 4, 5], 3, path=(0,))
    assert manager.admit("b", [1, 2, 3, 4, 5, 6, 7, 8, 9]) == 4


def test_a_refused_reservation_changes_nothing() -> None:
    manager = make_manager(num_blocks=2)
    run(manager, "a", [1, 2, 3])
    assert not manager.reserve("a", 6)
    assert (manager.length("a"), manager.pool.in_use) == (3, 1)
    assert manager.reserve("a", 5)


def test_the_accepted_prefix_of_a_chain_stays_where_it_is() -> None:
    manager = make_manager()
    run(manager, "a", [1, 2])
    manager.reserve("a", 4)
    assert manager.cache is not None
    manager.cache.keys[0, manager.slots("a", 2, 6)] = torch.tensor([3, 4, 5, 6]).view(4, 1, 1)
    manager.commit("a", [1, 2, 3, 4, 5], 1, path=(0, 1))
    assert manager.cache.keys[0, manager.slots("a", 2, 5)].flatten().tolist() == [3, 4, 5]


def test_the_accepted_path_of_a_tree_is_compacted() -> None:
    manager = make_manager()
    run(manager, "a", [1, 2])
    manager.reserve("a", 7)
    assert manager.cache is not None
    rows = torch.tensor([3, 40, 41, 42, 43, 44, 45])
    manager.cache.keys[0, manager.slots("a", 2, 9)] = rows.view(7, 1, 1)
    manager.commit("a", [1, 2, 3, 40, 42, 45], 1, path=(0, 2, 5))
    assert manager.cache.keys[0, manager.slots("a", 2, 6)].flatten().tolist() == [3, 40, 42, 45]


def test_commit_needs_the_tokens_up_to_the_new_length() -> None:
    manager = make_manager()
    manager.admit("a", [1, 2])
    manager.reserve("a", 3)
    with pytest.raises(ValueError, match="reach the new length 3, got 2"):
        manager.commit("a", [1, 2], 2, path=(0,))


def test_truncate_and_regrow_does_not_touch_the_blocks_of_others() -> None:
    manager = make_manager()
    run(manager, "a", list(range(9)))
    run(manager, "b", list(range(9)))
    assert manager.truncate("b", 6) == 4
    assert manager.truncate("a", 6) == 6
    manager.check_integrity()


def test_truncated_tokens_are_not_offered_for_reuse() -> None:
    manager = make_manager()
    run(manager, "a", list(range(9)))
    manager.truncate("a", 6)
    assert manager.admit("b", list(range(9))) == 4


def test_a_sequence_without_its_own_published_blocks_still_publishes_later_ones() -> None:
    manager = make_manager(num_blocks=6)
    manager.admit("a", list(range(5)))
    manager.admit("twin", list(range(5)))
    for request_id in ("a", "twin"):
        manager.reserve(request_id, 5)
        manager.commit(request_id, list(range(5)), 5)
    manager.free("a")
    run(manager, "filler", list(range(100, 116)))
    assert manager.stats.evictions == 1
    manager.reserve("twin", 3)
    manager.commit("twin", list(range(8)), 3)
    manager.check_integrity()


def test_an_id_in_use_is_refused() -> None:
    manager = make_manager()
    manager.admit("a", [1])
    with pytest.raises(ValueError, match="must not be in use, got 'a'"):
        manager.admit("a", [1])


def test_a_freed_id_can_come_back() -> None:
    manager = make_manager()
    manager.admit("a", [1])
    manager.free("a")
    assert "a" not in manager
    assert manager.admit("a", [1]) == 0


def test_hits_and_evictions_are_counted() -> None:
    manager = make_manager(num_blocks=4)
    run(manager, "a", list(range(9)))
    manager.free("a")
    run(manager, "b", list(range(9)))
    manager.free("b")
    run(manager, "c", list(range(50, 65)))
    assert manager.stats == KVStats(admitted=3, hits=1, hit_tokens=8, evictions=2)


def test_nothing_leaks_whatever_ends_a_request() -> None:
    manager = make_manager(num_blocks=24)
    generator = random.Random(0)
    for number in range(200):
        tokens = [generator.randrange(3) for _ in range(generator.randrange(1, 30))]
        cached = manager.admit(str(number), tokens)
        if not manager.reserve(str(number), len(tokens) - cached + 5):
            manager.free(str(number))
            continue
        if number % 3:
            manager.commit(str(number), tokens, len(tokens) - cached)
            manager.reserve(str(number), 6)
        if number >= 2 and str(number - 2) in manager:
            manager.free(str(number - 2))
        manager.check_integrity()
    for number in range(200):
        if str(number) in manager:
            manager.free(str(number))
    assert (len(manager), manager.pool.in_use, manager.pool.available) == (0, 0, 24)
    manager.check_integrity()


@pytest.mark.parametrize(
    ("corrupt", "message"),
    [
        (lambda manager: manager.pool.share(manager.table("a").blocks[0]), "has 2 holders, but 1 tables hold it"),
        (lambda manager: setattr(manager._sequences["a"].cursor, "depth", 0), "0 of 2 blocks published"),
        (lambda manager: setattr(manager._sequences["a"].cursor.node, "pins", 2), "has 2 pins, not 1"),
        (lambda manager: manager._sequences.pop("a"), "but 0 tables hold it"),
    ],
)
def test_planted_corruption_is_found(corrupt, message: str) -> None:  # type: ignore[no-untyped-def]
    manager = make_manager()
    run(manager, "a", list(range(9)))
    manager.check_integrity()
    corrupt(manager)
    with pytest.raises(AssertionError, match=message):
        manager.check_integrity()
