import pytest
import torch

from gamaneh.errors import OutOfMemory
from gamaneh.kv import KVCache, bytes_per_block


def numbered_cache() -> KVCache:
    """Two layers, 12 slots; every number in the cache is different."""
    cache = KVCache(2, 2, 4, 1, 3, torch.float32)
    cache.keys.copy_(torch.arange(72).view(cache.keys.shape))
    cache.values.copy_(1000 + torch.arange(72).view(cache.values.shape))
    return cache


def test_layers_are_views_to_write_to() -> None:
    cache = KVCache(2, 3, 4, 2, 8, torch.float32)
    keys, values = cache.layer(1)
    keys[5] = 1.0
    assert keys.shape == values.shape == (16, 2, 8)
    assert cache.keys[1, 5].eq(1.0).all()
    assert cache.keys[0].eq(0.0).all()


def test_bytes_count_keys_and_values_of_all_layers() -> None:
    cache = KVCache(2, 3, 4, 2, 8, torch.bfloat16)
    assert cache.nbytes == 4 * bytes_per_block(2, 4, 2, 8, torch.bfloat16) == 4 * 2 * 2 * 4 * 2 * 8 * 2


@pytest.mark.parametrize(
    ("source", "target"),
    [([5, 7], [4, 5]), ([4, 5, 6], [5, 6, 7]), ([6, 4], [4, 6]), ([], [])],
    ids=["apart", "overlapping", "swapped", "nothing"],
)
def test_moved_slots_hold_what_the_sources_held(source: list[int], target: list[int]) -> None:
    cache = numbered_cache()
    keys, values = cache.keys.clone(), cache.values.clone()
    keys[:, target], values[:, target] = cache.keys[:, source], cache.values[:, source]
    cache.move(source, target)
    assert torch.equal(cache.keys, keys)
    assert torch.equal(cache.values, values)


def test_a_cache_beyond_the_memory_is_refused_with_its_size() -> None:
    with pytest.raises(OutOfMemory, match=r"needs \d+ bytes"):
        KVCache(64, 1 << 34, 1024, 64, 128, torch.float32)
