"""The block proposer drafts what its heads say in training, whatever became of the drafts before."""

from __future__ import annotations

import pytest
import torch
from test_eagle_proposer import row, text_of

from gamaneh.core import EMPTY_DRAFT, ProposalRow
from gamaneh.heads.block_heads import BlockHeads, load_block
from gamaneh.heads.block_runner import BlockRunner
from gamaneh.heads.trainable import TrainBatch
from gamaneh.models.loading import LoadedModel
from gamaneh.proposers import block
from gamaneh.proposers.block import BlockProposer
from gamaneh.proposers.tree import Style
from gamaneh.testing import BYTE_VOCAB, tiny_heads, tiny_model

DEPTH = 4


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture(scope="module", params=[None, 100], ids=["all tokens", "100 tokens"])
def heads(target: LoadedModel, request: pytest.FixtureRequest) -> BlockHeads:
    return load_block(tiny_heads(target, "block", seed=2, depth=DEPTH, draft_vocab=request.param), target)


def proposer_over(heads: BlockHeads, target: LoadedModel, style: Style | None = None) -> BlockProposer:
    return BlockProposer(BlockRunner(heads, target), vocab_size=BYTE_VOCAB, style=style or Style())


def chain(heads: BlockHeads, given: ProposalRow) -> tuple[int, ...]:
    """The greedy chain by the training code: the whole text again for each candidate."""
    tokens, hidden, found = list(given.tokens), given.hidden, []
    assert hidden is not None
    ids = heads.draft_ids()
    for level in range(DEPTH):
        text = torch.tensor([[*tokens[len(tokens) - 1 - len(hidden) :], *found]])
        states = torch.zeros(1, text.shape[1], *hidden.shape[1:])
        states[0, : len(hidden)] = hidden
        logits = heads.draft_logits(TrainBatch(text, states, torch.ones_like(text).bool()))
        best = int(logits[level][0, len(hidden) - 1].argmax())
        found.append(best if ids is None else int(ids[best]))
    return tuple(found)


@pytest.mark.parametrize("accepted", range(DEPTH + 1))
def test_drafts_are_right_after_any_number_of_accepted_tokens(
    heads: BlockHeads, target: LoadedModel, accepted: int
) -> None:
    """CASES kind 03: rows of marked places do not stay in the cache."""
    proposer = proposer_over(heads, target)
    tokens, hidden = text_of(60)
    length = 9
    for _ in range(5):
        given = row(tokens[:length], hidden)
        (draft,) = proposer.propose([given])
        assert draft.tokens == chain(heads, given)
        length += accepted + 1


def test_all_requests_of_a_round_share_one_forward(
    heads: BlockHeads, target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer, calls = proposer_over(heads, target), []
    verify = proposer.runner.backend.verify
    monkeypatch.setattr(proposer.runner.backend, "verify", lambda feeds: (calls.append(len(feeds)), verify(feeds)))
    tokens, hidden = text_of(40)
    rows = [row(tokens[:length], hidden, k=k, request_id=str(length)) for length, k in ((9, 4), (30, 1), (17, 2))]
    drafts = proposer.propose(rows)
    assert (calls, [len(draft) for draft in drafts]) == ([3], [4, 1, 2])
    assert [draft.tokens for draft in drafts] == [chain(heads, given)[: given.max_depth] for given in rows]


def test_a_gap_starts_anew_from_what_is_known(heads: BlockHeads, target: LoadedModel) -> None:
    """CASES kind 25."""
    proposer = proposer_over(heads, target)
    tokens, hidden = text_of(40)
    proposer.propose([row(tokens[:10], hidden)])
    given = row(tokens, hidden, known=6)
    (draft,) = proposer.propose([given])
    assert draft.tokens == chain(heads, given)


def test_a_long_request_starts_anew_with_the_last_tokens(
    heads: BlockHeads, target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block, "LONGEST", 20)
    proposer = proposer_over(heads, target)
    tokens, hidden = text_of(60)
    proposer.propose([row(tokens[:30], hidden)])
    given = row(tokens[:40], hidden, known=12)
    (draft,) = proposer.propose([given])
    assert draft.tokens == chain(heads, given)
    assert proposer.runner.backend.length("r") == 12


def test_nothing_is_drafted_without_hidden_states_or_without_room(
    heads: BlockHeads, target: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = proposer_over(heads, target)
    tokens, hidden = text_of(9)
    unknown = row(tokens, hidden)
    unknown.hidden = None
    assert proposer.propose([unknown]) == [EMPTY_DRAFT]
    monkeypatch.setattr(proposer.runner.backend, "reserve", lambda request_id, extra: False)
    assert proposer.propose([row(tokens, hidden)]) == [EMPTY_DRAFT]
    proposer.runner.backend.check_integrity()


def test_the_cache_of_forgotten_requests_is_free_again(heads: BlockHeads, target: LoadedModel) -> None:
    proposer = proposer_over(heads, target)
    before = proposer.runner.backend.room()
    tokens, hidden = text_of(40)
    proposer.propose([row(tokens, hidden)])
    proposer.forget("r")
    assert proposer.runner.backend.room() == before


def test_trees_hold_the_chain_and_what_stands_beside_it(heads: BlockHeads, target: LoadedModel) -> None:
    tokens, hidden = text_of(20)
    given = row(tokens, hidden, nodes=12)
    (draft,) = proposer_over(heads, target, Style(0.0, 3)).propose([given])
    (alone,) = proposer_over(heads, target).propose([row(tokens, hidden)])
    assert len(draft) == 12 and not draft.is_chain
    assert alone.tokens[0] in [draft.tokens[node] for node in draft.children(-1)]


def test_what_became_of_a_chain_is_learned_up_to_the_first_refusal(heads: BlockHeads, target: LoadedModel) -> None:
    proposer = proposer_over(heads, target)
    tokens, hidden = text_of(40)
    (draft,) = proposer.propose([row(tokens[:9], hidden)])
    wrong = (draft.tokens[2] + 1) % 256
    proposer.propose([row([*tokens[:9], *draft.tokens[:2], wrong], hidden)])
    seen = {line.kind[0]: line.accepted for line in proposer.acceptance.reliability()}
    assert seen == {0: 1.0, 1: 1.0, 2: 0.0}


def test_a_chain_ends_where_candidates_are_never_accepted(heads: BlockHeads, target: LoadedModel) -> None:
    proposer = proposer_over(heads, target, Style(min_confidence=0.01))
    tokens, hidden = text_of(40)
    (before,) = proposer.propose([row(tokens[:9], hidden)])
    for hundredths in range(100):
        for _ in range(500):
            proposer.acceptance.learn(2, False, hundredths / 100, False)
    proposer.forget("r")
    (after,) = proposer.propose([row(tokens[:9], hidden)])
    assert after.tokens == before.tokens[:2]


def test_nothing_is_learned_of_an_aborted_request(heads: BlockHeads, target: LoadedModel) -> None:
    proposer = proposer_over(heads, target)
    tokens, hidden = text_of(40)
    proposer.propose([row(tokens[:9], hidden)])
    proposer.forget("r")
    proposer.propose([row(tokens[:12], hidden)])
    assert not proposer.acceptance.reliability()
