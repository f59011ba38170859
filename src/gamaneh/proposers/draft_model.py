"""A smaller language model guesses the next tokens."""

from __future__ import annotations

from collections.abc import Sequence

from gamaneh.core import EMPTY_DRAFT, Backend, Draft, Needs, ProposalRow, Proposer
from gamaneh.errors import InvalidOption
from gamaneh.proposers.bridge import Bridge, SameTokens, grow
from gamaneh.proposers.builtin import BRIDGE
from gamaneh.proposers.cross.bridge_choice import choose_bridge
from gamaneh.proposers.distilled import expected_survival
from gamaneh.proposers.draft_reader import DraftReader
from gamaneh.proposers.recipe import Ingredients
from gamaneh.proposers.tree import CHAINS, Style


class DraftModelProposer(Proposer):
    """Drafts with a language model, all requests of a round in one batch.

    Args:
        backend: where the draft model runs.
        vocab_size: size of the target's vocabulary, padding included.
        style: the form of its drafts.
        bridge: to a draft model with other tokens; None for one that has the target's.
        expected: survival of its drafts as measured, for the controller; empty for unknown.
    """

    name = "draft_model"

    def __init__(
        self,
        backend: Backend,
        *,
        vocab_size: int,
        style: Style = CHAINS,
        bridge: Bridge | None = None,
        expected: tuple[float, ...] = (),
    ) -> None:
        self.reader = DraftReader(backend)
        self.bridge = bridge or SameTokens(vocab_size)
        self.style = style
        self.needs = Needs(
            probs=self.bridge.gives_probs,
            branching=style.branching,
            about=self.bridge.about,
            reads=self.bridge.reads(backend.caps.vocab_size),
            expected_survival=expected,
        )

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One draft per row; empty where the draft model's context or cache is full."""
        growths = [self.bridge.growth(row, self.style) for row in rows]
        grow(self.reader, [growth for growth in growths if growth is not None])
        return [EMPTY_DRAFT if growth is None else growth.draft() for growth in growths]

    def forget(self, request_id: str) -> None:
        """Forget what was read of a request."""
        self.reader.drop([request_id])
        self.bridge.drop([request_id])

    def memory_bytes(self) -> int:
        """Weights and cache of the draft model."""
        return self.reader.memory_bytes()


def build(parts: Ingredients) -> Proposer:
    """Return the proposer that a draft model makes."""
    if parts.draft_model is None:
        raise InvalidOption("draft_model", "must be given for the proposer draft_model", None)
    draft, target = parts.draft_model, parts.target.loaded
    style = Style.asked(parts)
    return DraftModelProposer(
        draft.backend,
        vocab_size=parts.vocab_size,
        style=style,
        bridge=choose_bridge(target, draft.loaded, parts.value(BRIDGE), style.branching, parts.vocab_size),
        expected=expected_survival(draft.loaded, target),
    )
