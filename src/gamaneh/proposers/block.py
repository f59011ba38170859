"""All candidates in one forward over several layers of the target, then corrected from left to right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, ROOT, Draft, Needs, ProposalRow, Proposer
from gamaneh.heads.block_heads import load_block
from gamaneh.heads.block_runner import BlockRead, BlockRunner
from gamaneh.proposers.acceptance import AcceptanceTable
from gamaneh.proposers.recipe import Ingredients
from gamaneh.proposers.tree import CHAINS, Style, TreeBuilder, confidence
from gamaneh.proposers.vocabulary import DraftVocabulary

WINDOW = 512
"""Tokens of a prompt whose hidden states are kept until the first draft. What lies before them is never seen."""

LONGEST = 4096
"""Tokens that the cache holds of one request; behind that it starts anew with the last ones."""


@dataclass(slots=True)
class _Shown:
    """The last chain of a request: behind how many tokens, and how sure the drafter was of each place."""

    length: int
    drawn: bool
    tokens: list[int] = field(default_factory=list)
    confidences: list[float] = field(default_factory=list)


class BlockProposer(Proposer):
    """Drafts a chain or a tree per request, all requests of a round in one forward.

    A request's cache grows with the tokens whose hidden states it was shown. Where some were missing, it starts anew.

    A chain ends where the learned chance of acceptance is below `min_confidence`. The chance is that of the drafter's
    distribution, not of the token that was drawn from it, so that the rules that divide by it stay exact.

    Args:
        runner: the drafter.
        vocab_size: size of the target's vocabulary, padding included.
        style: the form of its drafts.
        expected: survival of its drafts as measured, for the controller; empty for unknown.
    """

    name = "block"

    def __init__(
        self, runner: BlockRunner, *, vocab_size: int, style: Style = CHAINS, expected: tuple[float, ...] = ()
    ) -> None:
        self.runner, self.style = runner, style
        self.needs = Needs(
            hidden_layers=runner.hidden_layers,
            hidden_window=WINDOW,
            probs=True,
            branching=style.branching,
            max_depth=runner.depth,
            expected_survival=expected,
        )
        ids = runner.draft_ids
        self._places = None if ids is None else {token: place for place, token in enumerate(ids.tolist())}
        self._vocabulary = DraftVocabulary(ids, vocab_size)
        self.acceptance = AcceptanceTable()
        self._shown: dict[str, _Shown] = {}
        self._first: dict[str, int] = {}  # position of the first token that the cache holds of each request

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One draft per row; empty where no hidden state of the request is known, or the cache has no room."""
        for row in rows:
            self._learn(row)
        reads = {row.request_id: read for row in rows if (read := self._begin(row)) is not None}
        logits = dict(zip(reads, self.runner.guess(list(reads.values())), strict=True)) if reads else {}
        return [self._grown(row, logits[row.request_id]) if row.request_id in logits else EMPTY_DRAFT for row in rows]

    def forget(self, request_id: str) -> None:
        """Free what the cache holds of a request."""
        self._shown.pop(request_id, None)
        if self._first.pop(request_id, None) is not None:
            self.runner.backend.release([request_id], publish=False)

    def memory_bytes(self) -> int:
        """Weights and cache."""
        return self.runner.memory_bytes()

    def _begin(self, row: ProposalRow) -> BlockRead | None:
        """Bring the request's cache into line with the hidden states that are known, and make room."""
        if row.hidden is None or not len(row.hidden):
            return None
        backend, last = self.runner.backend, len(row.tokens) - 1
        window = last - len(row.hidden)
        if row.request_id in self._first:
            end = self._first[row.request_id] + backend.length(row.request_id)
            if end < window or backend.length(row.request_id) > LONGEST:
                self.forget(row.request_id)
        if row.request_id not in self._first:
            backend.admit(row.request_id, row.tokens[window:last], salt=row.request_id)
            self._first[row.request_id] = window
        first = self._first[row.request_id]
        # At least one row is read, as its output is the first guess.
        length = min(backend.length(row.request_id), last - 1 - first)
        if length < backend.length(row.request_id):
            length = backend.truncate(row.request_id, length)
        unread, marked = last - first - length, min(row.max_depth, self.runner.depth) - 1
        if not backend.reserve(row.request_id, unread + marked):
            self.forget(row.request_id)
            return None
        following = row.tokens[last - unread + 1 : last + 1]
        return BlockRead(row.request_id, row.hidden[len(row.hidden) - unread :], following, marked)

    def _grown(self, row: ProposalRow, logits: Tensor) -> Draft:
        builder, shown = TreeBuilder(row, self.style), _Shown(len(row.tokens), not row.sampler.greedy)
        if builder.width == 1:  # what ends a chain is the learned chance, not the drafter's own
            builder.style = CHAINS
        for level in range(len(logits)):
            if not builder.is_open:
                break
            offered = [self._behind(builder, node, logits[level]) for node in builder.frontier]
            if builder.width == 1:
                sure = confidence(offered[0], offered[0])
                if level and self.acceptance.chance(level, shown.drawn, sure) < self.style.min_confidence:
                    break
                shown.confidences.append(sure)
            builder.grow(offered)
        shown.tokens = builder.tokens
        if builder.width == 1:
            self._shown[row.request_id] = shown
        return builder.draft()

    def _learn(self, row: ProposalRow) -> None:
        """See which candidates of the last draft the target wrote."""
        shown = self._shown.pop(row.request_id, None)
        if shown is None:
            return
        for level, (token, sure) in enumerate(zip(shown.tokens, shown.confidences, strict=False)):
            at = shown.length + level
            if at >= len(row.tokens):
                return
            self.acceptance.learn(level, shown.drawn, sure, row.tokens[at] == token)
            if row.tokens[at] != token:
                return

    def _behind(self, builder: TreeBuilder, node: int, logits: Tensor) -> Tensor:
        """`[vocab]` logits of what follows a node."""
        if node == ROOT:
            return self._vocabulary.widen(logits)
        token = builder.tokens[node]
        place = token if self._places is None else self._places[token]
        places, values = self.runner.corrected(logits, place)
        return self._vocabulary.spread(places, values)


def build(parts: Ingredients) -> Proposer:
    """Return the proposer of a block drafter."""
    loaded, artifact = parts.target.loaded, parts.heads_of("block")
    return BlockProposer(
        BlockRunner(load_block(artifact, loaded), loaded),
        vocab_size=parts.vocab_size,
        style=Style.asked(parts),
        expected=artifact.survival,
    )
