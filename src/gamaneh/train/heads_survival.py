"""How good drafts are, by what counts: how many candidates in a row the target accepts.

Held-out texts are walked through in rounds, as the engine would: a draft begins behind the last
emitted token, the first candidate that is not the target's most likely token ends it, and the next
round begins behind the correction. On text that the target wrote greedily this is what greedy decoding
with chains does, round for round; on other text it is an estimate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from gamaneh.train.data import EVERYTHING
from gamaneh.train.losses import Pairs

RANKS = 10
"""Places in a head's order of tokens that are told apart."""


@dataclass(slots=True)
class Rounds:
    """Sums over rounds; ratios are made once, from the sums.

    Args:
        survived: rounds in which the first i candidates were all accepted, for i = 1 ... depth.
    """

    rounds: int = 0
    survived: list[int] = field(default_factory=list)

    def add(self, accepted: int, depth: int) -> None:
        """One round that could have had `depth` candidates."""
        self.survived += [0] * (depth - len(self.survived))
        self.rounds += 1
        for at in range(accepted):
            self.survived[at] += 1

    @property
    def survival(self) -> list[float]:
        """s_1, s_2, ..."""
        return [count / self.rounds for count in self.survived] if self.rounds else []

    @property
    def tokens_per_round(self) -> float:
        """Emitted tokens per round: accepted ones and one more."""
        return 1 + sum(self.survival)


@dataclass(slots=True)
class Figures:
    """What was measured on held-out texts.

    Args:
        by_category: rounds by category, and all of them together.
        ranks: `[depth, RANKS]` counts: how often the target's token had this place in the order of the draft position.
        overlap: `[depth]` sums of the share of probability that draft and target have in common, which is
            the chance that `rejection` accepts at temperature 1.
        rows: `[depth]` rows in these sums.
    """

    by_category: dict[str, Rounds] = field(default_factory=lambda: defaultdict(Rounds))
    ranks: Tensor = field(default_factory=lambda: torch.zeros(0, RANKS))
    overlap: Tensor = field(default_factory=lambda: torch.zeros(0))
    rows: Tensor = field(default_factory=lambda: torch.zeros(0))

    @property
    def total(self) -> Rounds:
        return self.by_category[EVERYTHING]

    def add_rows(self, ranks: Tensor, overlap: Tensor, rows: Tensor) -> None:
        """Add the counts and sums of some texts, `[depth, RANKS]`, `[depth]` and `[depth]`."""
        if not len(self.rows):
            self.ranks, self.overlap, self.rows = ranks, overlap, rows
        else:
            self.ranks, self.overlap, self.rows = self.ranks + ranks, self.overlap + overlap, self.rows + rows

    def quality(self) -> dict[str, Any]:
        """As an artifact tells it: ratios, rounded to four places."""
        rows = self.rows.clamp(min=1)
        return {
            "survival": {name: _rounded(rounds.survival) for name, rounds in sorted(self.by_category.items())},
            "tokens_per_round": {
                name: round(rounds.tokens_per_round, 4) for name, rounds in sorted(self.by_category.items())
            },
            "ranks": [_rounded(shares) for shares in (self.ranks / rows[:, None]).tolist()],
            "overlap": _rounded((self.overlap / rows).tolist()),
        }


def add_rounds(figures: Figures, hits: Tensor, learned: Tensor, categories: Sequence[str]) -> None:
    """Walk through texts in rounds.

    Args:
        hits: `[batch, length, depth]`, at t whether candidate i is the target's most likely token t + 1 + i.
        learned: `[batch, length]` tokens that the target wrote.
    """
    accepted = hits.long().cumprod(-1).sum(-1).tolist()
    depth = hits.shape[-1]
    for row, category, flags in zip(accepted, categories, learned.tolist(), strict=True):
        for start, stop in _runs(flags):
            # The token at `start` comes from reading the prompt; the last one that can be drafted is at stop - 1.
            at = max(start - 1, 0)
            while at + 2 < stop:
                kept = min(row[at], stop - at - 2)
                for rounds in {category, EVERYTHING}:
                    figures.by_category[rounds].add(kept, depth)
                at += kept + 1


def _runs(flags: Sequence[bool]) -> list[tuple[int, int]]:
    """[start, stop) of every run of true."""
    edges = [
        at for at, (before, here) in enumerate(zip([False, *flags], [*flags, False], strict=True)) if before != here
    ]
    return list(zip(edges[::2], edges[1::2], strict=True))


def score_rows(
    logits: Sequence[Tensor], greedy: Tensor, target_probs: Tensor, pairs: Pairs, draft_ids: Tensor | None
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """Compare drafts with the target, position by position.

    Args:
        logits: for each draft position i `[batch, length, draft_vocab]`, at t for the token t + 1 + i.
        greedy: `[batch, length]` the target's most likely token behind t.
        target_probs: `[num_known, draft_vocab]` of the target, for the tokens behind `pairs.before`.

    Returns:
        `[batch, length, depth]` hits, as `add_rounds` wants them, and ranks, overlap and rows as `Figures` does.
    """
    hits = torch.zeros(greedy.numel(), len(logits), dtype=torch.bool, device=greedy.device)
    ranks, overlap, count = torch.zeros(len(logits), RANKS), torch.zeros(len(logits)), torch.zeros(len(logits))
    for at, part in enumerate(logits, start=1):
        rows, places = pairs.rows(at)
        scores = part.flatten(0, 1)[rows].float()
        order = scores.topk(min(RANKS, scores.shape[-1])).indices
        tokens = order if draft_ids is None else draft_ids[order]
        found = tokens == greedy.flatten()[rows + at, None]
        hits[rows, at - 1] = found[:, 0]
        ranks[at - 1, : found.shape[-1]] = found.sum(0).cpu()
        overlap[at - 1] = torch.minimum(scores.softmax(-1), target_probs[places]).sum().cpu()
        count[at - 1] = len(rows)
    return hits.view(*greedy.shape, len(logits)), (ranks, overlap, count)


def shown(quality: Mapping[str, Any]) -> str:
    """The figures of all held-out texts in one line."""
    survival = " ".join(f"{share:.2f}" for share in quality["survival"].get(EVERYTHING, []))
    return f"survival {survival}, {quality['tokens_per_round'].get(EVERYTHING, 1):.2f} tokens per round"


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 4) for value in values]
