"""What a draft favours, noted while it is judged: where a faulty rule errs, it errs towards that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from gamaneh.core import ROOT, Draft, Rule, TargetRows, Verdict

MOST_TOKENS = 64
"""Of a draft's distribution, so many most likely tokens are kept."""


@dataclass(frozen=True, slots=True)
class Guide:
    """The law of a draft's first candidates, as far as it does not depend on what was drawn.

    Args:
        tokens: `[num_tokens]` ids; none where the draft's own draw would be told.
        weights: `[num_tokens]` their probabilities.
    """

    tokens: Tensor
    weights: Tensor

    def favour(self, probs: Tensor) -> Tensor:
        """Target probabilities `[vocab]` -> how much likelier the draft finds each token `[vocab]`."""
        if len(self.tokens) == 0:
            return probs
        ratios = torch.zeros_like(probs)
        ratios[self.tokens] = self.weights / probs[self.tokens].clamp(min=torch.finfo(probs.dtype).tiny)
        return ratios


class Noting:
    """Judges as another rule does, and notes a guide for the first token of each round with a draft.

    Args:
        coupled: drafts are drawn with the target's own noise. Then what was drawn tells about the
            target's draw, and the guides are empty.
    """

    def __init__(self, rule: Rule, *, coupled: bool) -> None:
        self.name, self.exact, self.trees = rule.name, rule.exact, rule.trees
        self.wants_probs, self.reads_probs = rule.wants_probs, rule.reads_probs
        self.guides: dict[int, Guide] = {}
        self._rule, self._coupled, self._emitted = rule, coupled, 0

    def judge(self, draft: Draft, target: TargetRows) -> Verdict:
        if len(draft):
            self.guides[self._emitted] = _guide(draft, self._coupled)
        verdict = self._rule.judge(draft, target)
        self._emitted += len(verdict.tokens)
        return verdict


NO_GUIDES: Mapping[int, Guide] = {}


def _guide(draft: Draft, coupled: bool) -> Guide:
    if coupled:
        return Guide(torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.float64))
    first = draft.children(ROOT)
    if draft.probs is None:
        return Guide(torch.tensor([draft.tokens[node] for node in first]), torch.ones(len(first), dtype=torch.float64))
    row = draft.probs[first[0]].double()
    top = row.topk(min(MOST_TOKENS, len(row)))
    return Guide(top.indices, top.values)
