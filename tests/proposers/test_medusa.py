"""Parallel heads draft chains, and trees where the rule takes them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from gamaneh.core import ProposalRow, Use
from gamaneh.heads.medusa_heads import load_medusa
from gamaneh.heads.parallel import ParallelHeads
from gamaneh.options import SamplingParams
from gamaneh.proposers.medusa import ParallelHeadsProposer
from gamaneh.proposers.tree import static_tree
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.testing import tiny_heads, tiny_model

TARGET = tiny_model("llama")
VOCAB, DEPTH = TARGET.config.vocab_size, 3
HIDDEN = torch.randn(64, 32, generator=torch.Generator().manual_seed(7))
SHARES = [[0.5, 0.3, 0.1], [0.4, 0.2, 0.1], [0.3, 0.1, 0.05]]


def heads() -> ParallelHeads:
    return load_medusa(tiny_heads(TARGET, draft_vocab=200, depth=DEPTH), TARGET)


def row(
    tokens: Sequence[int], depth: int = DEPTH, nodes: int | None = None, *, request_id: str = "r", **params: object
) -> ProposalRow:
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    sampler = RequestSampler(
        sampling, vocab_size=VOCAB, prompt=tokens, tokens=tokens, eos_ids=(), seed=sampling.seed or 0
    )
    return ProposalRow(
        request_id, tokens, depth, nodes or depth, sampler, Use.TARGET, hidden=HIDDEN[len(tokens) - 2, None, None]
    )


def best(drafting: ParallelHeads, tokens: Sequence[int], count: int) -> list[list[int]]:
    """For each depth the likeliest tokens."""
    ids = drafting.draft_ids()
    assert ids is not None
    levels = drafting(HIDDEN[len(tokens) - 2, None], torch.tensor([tokens[-1]]))
    return [ids[logits[0].topk(count).indices].tolist() for logits in levels]


def test_a_chain_holds_the_best_guess_for_each_position() -> None:
    drafting = heads()
    proposer = ParallelHeadsProposer(drafting, vocab_size=VOCAB)
    rows = [row([1, 2, 3]), row([4, 5], 2, request_id="s")]
    drafts = proposer.propose(rows)
    for one, draft in zip(rows, drafts, strict=True):
        guesses = best(drafting, one.tokens, 1)[: one.max_depth]
        assert draft.is_chain and [[token] for token in draft.tokens] == guesses


def test_a_tree_holds_the_guesses_of_the_static_tree() -> None:
    drafting = heads()
    proposer = ParallelHeadsProposer(drafting, vocab_size=VOCAB, shares=SHARES, branching=3)
    (draft,) = proposer.propose([row([1, 2, 3], nodes=9)])
    places = static_tree(tuple(map(tuple, SHARES)), DEPTH, 9)
    guesses = best(drafting, [1, 2, 3], 3)
    assert draft.parents == tuple(place.parent for place in places)
    assert list(draft.tokens) == [guesses[place.depth - 1][place.rank] for place in places]


def test_where_only_chains_are_allowed_a_chain_is_made() -> None:
    proposer = ParallelHeadsProposer(heads(), vocab_size=VOCAB, shares=SHARES, branching=3)
    (draft,) = proposer.propose([row([1, 2, 3])])
    assert draft.is_chain and draft.depth == DEPTH


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_first_branch_of_a_tree_is_the_chain(temperature: float) -> None:
    proposer = ParallelHeadsProposer(heads(), vocab_size=VOCAB, shares=SHARES, branching=3)
    (tree,) = proposer.propose([row([1, 2, 3], nodes=9, temperature=temperature, seed=5)])
    (chain,) = proposer.propose([row([1, 2, 3], temperature=temperature, seed=5)])
    node, path = -1, []
    while children := tree.children(node):
        node = children[0]
        path.append(tree.tokens[node])
    assert tuple(path) == chain.tokens[: len(path)] and path


def test_guesses_that_are_not_allowed_leave_gaps_in_the_tree() -> None:
    proposer = ParallelHeadsProposer(heads(), vocab_size=VOCAB, shares=SHARES, branching=3)
    (free,) = proposer.propose([row([1, 2, 3], nodes=9)])
    allowed = tuple((token,) for token in range(VOCAB) if token != free.tokens[0])
    (draft,) = proposer.propose([row([1, 2, 3], nodes=9, bad_words=allowed)])
    assert set(draft.tokens) == {free.tokens[0]} and draft.is_chain


def test_without_measured_guesses_drafts_are_chains() -> None:
    proposer = ParallelHeadsProposer(heads(), vocab_size=VOCAB, branching=3)
    assert proposer.needs.branching == 1
    assert proposer.needs.max_depth == DEPTH


def test_nothing_is_drafted_where_no_hidden_state_is_known() -> None:
    proposer = ParallelHeadsProposer(heads(), vocab_size=VOCAB)
    unknown = row([1, 2, 3])
    unknown.hidden = None
    known = row([1, 2, 3], request_id="s")
    assert [len(draft) for draft in proposer.propose([unknown, known])] == [0, DEPTH]
    assert [len(draft) for draft in proposer.propose([unknown])] == [0]
