"""Drafts that grow token by token as a draft model reads on, those of all requests together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from gamaneh.core import Draft, ProposalRow
from gamaneh.proposers.candidates import DraftSampling
from gamaneh.proposers.chain import Chain
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


@dataclass(frozen=True, slots=True)
class Beginning:
    """What a draft grows from.

    Args:
        row: the request.
        context: its tokens in the draft model's ids.
        token_map: from one vocabulary to the other.
        style: how tokens are chosen.
        unchanged: how many tokens of `context` are as they were, as in `Reading`.
    """

    row: ProposalRow
    context: Sequence[int]
    token_map: TokenMap
    style: DraftStyle
    unchanged: int | None = None


class ChainGrowth:
    """A draft with one path."""

    def __init__(self, beginning: Beginning) -> None:
        self._beginning = beginning
        self._chain = Chain(beginning.row, beginning.style.sampling)
        self._drafted: list[int] = []
        self._stopped = False

    @property
    def is_open(self) -> bool:
        return not self._stopped and len(self._drafted) < self._beginning.row.max_depth

    def reading(self) -> Reading:
        begin = self._beginning
        return Reading(begin.row.request_id, begin.context, self._drafted, unchanged=begin.unchanged)

    def take(self, logits: Tensor) -> None:
        """Choose the next token, or end the path."""
        said, begin = logits[-1].float(), self._beginning
        offered = begin.token_map.to_target(said)
        unsure = bool(self._drafted) and begin.style.is_unsure(said, offered)
        self._stopped = unsure or not self._chain.grow(offered)
        if not self._stopped:
            self._drafted.append(begin.token_map.to_draft(self._chain.tokens[-1]))

    def draft(self) -> Draft:
        return self._chain.draft()
