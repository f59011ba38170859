"""Drafts that grow token by token as a draft model reads on, those of all requests together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, Draft, ProposalRow
from gamaneh.proposers.candidates import DraftSampling, allowed_scores, pick
from gamaneh.proposers.draft_reader import DraftReader, Reading


@dataclass(frozen=True, slots=True)
class DraftStyle:
    """How tokens are chosen from what the draft model says.

    Args:
        sampling: `request` draws as the request does, `greedy` takes the most likely token.
        min_confidence: a path ends where the draft model's most likely token is less likely than
            this. The test must not look at the token that was drawn: leaving out unlikely draws
            would change the law that `rejection` and `block` divide by, and with it the output's.
        branching: candidates on each level of a tree; 1 makes chains.
    """

    sampling: DraftSampling = "request"
    min_confidence: float = 0.0
    branching: int = 1

    def is_unsure(self, logits: Tensor, offered: Tensor) -> bool:
        """Whether even the likeliest of the `offered` logits `[target_vocab]` is too unlikely among all `[vocab]`."""
        if self.min_confidence == 0.0:
            return False
        return float((offered.amax() - logits.logsumexp(0)).exp()) < self.min_confidence


class TokenMap(Protocol):
    """Between the token ids of the target and those of the draft model."""

    def to_target(self, logits: Tensor) -> Tensor:
        """`[draft_vocab]` logits -> `[target_vocab]`, -inf for tokens that the draft model cannot say."""
        ...

    def to_draft(self, token: int) -> int:
        """The draft model's id of one of the target's tokens that `to_target` offers."""
        ...


class Growth(Protocol):
    """The draft of one request while it grows."""

    @property
    def is_open(self) -> bool:
        """Whether it can use more logits."""
        ...

    def reading(self) -> Reading:
        """What the draft model has to read so that the draft grows."""
        ...

    def take(self, logits: Tensor) -> None:
        """Grow by what the draft model says, `[logit_rows, draft_vocab]` of the last reading."""
        ...

    def draft(self) -> Draft:
        """What has grown."""
        ...


def grow(reader: DraftReader, growths: Sequence[Growth]) -> None:
    """Let all drafts grow to their end, level by level, each level of all requests in one forward.

    A draft ends early where context or cache of the draft model are full.
    """
    for growth in growths:
        reader.begin(growth.reading())
    growing = list(growths)
    while growing := [growth for growth in growing if growth.is_open and reader.has_room(growth.reading())]:
        said = reader.read([growth.reading() for growth in growing])
        for growth, logits in zip(growing, said, strict=True):
            growth.take(logits)


class ChainGrowth:
    """A draft with one path.

    Args:
        row: the request.
        context: its tokens in the draft model's ids.
        token_map: from one vocabulary to the other.
        style: how tokens are chosen.
        unchanged: how many tokens of `context` are as they were, as in `Reading`.
    """

    def __init__(
        self,
        row: ProposalRow,
        context: Sequence[int],
        token_map: TokenMap,
        style: DraftStyle,
        unchanged: int | None = None,
    ) -> None:
        self._row, self._context, self._unchanged = row, context, unchanged
        self._token_map, self._style = token_map, style
        self._tokens: list[int] = []
        self._drafted: list[int] = []
        self._probs: list[Tensor] = []
        self._stopped = False

    @property
    def is_open(self) -> bool:
        return not self._stopped and len(self._tokens) < self._row.max_depth

    def reading(self) -> Reading:
        return Reading(self._row.request_id, self._context, self._drafted, unchanged=self._unchanged)

    def take(self, logits: Tensor) -> None:
        """Choose the next token, or end the path."""
        said = logits[-1].float()
        offered = self._token_map.to_target(said)
        unsure = bool(self._tokens) and self._style.is_unsure(said, offered)
        scores = None if unsure else allowed_scores(self._row, offered, self._tokens)
        if scores is None:
            self._stopped = True
            return
        self._add(self._choose(scores))
        if self._row.want_probs and self._style.sampling == "request":
            self._probs.append(self._row.sampler.probs(scores))

    def draft(self) -> Draft:
        if not self._tokens:
            return EMPTY_DRAFT
        return Draft.chain(self._tokens, torch.stack(self._probs) if self._probs else None)

    def _choose(self, scores: Tensor) -> int:
        return pick(self._row, scores, len(self._row.tokens) + len(self._tokens), self._style.sampling)

    def _add(self, token: int) -> None:
        self._tokens.append(token)
        self._drafted.append(self._token_map.to_draft(token))
