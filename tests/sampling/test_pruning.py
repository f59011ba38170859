"""Drafts cut to what a mask allows: the right nodes, and the target's law whatever the rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from rule_worlds import Drafter, Law, Tape, distance, greedy, output_law, plain_law, sampled
from torch import Tensor

from gamaneh.core import Draft, Rule
from gamaneh.options import SpeculationOptions
from gamaneh.sampling.pruning import prune
from gamaneh.sampling.rules import RULES

EXACT = [factory(SpeculationOptions()) for factory in RULES.values() if factory(SpeculationOptions()).exact]
END = 9


@dataclass
class Falling:
    """Allows tokens below the one before, 8 at first; tokens from 6 on have no place in its row."""

    def mask(self, path: Sequence[int]) -> Tensor:
        return torch.arange(6) < (path[-1] if path else 8)


@dataclass
class Anything:
    def mask(self, path: Sequence[int]) -> None:
        return None


def test_a_chain_is_cut_before_the_first_refused_token() -> None:
    assert prune(Draft.chain([5, 3, 4, 1]), Falling(), ()).tokens == (5, 3)


@pytest.mark.parametrize("tokens", [[6], [7, 3]])
def test_tokens_beyond_the_mask_are_refused(tokens: list[int]) -> None:
    assert len(prune(Draft.chain(tokens), Falling(), ())) == 0


def test_a_draft_that_is_allowed_stays_whole() -> None:
    draft = Draft((5, 4, 3, 2), (-1, -1, 0, 2))
    pruned = prune(draft, Falling(), ())
    assert (pruned.tokens, pruned.parents) == (draft.tokens, draft.parents)


def test_a_tree_loses_refused_nodes_with_all_below_them() -> None:
    #        5 -> 2 -> 1     the node 7 is refused, 3 below it too; 4 -> 4 is refused
    draft = Draft((7, 5, 3, 2, 4, 1, 4), (-1, -1, 0, 1, -1, 3, 4))
    pruned = prune(draft, Falling(), ())
    assert pruned.tokens == (5, 2, 4, 1)
    assert pruned.parents == (-1, 0, -1, 1)


def test_nothing_follows_an_end_token() -> None:
    draft = Draft((4, END, END, 1), (-1, 0, 1, 0))
    pruned = prune(draft, Anything(), {END})
    assert (pruned.tokens, pruned.parents) == ((4, END, 1), (-1, 0, 0))


def test_probabilities_are_those_of_the_nodes_that_stay() -> None:
    draft = Draft((7, 5, 2), (-1, -1, 1), torch.full((3, 8), 1 / 8))
    pruned = prune(draft, Falling(), ())
    assert pruned.probs is not None
    assert (pruned.probs > 0).int().tolist() == [[1] * 6 + [0] * 2, [1] * 5 + [0] * 3]


@dataclass
class Support:
    """Allows what has a probability under a law."""

    law: Law

    def mask(self, path: Sequence[int]) -> Tensor:
        return self.law(tuple(path)) > 0.0


def masked_law(vocab: int, seed: int, refused: float) -> Law:
    def law(tokens: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, *tokens)) % 2**31)
        weights = torch.rand(vocab, generator=generator, dtype=torch.float64)
        weights[torch.rand(vocab, generator=generator) < refused] = 0.0
        weights[int(torch.randint(vocab, (), generator=generator))] += 0.1
        return weights / weights.sum()

    return law


def pruned(drafter: Drafter, target: Law) -> Drafter:
    def draft(tape: Tape) -> Draft:
        return prune(drafter(tape), Support(target), ())

    return draft


@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
@pytest.mark.parametrize("drafts", [sampled, greedy])
@pytest.mark.parametrize("seed", range(6))
def test_output_follows_the_target_when_refused_candidates_are_left_out(rule: Rule, drafts, seed: int) -> None:
    """The draft knows nothing of the mask, and its probabilities neither."""
    target, draft = masked_law(3, seed, refused=0.5), masked_law(3, seed + 100, refused=0.0)
    law = output_law(rule, target, pruned(drafts(draft, 3), target), 4)
    assert distance(law, plain_law(target, 4)) < 1e-9
