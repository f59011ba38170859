"""Drafts of heads that guess all positions at once: Medusa's, and those of parallel multi-token prediction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, Draft, Needs, ProposalRow, Proposer
from gamaneh.heads.artifact import Artifact
from gamaneh.heads.medusa_heads import load_medusa
from gamaneh.heads.parallel import ParallelHeads
from gamaneh.proposers.builtin import DRAFT_BRANCHING
from gamaneh.proposers.recipe import Ingredients
from gamaneh.proposers.tree import TreeBuilder, static_tree
from gamaneh.proposers.vocabulary import DraftVocabulary

TREE_BRANCHING = 3
"""Candidates per level of a tree, on average: four levels and the last token fill a tile of 16 rows nearly."""


class ParallelHeadsProposer(Proposer):
    """Drafts the heads' best guess for each position as a chain, or several for each as a tree.

    Args:
        heads: the networks.
        vocab_size: size of the target's vocabulary, padding included.
        shares: for each position the measured shares of tokens that were the first, second, ... guess; they
            decide the form of trees. Without them drafts are chains.
        branching: candidates per level, on average, where the rule takes trees.
        expected: survival of its drafts as measured, for the controller; empty for unknown.
    """

    def __init__(
        self,
        heads: ParallelHeads,
        *,
        vocab_size: int,
        shares: Sequence[Sequence[float]] = (),
        branching: int = 1,
        expected: tuple[float, ...] = (),
    ) -> None:
        self.name, self.heads = heads.kind, heads
        self.needs = Needs(
            hidden_layers=heads.hidden_layers,
            probs=True,
            branching=branching if shares else 1,
            max_depth=heads.depth,
            expected_survival=expected,
        )
        self._shares = tuple(map(tuple, shares))
        self._vocabulary = DraftVocabulary(heads.draft_ids(), vocab_size)

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One draft per row; empty where the hidden state of the last token but one is not known."""
        known = [(row, row.hidden[-1, 0]) for row in rows if row.hidden is not None and len(row.hidden)]
        if not known:
            return [EMPTY_DRAFT] * len(rows)
        logits = self._logits([row.tokens[-1] for row, _ in known], torch.stack([hidden for _, hidden in known]))
        drafts = {row.request_id: self._draft(row, own) for (row, _), own in zip(known, logits, strict=True)}
        return [drafts.get(row.request_id, EMPTY_DRAFT) for row in rows]

    def memory_bytes(self) -> int:
        """Weights, and what was copied from the target."""
        return self.heads.nbytes()

    @torch.inference_mode()
    def _logits(self, next_ids: Sequence[int], hidden: Tensor) -> Tensor:
        """`[num_rows, hidden]` -> float32 `[num_rows, depth, vocab]`."""
        guesses: Tensor = self.heads(hidden, torch.tensor(next_ids, device=hidden.device))
        return self._vocabulary.widen(guesses.transpose(0, 1))

    def _draft(self, row: ProposalRow, logits: Tensor) -> Draft:
        builder, depth = TreeBuilder(row), min(row.max_depth, self.heads.depth)
        if self.needs.branching > 1 and row.max_nodes > row.max_depth:
            builder.fill(static_tree(self._shares, depth, row.max_nodes), logits)
        for level in range(depth):
            if builder.is_open:
                builder.grow([logits[level]])
        return builder.draft()


def build_parallel(parts: Ingredients, heads: ParallelHeads, artifact: Artifact) -> Proposer:
    """The proposer of heads that guess all positions at once."""
    return ParallelHeadsProposer(
        heads,
        vocab_size=parts.vocab_size,
        shares=artifact.quality.get("ranks", ()),
        branching=parts.value(DRAFT_BRANCHING) or TREE_BRANCHING,
        expected=artifact.survival,
    )


def build(parts: Ingredients) -> Proposer:
    """Return the proposer that Medusa heads make."""
    artifact = parts.heads_of("medusa")
    return build_parallel(parts, load_medusa(artifact, parts.target.loaded), artifact)
