"""The cache of a drafting layer keeps what it holds while it grows, and lays rows out as the layer reads them."""

from __future__ import annotations

import torch

from gamaneh.heads.dense_cache import INITIAL_CAPACITY, DenseCache
from gamaneh.heads.level import Strand, build_level

CPU = torch.device("cpu")


def filled(cache: DenseCache, row: int, count: int) -> torch.Tensor:
    """Write `count` places of a row and return the keys."""
    keys = torch.randn(count, 2, 4)
    cache.write(torch.arange(row * cache.capacity, row * cache.capacity + count), keys, -keys)
    return keys


def test_rows_survive_growth_in_both_directions() -> None:
    cache = DenseCache(2, 4, torch.float32, CPU)
    rows = [cache.take() for _ in range(2)]
    written = {row: filled(cache, row, 5 + row) for row in rows}
    rows += [cache.take() for _ in range(5)]
    cache.fit(INITIAL_CAPACITY + 1)
    assert rows == list(range(7))
    assert cache.capacity == 2 * INITIAL_CAPACITY
    for row, keys in written.items():
        own_keys, own_values = cache.read([row], len(keys))
        assert torch.equal(own_keys[0].transpose(0, 1), keys)
        assert torch.equal(own_values[0].transpose(0, 1), -keys)


def test_the_lowest_free_row_is_taken_first() -> None:
    cache = DenseCache(2, 4, torch.float32, CPU)
    rows = [cache.take() for _ in range(4)]
    cache.give_back(rows[2])
    cache.give_back(rows[1])
    assert cache.take() == 1


def test_neighbours_and_others_read_alike() -> None:
    cache = DenseCache(2, 4, torch.float32, CPU)
    rows = [cache.take() for _ in range(4)]
    for row in rows:
        filled(cache, row, 6)
    together, apart = cache.read([1, 2, 3], 6)[0], [cache.read([row], 6)[0][0] for row in (1, 2, 3)]
    assert torch.equal(together, torch.stack(apart))
    assert torch.equal(cache.read([3, 0], 6)[0], torch.stack([apart[2], cache.read([0], 6)[0][0]]))


def test_a_single_row_needs_no_mask() -> None:
    level = build_level([Strand.chain(1, 4, [9], 30)], 16, CPU)
    assert (level.tokens.tolist(), level.positions.tolist(), level.slots.tolist()) == ([9], [30], [20])
    assert level.mask is None
    assert level.places is None


def test_strands_of_different_length_are_padded_and_see_their_own_past() -> None:
    level = build_level([Strand.chain(0, 2, [5, 6], 2), Strand.chain(3, 1, [7], 10)], 8, CPU)
    assert level.slots.tolist() == [2, 3, 25]
    assert level.places is not None
    assert level.places.tolist() == [0, 1, 2]
    assert level.mask is not None
    assert level.mask[:, 0].int().tolist() == [[[1, 1, 1, 0], [1, 1, 1, 1]], [[1, 1, 0, 0], [1, 0, 0, 0]]]


def test_nodes_of_a_tree_see_their_ancestors_and_themselves() -> None:
    strand = Strand(0, 5, [1, 2], [4, 4], [3, 3], [[3, 5], [4, 6]])
    level = build_level([strand], 8, CPU)
    assert level.mask is not None
    assert level.mask[0, 0].int().tolist() == [[1, 1, 1, 1, 0, 1, 0], [1, 1, 1, 0, 1, 0, 1]]
