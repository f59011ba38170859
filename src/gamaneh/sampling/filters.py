"""Temperature, top-k, top-p and min-p: which tokens survive. The most likely one always does."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gamaneh.options import SamplingParams
from gamaneh.sampling import blocks
from gamaneh.sampling.noise import check_highest

_DISTANCES = (4.0, 8.0, 16.0, math.inf)
"""How far below the highest score the nucleus is looked for, in turn."""

_LEAST_TEMPERATURE = 1e-30
"""Lower ones count as this one: in float32 they would be 0, and 0 / 0 is no score."""


def apply_filters(row: Tensor, params: SamplingParams) -> Tensor:
    """Logits `[vocab]` -> scores `[vocab]`, -inf where filtered; returns `row` itself if nothing is asked.

    The order is temperature, top-k, top-p, min-p; each sees what the one before left. Among equal
    scores the lowest ids are kept.

    Raises:
        BadLogits: the highest logit is not finite.
    """
    filtered = 0 < params.top_k < row.shape[0] or params.top_p < 1.0 or params.min_p > 0.0
    if params.temperature == 1.0 and not filtered:
        return row
    highest = float(row.max())
    check_highest(highest)
    # From the highest down, so that a tiny temperature cannot overflow.
    row = (row - highest).div_(max(params.temperature, _LEAST_TEMPERATURE))
    if not filtered:
        return row
    values, ids = _survivors(row, params)
    return torch.full_like(row, -math.inf).index_copy_(0, ids, values)


def _survivors(row: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Scores and ids that pass; the highest score of `row` is 0."""
    floor = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    if 0 < params.top_k < row.shape[0]:
        values, ids = blocks.largest(row, params.top_k)
        total = values.logsumexp(0)
    elif params.top_p < 1.0:
        total = row.logsumexp(0)
        values, ids = _head(row, total, params.top_p)
    else:
        ids = blocks.ids_from(row, floor)
        return row[ids], ids
    if params.top_p < 1.0:
        values, ids = _nucleus(values, ids, total, params.top_p)
    return values[values >= floor], ids[values >= floor]


def _head(row: Tensor, total: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """Descending scores and their ids, enough of them to hold `top_p` of the probability."""
    for distance in _DISTANCES:
        ids = blocks.ids_from(row, -distance)
        if float((row[ids] - total).exp().sum()) > top_p:
            break
    values, order = row[ids].sort(descending=True, stable=True)
    return values, ids[order]


def _nucleus(values: Tensor, ids: Tensor, total: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    probs = (values - total).double().exp()
    kept = probs.cumsum(0) - probs < top_p
    return values[kept], ids[kept]
