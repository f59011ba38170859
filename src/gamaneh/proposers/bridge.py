"""From the tokens of a request to those of a draft model, and from what it says to a draft."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from gamaneh.core import Draft, ProposalRow
from gamaneh.proposers.draft_reader import DraftReader, DraftReading
from gamaneh.proposers.tree import Style, TreeBuilder


class Growth(Protocol):
    """The draft of one request while a draft model reads on."""

    @property
    def is_open(self) -> bool:
        """Whether it can use more logits."""
        ...

    def reading(self) -> DraftReading:
        """What the draft model has to read so that the draft grows."""
        ...

    def take(self, logits: Tensor) -> None:
        """Grow by what the draft model says, `[logit_rows, draft_vocab]` of the last reading."""
        ...

    def draft(self) -> Draft:
        """What has grown."""
        ...


class TokenMap(Protocol):
    """Between the token ids of the target and those of the draft model."""

    def to_target(self, logits: Tensor) -> Tensor:
        """`[draft_vocab]` logits -> `[target_vocab]`, -inf for tokens that the draft model cannot say."""
        ...

    def to_draft(self, token: int) -> int:
        """The draft model's id of one of the target's tokens that `to_target` offers."""
        ...


class Bridge(Protocol):
    """What stands between a request and the draft model.

    Args:
        about: how, and why so, in words.
        gives_probs: drafts may come with the probabilities that they were drawn from.
    """

    about: str
    gives_probs: bool

    def growth(self, row: ProposalRow, style: Style) -> Growth | None:
        """The start of a draft; None where there can be none."""
        ...

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget these requests."""
        ...

    def reads(self, draft_vocab: int) -> int | None:
        """Ids of the target's tokens that the draft model can be told of are below this; None for all."""
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
    """What a draft of single tokens grows from.

    Args:
        row: the request.
        context: its tokens in the draft model's ids.
        token_map: from one vocabulary to the other.
        style: the form of the draft.
        unchanged: how many tokens of `context` are as they were, as in `DraftReading`.
    """

    row: ProposalRow
    context: Sequence[int]
    token_map: TokenMap
    style: Style
    unchanged: int | None = None


class TokenGrowth:
    """A chain or a tree of tokens that the draft model says one by one."""

    def __init__(self, beginning: Beginning) -> None:
        self._beginning = beginning
        self.builder = TreeBuilder(beginning.row, beginning.style)

    @property
    def is_open(self) -> bool:
        return self.builder.is_open

    def reading(self) -> DraftReading:
        """A chain is read on from where it was; of a tree, the nodes that branch behind those that lead to them."""
        begin, builder = self._beginning, self.builder
        to_draft = begin.token_map.to_draft
        if builder.width == 1:
            drafted = [to_draft(token) for token in builder.tokens]
            return DraftReading(begin.row.request_id, begin.context, drafted, unchanged=begin.unchanged)
        nodes, parents = builder.stem()
        return DraftReading(
            begin.row.request_id,
            begin.context,
            nodes=[to_draft(builder.tokens[node]) for node in nodes],
            parents=parents,
            logit_rows=max(len(builder.frontier), 1),
            keep_last=False,
            unchanged=begin.unchanged,
        )

    def take(self, logits: Tensor) -> None:
        said = logits[-len(self.builder.frontier) :].float()
        self.builder.grow([self._beginning.token_map.to_target(row) for row in said], said)

    def draft(self) -> Draft:
        return self.builder.draft()


class SameTokens:
    """The draft model has the target's tokens. Both a bridge and a map of tokens.

    Args:
        vocab_size: size of the target's vocabulary, padding included; the draft model's may be padded
            to another one.
    """

    about = ""
    gives_probs = True

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size

    def growth(self, row: ProposalRow, style: Style) -> Growth:
        """Directly behind the request's tokens."""
        return TokenGrowth(Beginning(row, row.tokens, self, style))

    def drop(self, request_ids: Iterable[str]) -> None:
        """Nothing is kept."""

    def reads(self, draft_vocab: int) -> int:
        return draft_vocab

    def to_target(self, logits: Tensor) -> Tensor:
        """Crop or extend to the target's vocabulary."""
        missing = self._vocab_size - logits.shape[-1]
        if missing <= 0:
            return logits[: self._vocab_size]
        return torch.cat([logits, logits.new_full((missing,), -math.inf)])

    def to_draft(self, token: int) -> int:
        return token
