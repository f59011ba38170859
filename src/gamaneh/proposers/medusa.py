"""Drafts of heads that guess all positions at once: Medusa's, and those of parallel multi-token prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, ROOT, Draft, Needs, ProposalRow, Verdict
from gamaneh.heads.parallel import ParallelHeads
from gamaneh.proposers.candidates import DraftSampling, allowed_scores, best, pick
from gamaneh.proposers.chain import Chain
from gamaneh.proposers.static_tree import Place, static_tree, widths
from gamaneh.proposers.vocabulary import DraftVocabulary

TREE_BRANCHING = 3
"""Candidates per level of a tree, on average: four levels and the last token fill a tile of 16 rows nearly."""


class ParallelHeadsProposer:
    """Drafts the heads' best guess for each position as a chain, or several for each as a tree.

    Args:
        heads: the networks.
        vocab_size: size of the target's vocabulary, padding included.
        shares: for each position the measured shares of tokens that were the first, second, ... guess; they
            decide the form of trees. Without them drafts are chains.
        branching: candidates per level, on average, where the rule takes trees.
        sampling: `request` draws as the request does, `greedy` takes the most likely token.
        expected: survival of its drafts as measured, for the controller; empty for unknown.
    """

    def __init__(
        self,
        heads: ParallelHeads,
        *,
        vocab_size: int,
        shares: Sequence[Sequence[float]] = (),
        branching: int = 1,
        sampling: DraftSampling = "request",
        expected: tuple[float, ...] = (),
    ) -> None:
        self.name, self.heads, self.sampling = heads.kind, heads, sampling
        self.needs = Needs(
            hidden_layers=heads.hidden_layers,
            probs=sampling == "request",
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

    def observe(self, rows: Sequence[ProposalRow], verdicts: Sequence[Verdict]) -> None:
        """Nothing to learn: the form of trees was measured once."""

    def drop(self, request_ids: Iterable[str]) -> None:
        """Nothing is kept about requests."""

    def memory_bytes(self) -> int:
        """Weights, and what was copied from the target."""
        return self.heads.nbytes()

    @torch.inference_mode()
    def _logits(self, next_ids: Sequence[int], hidden: Tensor) -> Tensor:
        """`[num_rows, hidden]` -> float32 `[num_rows, depth, vocab]`."""
        guesses: Tensor = self.heads(hidden, torch.tensor(next_ids, device=hidden.device))
        return self._vocabulary.widen(guesses.transpose(0, 1))

    def _draft(self, row: ProposalRow, logits: Tensor) -> Draft:
        depth = min(row.max_depth, self.heads.depth)
        if self.needs.branching > 1 and row.max_nodes > row.max_depth:
            return self._tree(row, logits, static_tree(self._shares, depth, row.max_nodes))
        chain = Chain(row, self.sampling)
        for level in range(depth):
            if not chain.grow(logits[level]):
                break
        return chain.draft()

    def _tree(self, row: ProposalRow, logits: Tensor, places: tuple[Place, ...]) -> Draft:
        guesses = self._guesses(row, logits, widths(places))
        tokens: list[int] = []
        parents: list[int] = []
        nodes = {ROOT: ROOT}
        for at, place in enumerate(places):
            found = guesses[place.depth - 1] if place.depth <= len(guesses) else []
            if place.parent in nodes and place.rank < len(found):
                nodes[at] = len(tokens)
                tokens.append(found[place.rank])
                parents.append(nodes[place.parent])
        return Draft(tuple(tokens), tuple(parents))

    def _guesses(self, row: ProposalRow, logits: Tensor, counts: Sequence[int]) -> list[list[int]]:
        """For each depth the best tokens, noise included; what is said to come before them are the best above."""
        guesses: list[list[int]] = []
        for level, count in enumerate(counts):
            scores = allowed_scores(row, logits[level], [first for first, *_ in guesses])
            if scores is None:
                break
            guesses.append(self._best(row, scores, len(row.tokens) + level, count))
        return guesses

    def _best(self, row: ProposalRow, scores: Tensor, position: int, count: int) -> list[int]:
        if count == 1:
            return [pick(row, scores, position, self.sampling)]
        return [token for _, token in best(row, scores, position, count, self.sampling)]
