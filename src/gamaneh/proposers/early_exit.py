"""Self-speculation: the first layers of the target draft, over its own cache (Elhoushi et al. 2024, LayerSkip)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from gamaneh.core import Draft, Feed, Needs, ProposalRow, Verdict
from gamaneh.proposers.candidates import DraftSampling
from gamaneh.proposers.chain import Chain
from gamaneh.proposers.exits import Exit


class EarlyExitProposer:
    """Drafts a chain per request, all requests of a round in one batch.

    The keys and values of the text are the target's own. Those of candidates are written, for the first layers, where
    the round has reserved room for its draft; the verify writes them again with all layers, so that what it
    computes does not depend on the draft.

    Args:
        exit_: the layers and their way out.
        sampling: `request` draws as the request does, `greedy` takes the most likely token.
        min_confidence: a draft ends where the most likely token is less likely than this.
        about: why this exit, in words.
        expected: survival of its drafts as measured, for the controller; empty for unknown.
    """

    name = "early_exit"

    def __init__(
        self,
        exit_: Exit,
        *,
        sampling: DraftSampling = "request",
        min_confidence: float = 0.0,
        about: str = "",
        expected: tuple[float, ...] = (),
    ) -> None:
        self.exit = exit_
        self.sampling, self.min_confidence = sampling, min_confidence
        self.needs = Needs(probs=sampling == "request", about=about, expected_survival=expected)

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One chain per row."""
        chains = [Chain(row, self.sampling, self.min_confidence) for row in rows]
        growing = chains
        while growing:
            logits = self.exit.logits([self._feed(chain) for chain in growing])
            grown = [chain for chain, own in zip(growing, logits, strict=True) if chain.grow(own)]
            growing = [chain for chain in grown if len(chain.tokens) < chain.row.max_depth]
        return [chain.draft() for chain in chains]

    def observe(self, rows: Sequence[ProposalRow], verdicts: Sequence[Verdict]) -> None:
        """Nothing to do: the cache is the target's."""

    def drop(self, request_ids: Iterable[str]) -> None:
        """Nothing is kept about requests."""

    def memory_bytes(self) -> int:
        """What the way out takes beside the target."""
        return self.exit.nbytes

    def _feed(self, chain: Chain) -> Feed:
        """The last token of the chain, or the request's pending one, behind what this round wrote already."""
        tokens = [*chain.row.tokens, *chain.tokens]
        return Feed(request_id=chain.row.request_id, tokens=tokens, count=1, written=len(chain.tokens))
