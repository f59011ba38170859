"""Trees of the draft model: the best candidates on each level, within the nodes allowed, in step with its cache."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import ROOT, Draft, ProposalRow, Use
from gamaneh.kv import BlockPool, KVManager
from gamaneh.options import SamplingParams
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.proposers.tree import Style
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.testing import Script, ScriptedRunner, constant, hashed

VOCAB = 40


def proposer_over(
    script: Script, *, branching: int = 3, min_confidence: float = 0.0, max_context: int = 256, **options
) -> DraftModelProposer:
    runner = ScriptedRunner(script, VOCAB, num_blocks=options.pop("num_blocks", 100), max_context=max_context)
    pool = BlockPool(runner.cache.num_blocks, runner.cache.block_size, prefix_cache=False)
    kv = KVManager(pool, runner.cache)
    return DraftModelProposer(
        PagedBackend(runner, kv), vocab_size=VOCAB, style=Style(min_confidence, branching), **options
    )


def row(tokens: Sequence[int], depth: int = 4, nodes: int = 12, *, request_id: str = "r", **params) -> ProposalRow:
    sampling = SamplingParams(**params)
    sampler = RequestSampler(
        sampling, vocab_size=VOCAB, prompt=tokens[:1], tokens=tokens, eos_ids=(), seed=sampling.seed or 0
    )
    return ProposalRow(request_id, tokens, depth, nodes, sampler, Use.TARGET)


def chance(script: Script, tokens: Sequence[int], draft: Draft, node: int) -> float:
    """Probability of a node's whole path."""
    path = draft.path_tokens(node)
    rows = [script([*tokens, *path[:depth]]).double().softmax(0) for depth in range(len(path))]
    return math.prod(float(probs[token]) for probs, token in zip(rows, path, strict=True))


@pytest.mark.parametrize("accepted", range(4))
def test_a_tree_is_right_after_any_number_of_accepted_tokens(accepted: int) -> None:
    """The script reads each node's path from the cache itself."""
    script = hashed(VOCAB, sharpness=1.5)
    proposer = proposer_over(script)
    tokens = [1, 2, 3]
    for _ in range(6):
        (draft,) = proposer.propose([row(tokens)])
        for node in range(len(draft)):
            logits = script([*tokens, *draft.path_tokens(draft.parents[node])])
            siblings = {draft.tokens[child] for child in draft.children(draft.parents[node])}
            assert draft.tokens[node] in logits.topk(3).indices
            assert int(logits.argmax()) in siblings
        best = max(range(len(draft)), key=lambda node: draft.depths[node])
        tokens = [*tokens, *draft.path_tokens(best)[:accepted], 7]


def test_the_likeliest_nodes_remain() -> None:
    """Of all nodes that the branching reaches, whatever their level."""
    script = hashed(VOCAB, sharpness=1.0)
    tokens = [5, 6]
    (small,) = proposer_over(script).propose([row(tokens, 3, 9)])
    (large,) = proposer_over(script).propose([row(tokens, 3, 500)])
    chances = sorted((chance(script, tokens, large, node) for node in range(len(large))), reverse=True)
    kept = sorted((chance(script, tokens, small, node) for node in range(len(small))), reverse=True)
    assert len(large) == 21  # three nodes branch on each level but the last
    assert kept == pytest.approx(chances[:9], rel=1e-3)


@pytest.mark.parametrize(("depth", "nodes"), [(1, 3), (2, 6), (5, 15), (6, 8), (3, 4)])
def test_a_tree_keeps_to_its_limits(depth: int, nodes: int) -> None:
    proposer = proposer_over(hashed(VOCAB, sharpness=1.0))
    (draft,) = proposer.propose([row([1, 2], depth, nodes)])
    assert 0 < len(draft) <= nodes
    assert draft.depth <= depth
    assert len(set(zip(draft.tokens, draft.parents, strict=True))) == len(draft)


def test_a_sure_draft_model_makes_a_path_and_an_unsure_one_a_broad_tree() -> None:
    (sure,) = proposer_over(hashed(VOCAB, sharpness=30.0)).propose([row([1, 2], 6, 8)])
    (unsure,) = proposer_over(constant([1 / VOCAB] * VOCAB)).propose([row([1, 2], 6, 8)])
    assert sure.depth == 6
    assert unsure.depth < 4
    assert len(unsure.children(ROOT)) == 3


