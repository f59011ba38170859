"""Keyed noise: randomness is a function of (seed, position, use, token), not a stream.

A draw therefore does not depend on the batch, on the device, on the size of the vocabulary, or on
how many draws others made. The generator is counter-based: the finaliser of SplitMix64 (Steele,
Lea and Flood 2014) applied to a key plus a counter.

A token's noise is a whole number of 63 bits, small where the noise is large. Its top 16 come from a
word that four neighbouring tokens share, the other 47 from a word of its own: the top bits of a whole
vocabulary cost a quarter of the hashing, and they suffice to rule out nearly every token.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch
from torch import Tensor

from gamaneh.core import Use
from gamaneh.errors import BadLogits
from gamaneh.sampling import blocks

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31

_USE_KEYS = {Use.TARGET: 1, Use.DRAFT: 2, Use.ACCEPT: 3, Use.RESIDUAL: 4}
_UNIFORM_COUNTER = 1 << 40

_SHARE_BITS = 2
"""Four tokens take their coarse bits from one word."""
_COARSE_BITS = 16
_FINE_BITS = 47
_UNIT = 2.0**-63
_BELOW_ONE = 1.0 - 2.0**-53

SMALL_ROW = 2048
"""Rows up to this long are evaluated in full: that is faster than looking for what may be left out."""
FIRST_BLOCKS = 8
_MOST = 1e300
"""Larger than any sum of score and noise."""
SLACK = 1e-6
"""More than the rounding of a bound, so that no token is ruled out by it."""


def fold(seed: int, value: int) -> int:
    """A new seed that depends on both, as good as independent of `seed`."""
    return _mix(_mix(seed & _MASK) + value * _GOLDEN)


def uniform(seed: int, position: int, use: Use) -> float:
    """A uniform draw in (0, 1)."""
    word = _mix(key(seed, position, use) + _UNIFORM_COUNTER * _GOLDEN)
    return ((word >> 12) + 0.5) * 2.0**-52


def gumbel(seed: int, position: int, use: Use, token_ids: Tensor) -> Tensor:
    """Standard Gumbel noise of these tokens, float64, in the shape of `token_ids`."""
    return gumbel_of(key(seed, position, use), token_ids)


def gumbel_of(key: int | Tensor, token_ids: Tensor) -> Tensor:
    """The same from a key; several rows take keys `[num_rows, 1]`, as `signed` makes them."""
    counters = torch.stack((_shared_counters(token_ids >> _SHARE_BITS), token_ids))
    shared, own = _words(key, counters)
    coarse = shared >> ((token_ids & ((1 << _SHARE_BITS) - 1)) * _COARSE_BITS)
    # Read as a signed 16-bit number, the highest coarse bits are the rarest: 0x7FFF counts as 0.
    rarity = (coarse & 0xFFFF) ^ 0x7FFF
    return _to_gumbel((rarity << _FINE_BITS) | (own & ((1 << _FINE_BITS) - 1)))


def draw(scores: Tensor, seed: int, position: int, use: Use) -> int:
    """Sample a token from the softmax of `scores` `[vocab]`: argmax of scores + Gumbel noise.

    Equal sums go to the lowest id. Tokens with score -inf are never drawn.

    Raises:
        BadLogits: the highest score is NaN, infinite or -inf.
    """
    if scores.shape[0] > SMALL_ROW:
        return _draw_long(scores, seed, position, use)
    check_highest(float(scores.max()))
    everything = torch.arange(scores.shape[0], device=scores.device)
    return int((scores.double() + gumbel(seed, position, use, everything)).argmax())


def draw_several(scores: Tensor, seed: int, position: int, use: Use, count: int) -> list[tuple[float, int]]:
    """The `count` tokens of highest score + noise, each behind that sum, best first; `draw` gives the first.

    Tokens with score -inf are left out, so that there may be fewer.

    Raises:
        BadLogits: the highest score is NaN, infinite or -inf.
    """
    if scores.shape[0] <= SMALL_ROW:
        check_highest(float(scores.max()))
        return _top(scores, torch.arange(scores.shape[0], device=scores.device), seed, position, use, count)
    bounds, rest = _block_bounds(scores, key(seed, position, use))
    first = bounds.topk(min(max(FIRST_BLOCKS, count), bounds.shape[0])).indices
    found = _top(scores, torch.cat((blocks.ids_of(first), rest)), seed, position, use, count)
    bounds[first] = -math.inf
    floor = found[-1][0] if len(found) == count else -_MOST
    others = (bounds >= floor - SLACK).nonzero().squeeze(1)
    if others.shape[0] > 0:
        found += _top(scores, blocks.ids_of(others), seed, position, use, count)
    return sorted(found, key=_best_first)[:count]


def check_highest(highest: float) -> None:
    """Refuse a row whose highest score is not a finite number.

    Raises:
        BadLogits: it is not.
    """
    if not math.isfinite(highest):
        raise BadLogits(f"the highest logit of a row must be finite, got {highest}")


def _draw_long(scores: Tensor, seed: int, position: int, use: Use) -> int:
    # A block can hold the winner only if its highest score plus its highest noise reaches the best
    # sum known. The blocks with the highest bounds give a best sum that few others reach.
    bounds, rest = _block_bounds(scores, key(seed, position, use))
    first = bounds.topk(min(FIRST_BLOCKS, bounds.shape[0])).indices
    best, token = _best(scores, torch.cat((blocks.ids_of(first), rest)), seed, position, use)
    bounds[first] = -math.inf
    others = (bounds >= best - SLACK).nonzero().squeeze(1)
    if others.shape[0] > 0:
        other_best, other = _best(scores, blocks.ids_of(others), seed, position, use)
        best, token = min((best, token), (other_best, other), key=lambda found: (-found[0], found[1]))
    return token


def _block_bounds(scores: Tensor, key: int) -> tuple[Tensor, Tensor]:
    """Upper bounds `[num_blocks]` of score + noise in each block, and the ids left over."""
    whole, rest = blocks.split(scores)
    highest = whole.amax(1)
    check_highest(float(torch.cat((highest, scores[rest])).max()))
    coarse = coarse_bits(key, scores.shape[0], scores.device)[: whole.numel()].view(whole.shape).amax(1)
    return highest.double() + highest_gumbel(coarse), rest


def coarse_bits(key: int | Tensor, size: int, device: torch.device) -> Tensor:
    """Of each token below `size`, int16: the larger, the larger its noise. Keys `[num_rows, 1]` give rows."""
    words = _words(key, _all_shared_counters((size >> _SHARE_BITS) + 1, device))
    return words.view(torch.int16)[..., :size]


def highest_gumbel(coarse: Tensor) -> Tensor:
    """The most noise that a token with these coarse bits can have."""
    return _to_gumbel((0x7FFF - coarse.long()) << _FINE_BITS)


def _best(scores: Tensor, ids: Tensor, seed: int, position: int, use: Use) -> tuple[float, int]:
    """The highest score + noise among `ids`, and the lowest id that has it."""
    sums = scores[ids].double() + gumbel(seed, position, use, ids)
    best = sums.max()
    return float(best), int(ids[sums == best].min())


def _top(scores: Tensor, ids: Tensor, seed: int, position: int, use: Use, count: int) -> list[tuple[float, int]]:
    """The highest `count` sums of score + noise among `ids` with their tokens; none of -inf."""
    sums = scores[ids].double() + gumbel(seed, position, use, ids)
    values, order = sums.topk(min(count, ids.shape[0]))
    pairs = zip(values.tolist(), ids[order].tolist(), strict=True)
    return sorted(((value, token) for value, token in pairs if value != -math.inf), key=_best_first)


def _best_first(found: tuple[float, int]) -> tuple[float, int]:
    return -found[0], found[1]


def _to_gumbel(rarity: Tensor) -> Tensor:
    # -log(-log(u)) with u = 1 - rare: floating point is finest near 0, so that the large noise that
    # decides an argmax keeps all 63 bits.
    rare = (rarity.double() + 1.0).mul_(-_UNIT).clamp_(min=-_BELOW_ONE)
    return rare.log1p_().neg_().log_().neg_()


def key(seed: int, position: int, use: Use) -> int:
    """What all noise of one use at one position is made from."""
    return fold(fold(seed, position), _USE_KEYS[use])


def _mix(word: int) -> int:
    word &= _MASK
    for shift, factor in _ROUNDS:
        word = (word ^ (word >> shift)) * factor & _MASK
    return word ^ (word >> _LAST_SHIFT)


def _shared_counters(groups: Tensor) -> Tensor:
    # Negative, so that they never meet the tokens' own counters.
    return ~groups


def _words(key: int | Tensor, counters: Tensor) -> Tensor:
    """`_mix(key + counter * golden)` of every counter, int64."""
    words = counters * signed(_GOLDEN) + (signed(key) if isinstance(key, int) else key)
    for shift, factor in _ROUNDS:
        words = words.bitwise_xor_(_shifted(words, shift)).mul_(signed(factor))
    return words.bitwise_xor_(_shifted(words, _LAST_SHIFT))


def _shifted(words: Tensor, shift: int) -> Tensor:
    # int64 shifts copy the sign; the mask turns that into the logical shift.
    return (words >> shift).bitwise_and_((1 << (64 - shift)) - 1)


def signed(word: int) -> int:
    """A word of 64 bits as int64 holds it."""
    return word - (1 << 64) if word >> 63 else word


@lru_cache(maxsize=8)
def _all_shared_counters(count: int, device: torch.device) -> Tensor:
    return _shared_counters(torch.arange(count, device=device))
