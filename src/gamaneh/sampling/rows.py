"""The target's rows at the root and the nodes of one draft."""

from __future__ import annotations

from torch import Tensor

from gamaneh.core import Draft, Use
from gamaneh.sampling.pipeline import RequestSampler


class DraftRows:
    """Scores, probabilities and draws of the target at each node, computed when asked for.

    Args:
        logits: `[1 + num_nodes, vocab]`, the root's row, then one row per node.
        draft: the draft that was verified.
        sampler: the request's sampling.
        position: absolute index of the token that follows the root.
        vocab_size: tokens of the target; what the rows hold beyond is padding.
    """

    def __init__(self, logits: Tensor, draft: Draft, sampler: RequestSampler, position: int, vocab_size: int) -> None:
        self._logits = logits[:, :vocab_size]
        self._draft = draft
        self._sampler = sampler
        self._positions = [position, *(position + depth for depth in draft.depths)]
        self._scores: dict[int, Tensor] = {}
        self._probs: dict[int, Tensor] = {}

    def scores(self, node: int) -> Tensor:
        """`[vocab]` scores for the token that follows `node` (`ROOT` for the first)."""
        if node not in self._scores:
            self._scores[node] = self._sampler.scores(self._logits[1 + node], self._draft.path_tokens(node))
        return self._scores[node]

    def probs(self, node: int) -> Tensor:
        """`[vocab]` probabilities for the token that follows `node`."""
        if node not in self._probs:
            self._probs[node] = self._sampler.probs(self.scores(node))
        return self._probs[node]

    def pick(self, node: int, use: Use = Use.TARGET) -> int:
        """Draw the token that follows `node` with the request's noise."""
        return self._sampler.pick(self.scores(node), self._positions[1 + node], use)

    def uniform(self, node: int, use: Use) -> float:
        """A uniform draw in (0, 1) tied to the position after `node`."""
        return self._sampler.uniform(self._positions[1 + node], use)

    def pick_from(self, probs: Tensor, node: int, use: Use) -> int:
        """Draw the token that follows `node` from other (unnormalised) `[vocab]` probabilities."""
        return self._sampler.pick_from(probs, self._positions[1 + node], use)
