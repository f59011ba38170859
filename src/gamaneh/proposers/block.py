"""All candidates in one forward over several layers of the target, then corrected from left to right."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, ROOT, Draft, Needs, ProposalRow, Proposer
from gamaneh.heads.block_heads import load_block
from gamaneh.heads.block_runner import BlockRead, BlockRunner
from gamaneh.proposers.builtin import DRAFT_BRANCHING, MIN_CONFIDENCE
from gamaneh.proposers.recipe import Ingredients
from gamaneh.proposers.tree import CHAINS, Style, TreeBuilder
from gamaneh.proposers.vocabulary import DraftVocabulary

WINDOW = 512
"""Tokens of a prompt whose hidden states are kept until the first draft. What lies before them is never seen."""

LONGEST = 4096
"""Tokens that the cache holds of one request; behind that it starts anew with the last ones."""


class BlockProposer(Proposer):
    """Drafts a chain or a tree per request, all requests of a round in one forward.

    A request's cache grows with the tokens whose hidden states it was shown. Where some were missing, it starts anew.

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
        self._first: dict[str, int] = {}  # position of the first token that the cache holds of each request

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One draft per row; empty where no hidden state of the request is known, or the cache has no room."""
        reads = {row.request_id: read for row in rows if (read := self._begin(row)) is not None}
        logits = dict(zip(reads, self.runner.guess(list(reads.values())), strict=True)) if reads else {}
        return [self._grown(row, logits[row.request_id]) if row.request_id in logits else EMPTY_DRAFT for row in rows]

    def forget(self, request_id: str) -> None:
        """Free what the cache holds of a request."""
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
        builder = TreeBuilder(row, self.style)
        for level in range(len(logits)):
            if not builder.is_open:
                break
            offered = [self._behind(builder, node, logits[level]) for node in builder.frontier]
            builder.grow(offered)
        return builder.draft()

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
        style=Style(parts.value(MIN_CONFIDENCE), parts.value(DRAFT_BRANCHING) or 1),
        expected=artifact.survival,
    )
