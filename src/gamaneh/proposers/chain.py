"""Candidates chosen from rows of logits by the request's own sampling, and the chain that grows from them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, Draft, ProposalRow
from gamaneh.errors import BadLogits
from gamaneh.sampling import blocks, noise

DraftSampling = Literal["request", "greedy"]
"""`request` draws as the request does, `greedy` takes the most likely token."""


def choose(row: ProposalRow, scores: Tensor, depth: int, count: int, sampling: DraftSampling) -> list[int]:
    """The best candidates at a depth (1 for the first), noise included, best first.

    There may be fewer than `count`, and none where none of the tokens that can be drafted is allowed.

    Raises:
        BadLogits: the highest score is NaN or infinite.
    """
    position = len(row.tokens) + depth - 1
    try:
        if sampling == "greedy":
            return _likeliest(scores, count)
        if count == 1:
            return [row.sampler.pick(scores, position, row.use)]
        return [token for _, token in row.sampler.ranked(scores, position, row.use, count)]
    except BadLogits:
        if float(scores.max()) == -math.inf:
            return []
        raise


def _likeliest(scores: Tensor, count: int) -> list[int]:
    values, ids = blocks.largest(scores, count)
    noise.check_highest(float(values[0]))
    return [token for value, token in zip(values.tolist(), ids.tolist(), strict=True) if value != -math.inf]


@dataclass(slots=True)
class Chain:
    """One request's draft while it grows.

    Args:
        min_confidence: the chain ends where the most likely token is less likely than this. The test must not
            look at the token that was drawn: leaving out unlikely draws would change the law that `rejection`
            and `block` divide by, and with it the output's.
    """

    row: ProposalRow
    sampling: DraftSampling = "request"
    min_confidence: float = 0.0
    tokens: list[int] = field(default_factory=list)
    probs: list[Tensor] = field(default_factory=list)

    @property
    def sequence(self) -> list[int]:
        """The request's tokens and the candidates."""
        return [*self.row.tokens, *self.tokens]

    def grow(self, logits: Tensor) -> bool:
        """Add the token that follows by float32 logits `[vocab]`; False where the chain ends."""
        if self.min_confidence > 0.0 and float(logits.softmax(0).amax()) < self.min_confidence:
            return False
        try:
            scores = self.row.sampler.scores(logits, self.tokens)
        except BadLogits:
            if math.isfinite(float(logits.max())):
                return False  # what can be drafted is not allowed here
            raise
        found = choose(self.row, scores, len(self.tokens) + 1, 1, self.sampling)
        if found and self.row.want_probs and self.sampling == "request":
            self.probs.append(self.row.sampler.probs(scores))
        self.tokens += found
        return bool(found)

    def draft(self) -> Draft:
        """What has grown."""
        if not self.tokens:
            return EMPTY_DRAFT
        return Draft.chain(self.tokens, torch.stack(self.probs) if self.probs else None)
