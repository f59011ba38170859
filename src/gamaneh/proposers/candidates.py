"""Candidates chosen from rows of logits by the request's own sampling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from gamaneh.core import ProposalRow
from gamaneh.errors import BadLogits
from gamaneh.sampling import blocks
from gamaneh.sampling.noise import check_highest

DraftSampling = Literal["request", "greedy"]
"""`request` draws as the request does, `greedy` takes the most likely token."""

Found = list[tuple[float, int]]
"""Tokens, best first, each behind a number that ranks it."""


def allowed_scores(row: ProposalRow, offered: Tensor, path: Sequence[int]) -> Tensor | None:
    """The request's scores `[vocab]` behind `path`; None where it allows none of the `offered` tokens.

    Args:
        offered: float32 logits `[vocab]`, -inf for tokens that cannot be drafted.

    Raises:
        BadLogits: the highest logit is not finite.
    """
    check_highest(float(offered.max()))
    try:
        scores = row.sampler.scores(offered, path)
    except BadLogits:  # all that is offered is masked
        return None
    highest = float(scores.max())
    if highest == -math.inf:
        return None
    check_highest(highest)
    return scores


def pick(row: ProposalRow, scores: Tensor, position: int, sampling: DraftSampling) -> int:
    """The candidate for `position`, from scores that allow one."""
    if sampling == "greedy":
        return blocks.argmax(scores)
    return row.sampler.pick(scores, position, row.use)


def best(row: ProposalRow, scores: Tensor, position: int, count: int, sampling: DraftSampling) -> Found:
    """The `count` best candidates, fewer where fewer are allowed; `pick` takes the first of them.

    Each comes behind its score, with noise where it was drawn.
    """
    if sampling == "greedy":
        values, ids = blocks.largest(scores, count)
        return [
            (value, token) for value, token in zip(values.tolist(), ids.tolist(), strict=True) if value != -math.inf
        ]
    return row.sampler.ranked(scores, position, row.use, count)


def likely(row: ProposalRow, scores: Tensor, position: int, count: int, sampling: DraftSampling) -> Found:
    """The same behind logarithms of their chances to be the target's; a single one counts as certain.

    Of greedy drafts that is the drafter's own probability. Of draws it is a matter of how close the sums of
    score and noise lie, the best that is left out among them: the target's scores differ from the drafter's,
    its noise does not.
    """
    if count == 1:
        return [(0.0, pick(row, scores, position, sampling))]
    certain = sampling == "greedy" or row.sampler.greedy
    found = best(row, scores, position, count if certain else count + 1, sampling)
    rivals = scores if certain else torch.tensor([value for value, _ in found])
    total = float(rivals.float().logsumexp(0))
    return [(min(value - total, 0.0), token) for value, token in found[:count]]
