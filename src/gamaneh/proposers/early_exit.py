"""Self-speculation: the first layers of the target draft, over its own cache (Elhoushi et al. 2024, LayerSkip)."""

from __future__ import annotations

from collections.abc import Sequence

from gamaneh.core import Draft, Feed, Needs, ProposalRow, Proposer
from gamaneh.proposers.builtin import EXIT_LAYER, MIN_CONFIDENCE
from gamaneh.proposers.exit_choice import choose_exit
from gamaneh.proposers.exits import Exit
from gamaneh.proposers.recipe import Ingredients
from gamaneh.proposers.tree import CHAINS, Style, TreeBuilder


class EarlyExitProposer(Proposer):
    """Drafts a chain per request, all requests of a round in one batch.

    The keys and values of the text are the target's own. Those of candidates are written, for the first layers, where
    the round has reserved room for its draft; the verify writes them again with all layers, so that what it
    computes does not depend on the draft.

    Args:
        exit_: the layers and their way out.
        style: the form of its drafts, which are chains.
        about: why this exit, in words.
        expected: survival of its drafts as measured, for the controller; empty for unknown.
    """

    name = "early_exit"

    def __init__(
        self,
        exit_: Exit,
        *,
        style: Style = CHAINS,
        about: str = "",
        expected: tuple[float, ...] = (),
    ) -> None:
        self.exit = exit_
        self.style = style
        self.needs = Needs(probs=True, about=about, expected_survival=expected)

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One chain per row."""
        chains = [TreeBuilder(row, self.style) for row in rows]
        while growing := [chain for chain in chains if chain.is_open]:
            logits = self.exit.logits([self._feed(chain) for chain in growing])
            for chain, own in zip(growing, logits, strict=True):
                chain.grow([own])
        return [chain.draft() for chain in chains]

    def memory_bytes(self) -> int:
        """What the way out takes beside the target."""
        return self.exit.nbytes

    def _feed(self, chain: TreeBuilder) -> Feed:
        """The last token of the chain, or the request's pending one, behind what this round wrote already."""
        return Feed(request_id=chain.row.request_id, tokens=chain.sequence, count=1, written=len(chain.tokens))


def build(parts: Ingredients) -> Proposer:
    """Return the proposer that the target's first layers make."""
    target = parts.target
    heads = parts.heads_of("early_exit") if parts.has_heads("early_exit") else None
    exit_, about = choose_exit(target.loaded, target.backend, parts.value(EXIT_LAYER), heads)
    return EarlyExitProposer(
        exit_,
        style=Style(parts.value(MIN_CONFIDENCE)),
        about=about,
        expected=heads.survival if heads is not None else (),
    )
