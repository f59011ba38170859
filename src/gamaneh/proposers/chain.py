"""A chain of candidates that grows from rows of logits."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, Draft, ProposalRow
from gamaneh.proposers.candidates import DraftSampling, allowed_scores, pick


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
        scores = allowed_scores(self.row, logits, self.tokens)
        if scores is None:
            return False
        if self.row.want_probs and self.sampling == "request":
            self.probs.append(self.row.sampler.probs(scores))
        self.tokens.append(self._choose(scores))
        return True

    def draft(self) -> Draft:
        """What has grown."""
        if not self.tokens:
            return EMPTY_DRAFT
        return Draft.chain(self.tokens, torch.stack(self.probs) if self.probs else None)

    def _choose(self, scores: Tensor) -> int:
        return pick(self.row, scores, len(self.row.tokens) + len(self.tokens), self.sampling)