def test_one_node_per_level_is_the_chain() -> None:
    """Where the rule takes chains only, or the options ask for no branches."""
    script = hashed(VOCAB)
    (chain,) = proposer_over(script, branching=1).propose([row([1, 2], 4, 4)])
    for proposer, nodes in ((proposer_over(script), 4), (proposer_over(script, branching=1), 12)):
        (draft,) = proposer.propose([row([1, 2], 4, nodes)])
        assert draft.is_chain
        assert draft.tokens == chain.tokens


def test_sampled_children_are_the_best_of_score_and_noise() -> None:
    """Gumbel top-k with the request's own noise: the first child is what the target would draw here."""
    script = hashed(VOCAB, sharpness=1.0)
    tokens = [3, 4]
    for seed in range(20):
        request = row(tokens, 2, 6, temperature=1.0, seed=seed)
        (draft,) = proposer_over(script).propose([request])
        first = [draft.tokens[node] for node in draft.children(ROOT)]
        ranked = request.sampler.ranked(script(tokens), 2, Use.TARGET, 3)
        assert first == [token for _, token in ranked][: len(first)]
        assert first[0] == request.sampler.pick(script(tokens), 2, Use.TARGET)


def test_a_greedy_draft_of_a_sampled_request_has_no_noise() -> None:
    script = hashed(VOCAB, sharpness=1.0)
    asked = replace(row([3, 4], 2, 6, temperature=1.0, seed=1), draft_sampling="greedy")
    (draft,) = proposer_over(script).propose([asked])
    first = [draft.tokens[node] for node in draft.children(ROOT)]
    assert first == script([3, 4]).topk(3).indices.tolist()[: len(first)]


def test_paths_end_where_the_draft_model_is_not_sure() -> None:
    def script(history: Sequence[int]) -> torch.Tensor:
        return hashed(VOCAB, sharpness=30.0)(history) if len(history) < 4 else torch.zeros(VOCAB)

    (draft,) = proposer_over(script, min_confidence=0.3).propose([row([1, 2], 8, 24)])
    assert draft.depth == 2


def test_only_allowed_tokens_become_nodes() -> None:
    banned = tuple((token,) for token in range(VOCAB) if token not in (7, 8))
    (draft,) = proposer_over(hashed(VOCAB)).propose([row([1, 2], 3, 9, bad_words=banned)])
    assert set(draft.tokens) == {7, 8}


def test_trees_and_chains_of_many_requests_grow_in_one_batch() -> None:
    script = hashed(VOCAB, sharpness=2.0)
    rows = [row([1, 2], 3, 9, request_id="tree"), row([3], 4, 4, request_id="chain"), row([4, 5], 2, 6, request_id="s")]
    alone = [proposer_over(script).propose([one])[0] for one in rows]
    together = proposer_over(script)
    shapes = [(draft.tokens, draft.parents) for draft in together.propose(rows)]
    assert shapes == [(draft.tokens, draft.parents) for draft in alone]
    assert len(together.reader.backend.model.forwards) == 4


def test_trees_keep_nothing_but_the_tokens_of_the_request() -> None:
    proposer = proposer_over(hashed(VOCAB))
    tokens = list(range(30))
    proposer.propose([row(tokens)])
    assert proposer.reader.backend.kv.length("r") == len(tokens) - 1
    proposer.reader.backend.kv.check_integrity()
    proposer.forget("r")
    assert proposer.reader.backend.kv.pool.in_use == 0


@pytest.mark.parametrize("options", [{"num_blocks": 3}, {"max_context": 12}])
def test_a_tree_is_smaller_where_the_draft_model_has_no_room(options: dict[str, int]) -> None:
    """Blocks of 4 tokens."""
    proposer = proposer_over(hashed(VOCAB, sharpness=1.0), **options)
    (draft,) = proposer.propose([row(list(range(8)), 6, 18)])
    assert 0 < draft.depth < 6
