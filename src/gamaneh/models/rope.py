"""Rotary position embedding (Su et al. 2021, RoFormer, eq. 15) and the ways to stretch its context."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gamaneh.models.config import RopeSpec


def rope_tables(spec: RopeSpec, head_dim: int, num_positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines for positions 0 to `num_positions` - 1.

    The second half of a row repeats the first: element i and element i + head_dim / 2 of a head
    are one rotated pair. Every row is a function of its own position only. For `dynamic` scaling
    that means: position p uses the frequencies of a sequence of max(p + 1, original_context)
    tokens, so results do not depend on how the sequence was cut into chunks.

    Returns:
        cos, sin: float32 `[num_positions, head_dim]`.
    """
    positions = torch.arange(num_positions, dtype=torch.float32)
    angles = (positions[:, None] * rope_frequencies(spec, head_dim, positions)).double()
    scale = _attention_factor(spec)
    return _widen(angles.cos() * scale), _widen(angles.sin() * scale)


def rope_frequencies(spec: RopeSpec, head_dim: int, positions: Tensor) -> Tensor:
    """Radians per token of each pair: float32 `[head_dim / 2]`, or one such row per position for `dynamic`."""
    frequencies = _FREQUENCIES[spec.scaling](spec, head_dim, positions)
    return frequencies / torch.tensor(spec.divisors) if spec.divisors else frequencies


def _widen(halves: Tensor) -> Tensor:
    # Vector kernels round the last elements of a tensor unlike the others, so a float32 row would
    # depend on the number of rows. Rounding from float64 hides that.
    rounded = halves.float()
    return torch.cat([rounded, rounded], dim=-1)


def _plain(spec: RopeSpec, head_dim: int, _positions: Tensor) -> Tensor:
    """theta^(-2i / head_dim), `[head_dim / 2]`."""
    return 1.0 / spec.theta ** _exponents(head_dim)


def _linear(spec: RopeSpec, head_dim: int, positions: Tensor) -> Tensor:
    """Position interpolation (Chen et al. 2023): every frequency divided by the factor."""
    return _plain(spec, head_dim, positions) / spec.factor


def _dynamic(spec: RopeSpec, head_dim: int, positions: Tensor) -> Tensor:
    """Dynamic NTK-aware scaling (Peng et al. 2023, YaRN, sections 3.1 and 3.3), `[num_positions, head_dim / 2]`."""
    length = (positions.double() + 1).clamp(min=spec.original_context)
    stretch = spec.factor * length / spec.original_context - (spec.factor - 1)
    theta = spec.theta * stretch ** (head_dim / (head_dim - 2))
    return (1.0 / theta[:, None] ** _exponents(head_dim).double()).float()


def _llama3(spec: RopeSpec, head_dim: int, positions: Tensor) -> Tensor:
    """Llama 3.1: long waves are stretched, short ones kept, those between are blended linearly."""
    kept = _plain(spec, head_dim, positions)
    waves = spec.original_context * kept / (2 * math.pi)
    blend = ((waves - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)).clamp(0, 1)
    return (1 - blend) * kept / spec.factor + blend * kept


def _yarn(spec: RopeSpec, head_dim: int, positions: Tensor) -> Tensor:
    """YaRN (Peng et al. 2023, eq. 20 to 23): kept below dimension `low`, interpolated above `high`."""
    kept = _plain(spec, head_dim, positions)
    low, high = _yarn_range(spec, head_dim)
    ramp = ((torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)).clamp(0, 1)
    return ramp * kept / spec.factor + (1 - ramp) * kept


def _yarn_range(spec: RopeSpec, head_dim: int) -> tuple[float, float]:
    """Dimensions whose wave turns `beta_fast` and `beta_slow` times within the original context."""

    def dimension(turns: float) -> float:
        return head_dim * math.log(spec.original_context / (turns * 2 * math.pi)) / (2 * math.log(spec.theta))

    low, high = dimension(spec.beta_fast), dimension(spec.beta_slow)
    if spec.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    return low, high + 0.001 if high == low else high


def _attention_factor(spec: RopeSpec) -> float:
    """Scale of cos and sin, so that the attention keeps its entropy (YaRN, eq. 25)."""
    if spec.scaling != "yarn":
        return 1.0
    if spec.attention_factor is not None:
        return spec.attention_factor
    if spec.mscale and spec.mscale_all_dim:
        return _mscale(spec.factor, spec.mscale) / _mscale(spec.factor, spec.mscale_all_dim)
    return _mscale(spec.factor, 1.0)


def _mscale(factor: float, weight: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0


def _exponents(head_dim: int) -> Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim


_FREQUENCIES: Mapping[str, Callable[[RopeSpec, int, Tensor], Tensor]] = {
    "none": _plain,
    "linear": _linear,
    "dynamic": _dynamic,
    "llama3": _llama3,
    "yarn": _yarn,
}
