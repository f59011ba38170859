"""The draft model proposer keeps its cache in step with the request whatever became of its drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import Draft, ProposalRow, Use
from gamaneh.kv import BlockPool, KVManager
from gamaneh.options import SamplingParams
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.proposers.draft_reader import CHUNK
from gamaneh.proposers.tree import Style
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.testing import Script, ScriptedRunner, hashed

VOCAB = 50


def proposer_over(script: Script, *, max_context: int = 256, num_blocks: int = 128, **options) -> DraftModelProposer:
    runner = ScriptedRunner(script, VOCAB, max_context=max_context, num_blocks=num_blocks)
    pool = BlockPool(num_blocks, runner.cache.block_size, prefix_cache=False)
    return DraftModelProposer(
        PagedBackend(runner, KVManager(pool, runner.cache)), vocab_size=options.pop("vocab_size", VOCAB), **options
    )


def row(tokens: Sequence[int], k: int = 4, *, request_id: str = "r", want_probs: bool = False, **params) -> ProposalRow:
    sampling = SamplingParams(**params)
    sampler = RequestSampler(
        sampling, vocab_size=VOCAB, prompt=tokens[:1], tokens=tokens, eos_ids=(), seed=sampling.seed or 0
    )
    return ProposalRow(request_id, tokens, k, k, sampler, Use.DRAFT if want_probs else Use.TARGET, want_probs)


def greedy(script: Script, tokens: Sequence[int], count: int) -> tuple[int, ...]:
    history = list(tokens)
    for _ in range(count):
        history.append(int(script(history).argmax()))
    return tuple(history[len(tokens) :])


@pytest.mark.parametrize("accepted", range(5))
def test_drafts_are_right_after_any_number_of_accepted_tokens(accepted: int) -> None:
    """CASES kind 03: after a fully accepted draft the cache lacks its last token."""
    script = hashed(VOCAB)
    proposer = proposer_over(script)
    tokens = [1, 2, 3]
    for _ in range(6):
        (draft,) = proposer.propose([row(tokens)])
        assert draft.tokens == greedy(script, tokens, 4)
        tokens = [*tokens, *draft.tokens[:accepted], 7]


def test_a_draft_that_was_paused_catches_up() -> None:
    script = hashed(VOCAB)
    proposer = proposer_over(script)
    proposer.propose([row([1, 2, 3])])
    tokens = [1, 2, 3, *range(10, 40)]
    assert proposer.propose([row(tokens)])[0].tokens == greedy(script, tokens, 4)


def test_long_prompts_are_read_in_pieces() -> None:
    script = hashed(VOCAB)
    proposer = proposer_over(script, max_context=2000, num_blocks=500)
    tokens = [at % VOCAB for at in range(CHUNK * 2 + 9)]
    assert proposer.propose([row(tokens)])[0].tokens == greedy(script, tokens, 4)
    assert max(len(feed.tokens) for feeds in proposer.reader.backend.model.forwards for feed in feeds) <= CHUNK


def test_requests_are_drafted_in_one_batch_with_their_own_lengths() -> None:
    script = hashed(VOCAB)
    proposer = proposer_over(script)
    rows = [row([1, 2], 2, request_id="a"), row([3, 4, 5], 5, request_id="b")]
    drafts = proposer.propose(rows)
    assert [draft.tokens for draft in drafts] == [greedy(script, [1, 2], 2), greedy(script, [3, 4, 5], 5)]
    assert len(proposer.reader.backend.model.forwards) == 5


def test_nothing_is_drafted_beyond_the_draft_models_own_context() -> None:
    proposer = proposer_over(hashed(VOCAB), max_context=10)
    assert len(proposer.propose([row(list(range(8)))])[0]) == 2
    assert len(proposer.propose([row(list(range(20)), request_id="long")])[0]) == 0


def test_nothing_is_drafted_when_the_draft_cache_is_full() -> None:
    proposer = proposer_over(hashed(VOCAB), num_blocks=2)
    assert len(proposer.propose([row(list(range(40)))])[0]) == 0


def test_dropping_a_request_frees_its_blocks() -> None:
    proposer = proposer_over(hashed(VOCAB))
    proposer.propose([row([1, 2, 3])])
    proposer.forget("r")
    proposer.forget("unknown")
    assert proposer.reader.backend.kv.pool.in_use == 0


def test_a_path_ends_where_the_draft_model_is_not_sure() -> None:
    def script(history: Sequence[int]) -> Tensor:
        sure = torch.full((VOCAB,), -9.0).index_fill_(0, torch.tensor(3), 9.0)
        return sure if len(history) < 5 else torch.zeros(VOCAB)

    proposer = proposer_over(script, style=Style(0.3))
    assert proposer.propose([row([1, 2], 8)])[0].tokens == (3, 3, 3)


def test_where_a_path_ends_does_not_depend_on_the_token_drawn() -> None:
    """Leaving out unlikely draws would change the law that the rules divide by."""
    probs = torch.tensor([0.6, 0.4 / 49] + [0.4 / 49] * 48)
    lengths = set()
    for seed in range(40):
        proposer = proposer_over(lambda history: probs.log(), style=Style(0.5))
        (draft,) = proposer.propose([row([1, 2], 4, want_probs=True, temperature=1.0, seed=seed)])
        lengths.add(len(draft))
    assert lengths == {4}


def test_probabilities_are_those_that_the_tokens_were_drawn_from() -> None:
    script = hashed(VOCAB)
    proposer = proposer_over(script)
    (draft,) = proposer.propose([row([1, 2], 3, want_probs=True, temperature=0.7, top_k=5, seed=1)])
    assert draft.probs is not None
    history = [1, 2]
    for token, probs in zip(draft.tokens, draft.probs, strict=True):
        top = (script(history) / 0.7).topk(5)
        expected = torch.zeros(VOCAB).index_copy_(0, top.indices, top.values.softmax(0))
        torch.testing.assert_close(probs, expected)
        assert probs[token] > 0
        history.append(token)


def test_a_greedy_draft_has_no_probabilities() -> None:
    asked = replace(row([1, 2], 3, want_probs=True, temperature=1.0), draft_sampling="greedy")
    (draft,) = proposer_over(hashed(VOCAB)).propose([asked])
    assert draft.probs is None
    assert draft.tokens == greedy(hashed(VOCAB), [1, 2], 3)


@pytest.mark.parametrize("target_vocab", [40, 64])
def test_vocabularies_may_be_padded_to_different_sizes(target_vocab: int) -> None:
    script = hashed(VOCAB)
    proposer = proposer_over(script, vocab_size=target_vocab)
    tokens, sampling = [1, 2], SamplingParams()
    sampler = RequestSampler(sampling, vocab_size=target_vocab, prompt=tokens, tokens=tokens, eos_ids=(), seed=0)
    draft: Draft = proposer.propose([ProposalRow("r", tokens, 6, 6, sampler)])[0]
    history = list(tokens)
    for token in draft.tokens:
        assert token == int(script(history)[:target_vocab].argmax())
        history.append(token)
