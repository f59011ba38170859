"""Temperature, top-k, top-p and min-p: which tokens survive. The most likely one always does."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from gamaneh.options import SamplingParams
from gamaneh.sampling import blocks
from gamaneh.sampling.noise import check_highest

DISTANCES = (4.0, 8.0, 16.0, math.inf)
"""How far below the highest score the nucleus is looked for, in turn."""

LEAST_TEMPERATURE = 1e-30
"""Lower ones count as this one: in float32 they would be 0, and 0 / 0 is no score."""


def apply_filters(row: Tensor, params: SamplingParams) -> Tensor:
    """Logits `[vocab]` -> scores `[vocab]`, -inf where filtered; returns `row` itself if nothing is asked.

    The order is temperature, top-k, top-p, min-p; each sees what the one before left. Among equal
    scores the lowest ids are kept.

    Raises:
        BadLogits: the highest logit is not finite.
    """
    filtered = has_filters(params, row.shape[0])
    if params.temperature == 1.0 and not filtered:
        return row
    highest = float(row.max())
    check_highest(highest)
    # From the highest down, so that a tiny temperature cannot overflow.
    row = (row - highest).div_(max(params.temperature, LEAST_TEMPERATURE))
    if not filtered:
        return row
    values, ids = _survivors(row, params)
    return torch.full_like(row, -math.inf).index_copy_(0, ids, values)


def has_filters(params: SamplingParams, vocab_size: int) -> bool:
    """Whether these parameters can leave out a token."""
    return 0 < params.top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0


def _survivors(row: Tensor, params: SamplingParams) -> tuple[Tensor, Tensor]:
    """Scores and ids that pass; the highest score of `row` is 0."""
    floor = math.log(params.min_p) if params.min_p > 0.0 else -math.inf
    if 0 < params.top_k < row.shape[0]:
        values, ids = blocks.largest(row, params.top_k)
        if params.top_p < 1.0:
            kept, _ = _nucleus(values, values.logsumexp(0), params.top_p)
            values, ids = values[kept], ids[kept]
    elif params.top_p < 1.0:
        values, ids = _head(row, row.logsumexp(0), params.top_p)
    else:
        ids = blocks.ids_from(row, floor)
        values = row[ids]
    return values[values >= floor], ids[values >= floor]


def _head(row: Tensor, total: Tensor, top_p: float) -> tuple[Tensor, Tensor]:
    """The nucleus, looked for among the highest scores first."""
    for distance in DISTANCES:
        ids = blocks.ids_from(row, -distance)
        values, order = row[ids].sort(descending=True, stable=True)
        kept, found = _nucleus(values, total, top_p)
        if found > top_p:
            break
    return values[kept], ids[order][kept]


def _nucleus(values: Tensor, total: Tensor, top_p: float) -> tuple[Tensor, float]:
    """Which of descending values have less than `top_p` before them; and the probability of all of them."""
    probs = (values - total).double().exp()
    sums = probs.cumsum(0)
    return sums - probs < top_p, float(sums[-1])
