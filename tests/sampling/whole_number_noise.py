"""The meaning of the vectorised noise, one token at a time in whole numbers; quicker for a handful of tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gamaneh.core import Use
from gamaneh.sampling import noise

WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(word: int) -> int:
    word = ((word & WORD) ^ ((word & WORD) >> 30)) * 0xBF58476D1CE4E5B9 & WORD
    word = (word ^ (word >> 27)) * 0x94D049BB133111EB & WORD
    return word ^ (word >> 31)


def token_gumbel(key: int, token: int) -> float:
    shared, own = mix(key + (-1 - token // 4) * GOLDEN), mix(key + token * GOLDEN)
    rarity = ((shared >> (16 * (token % 4)) & 0xFFFF) ^ 0x7FFF) << 47 | own & ((1 << 47) - 1)
    return -math.log(-math.log1p(-min((rarity + 1) * 2.0**-63, 1 - 2.0**-53)))


def gumbel(seed: int, position: int, use: Use, token_ids: Tensor) -> Tensor:
    """What `noise.gumbel` returns, for ids `[num_tokens]`."""
    key = noise.key(seed, position, use)
    return torch.tensor([token_gumbel(key, token) for token in token_ids.tolist()], dtype=torch.float64)
