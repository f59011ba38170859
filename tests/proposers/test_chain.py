"""A chain grows by the request's own sampling, and ends only by what it knows before it draws."""

from __future__ import annotations

import pytest
import torch

from gamaneh.core import Draft, ProposalRow, Use
from gamaneh.errors import BadLogits
from gamaneh.options import SamplingParams
from gamaneh.proposers.tree import Style, TreeBuilder, best, pick
from gamaneh.sampling.pipeline import RequestSampler

VOCAB = 20
LOGITS = torch.linspace(-2.0, 2.0, VOCAB)


def row(*, want_probs: bool = False, draft_sampling: str = "request", **params: object) -> ProposalRow:
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    tokens = [1, 2]
    sampler = RequestSampler(
        sampling, vocab_size=VOCAB, prompt=tokens, tokens=tokens, eos_ids=(), seed=sampling.seed or 0
    )
    use = Use.DRAFT if want_probs else Use.TARGET
    return ProposalRow("r", tokens, 4, 4, sampler, use, want_probs, draft_sampling=draft_sampling)  # type: ignore[arg-type]


def grown(chain: TreeBuilder, *rows: torch.Tensor) -> Draft:
    """The draft that comes of these rows of logits."""
    for logits in rows:
        if chain.is_open:
            chain.grow([logits])
    return chain.draft()


def test_probabilities_are_those_of_the_draw() -> None:
    probs = grown(TreeBuilder(row(want_probs=True, temperature=0.7, top_k=3, seed=1)), LOGITS).probs
    assert probs is not None
    top = (LOGITS / 0.7).topk(3)
    torch.testing.assert_close(probs[0], torch.zeros(VOCAB).index_copy_(0, top.indices, top.values.softmax(0)))


def test_penalties_see_the_candidates_before() -> None:
    assert grown(TreeBuilder(row(frequency_penalty=2.0)), LOGITS, LOGITS).tokens == (19, 18)


def test_a_greedy_draft_of_a_sampled_request_has_no_probabilities() -> None:
    draft = grown(TreeBuilder(row(want_probs=True, draft_sampling="greedy", temperature=1.0)), LOGITS)
    assert (draft.tokens, draft.probs) == ((19,), None)


def test_the_length_does_not_depend_on_the_draws() -> None:
    sure = torch.full((VOCAB,), -2.0).index_fill_(0, torch.tensor(3), 2.0)
    lengths = set()
    for seed in range(30):
        chain = TreeBuilder(row(temperature=1.0, seed=seed), Style(min_confidence=0.5))
        lengths.add(len(grown(chain, sure, sure, LOGITS)))
    assert lengths == {2}


def test_a_chain_ends_where_nothing_that_it_can_say_is_allowed() -> None:
    only = torch.full((VOCAB,), -torch.inf).index_fill_(0, torch.tensor(3), 1.0)
    chain = TreeBuilder(row(bad_words=((3,),)))
    assert len(grown(chain, only)) == 0
    assert not chain.is_open


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_are_an_error(temperature: float) -> None:
    with pytest.raises(BadLogits):
        TreeBuilder(row(temperature=temperature)).grow([torch.full((VOCAB,), torch.nan)])


@pytest.mark.parametrize("sampling", ["request", "greedy"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_several_candidates_begin_with_the_one_that_is_taken_alone(temperature: float, sampling: str) -> None:
    request = row(temperature=temperature, seed=4, draft_sampling=sampling)
    scores = request.sampler.scores(LOGITS, ())
    alone = pick(request, scores, len(request.tokens))
    several = [token for _, token in best(request, scores, len(request.tokens), 5)]
    assert several[0] == alone
    assert len(set(several)) == 5
