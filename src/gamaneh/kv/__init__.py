"""KV cache: blocks, tensors, and the manager that gives sequences room and reuses prefixes."""

from gamaneh.kv.cache import KVCache, bytes_per_block
from gamaneh.kv.manager import KVManager, KVStats
from gamaneh.kv.pool import TRASH_BLOCK, BlockPool
from gamaneh.kv.table import BlockTable

__all__ = ["TRASH_BLOCK", "BlockPool", "BlockTable", "KVCache", "KVManager", "KVStats", "bytes_per_block"]
