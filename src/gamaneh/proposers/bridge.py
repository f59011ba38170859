"""From the tokens of a request to those of a draft model, and from what it says to a draft."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor

from gamaneh.core import ProposalRow
from gamaneh.proposers.growth import Beginning, ChainGrowth, DraftStyle, Growth
from gamaneh.proposers.tree_growth import TreeGrowth


class Bridge(Protocol):
    """What stands between a request and the draft model.

    Args:
        about: how, and why so, in words.
        gives_probs: drafts may come with the probabilities that they were drawn from.
    """

    about: str
    gives_probs: bool

    def growth(self, row: ProposalRow, style: DraftStyle) -> Growth | None:
        """The start of a draft; None where there can be none."""
        ...

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget these requests."""
        ...


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

    def growth(self, row: ProposalRow, style: DraftStyle) -> Growth:
        """Directly behind the request's tokens."""
        return start_growth(Beginning(row, row.tokens, self, style))

    def drop(self, request_ids: Iterable[str]) -> None:
        """Nothing is kept."""

    def to_target(self, logits: Tensor) -> Tensor:
        """Crop or extend to the target's vocabulary."""
        missing = self._vocab_size - logits.shape[-1]
        if missing <= 0:
            return logits[: self._vocab_size]
        return torch.cat([logits, logits.new_full((missing,), -math.inf)])

    def to_draft(self, token: int) -> int:
        return token


def start_growth(beginning: Beginning) -> Growth:
    """A tree where the request allows one and the style branches, else a chain."""
    row = beginning.row
    branches = beginning.style.branching > 1 and row.max_nodes > row.max_depth
    return (TreeGrowth if branches else ChainGrowth)(beginning)
