"""A smaller language model guesses the next tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from gamaneh.core import EMPTY_DRAFT, Backend, Draft, Needs, ProposalRow, Verdict
from gamaneh.proposers.bridge import Bridge, SameTokens
from gamaneh.proposers.draft_reader import DraftReader
from gamaneh.proposers.growth import DraftStyle, grow


class DraftModelProposer:
    """Drafts with a language model, all requests of a round in one batch.

    Args:
        backend: where the draft model runs.
        vocab_size: size of the target's vocabulary, padding included.
        sampling: `request` draws as the request does, `greedy` takes the most likely token.
        min_confidence: a path ends where the draft model's most likely token is less likely than this.
        branching: candidates on each level of a draft, where the rule takes trees; 1 makes chains.
        bridge: to a draft model with other tokens; None for one that has the target's.
        expected: survival of its drafts as measured, for the controller; empty for unknown.
    """

    name = "draft_model"

    def __init__(
        self,
        backend: Backend,
        *,
        vocab_size: int,
        sampling: Literal["request", "greedy"] = "request",
        min_confidence: float = 0.0,
        branching: int = 1,
        bridge: Bridge | None = None,
        expected: tuple[float, ...] = (),
    ) -> None:
        self.reader = DraftReader(backend)
        self.bridge = bridge or SameTokens(vocab_size)
        self.style = DraftStyle(sampling, min_confidence, branching)
        probs = sampling == "request" and self.bridge.gives_probs
        self.needs = Needs(probs=probs, branching=branching, about=self.bridge.about, expected_survival=expected)

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One draft per row; empty where the draft model's context or cache is full."""
        growths = [self.bridge.growth(row, self.style) for row in rows]
        grow(self.reader, [growth for growth in growths if growth is not None])
        return [EMPTY_DRAFT if growth is None else growth.draft() for growth in growths]

    def observe(self, rows: Sequence[ProposalRow], verdicts: Sequence[Verdict]) -> None:
        """Nothing to do: the next `propose` compares its cache with the tokens."""

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget what was read of these requests."""
        ids = list(request_ids)
        self.reader.drop(ids)
        self.bridge.drop(ids)

    def memory_bytes(self) -> int:
        """Weights and cache of the draft model."""
        return self.reader.memory_bytes()
