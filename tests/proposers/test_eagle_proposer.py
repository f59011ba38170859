"""The EAGLE proposer drafts what its head says, whatever became of the drafts before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, ROOT, Draft, ProposalRow, Use
from gamaneh.errors import BadLogits
from gamaneh.heads.dense_cache import INITIAL_CAPACITY
from gamaneh.heads.eagle_head import EagleHead, load_eagle
from gamaneh.heads.eagle_runner import EagleRunner
from gamaneh.heads.trainable import TrainBatch
from gamaneh.models.loading import LoadedModel
from gamaneh.options import SamplingParams
from gamaneh.proposers.eagle import CHUNK, EagleProposer
from gamaneh.proposers.tree import Style
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.testing import BYTE_VOCAB, tiny_heads, tiny_model

DEPTH = 4


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return tiny_model("llama")


@pytest.fixture(scope="module")
def head(target: LoadedModel) -> EagleHead:
    return load_eagle(tiny_heads(target, "eagle", seed=2, depth=DEPTH), target)


def proposer_over(head: EagleHead, target: LoadedModel, **options: Any) -> EagleProposer:
    return EagleProposer(EagleRunner(head, target.decoder), vocab_size=BYTE_VOCAB, **options)


def text_of(length: int, *, seed: int = 1) -> tuple[list[int], Tensor]:
    """Tokens, and hidden states as if a target had read them."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 256, (length,), generator=generator).tolist()
    return tokens, torch.randn(length, 2, 32, generator=generator)


def row(
    tokens: Sequence[int],
    hidden: Tensor,
    k: int = DEPTH,
    *,
    known: int | None = None,
    nodes: int | None = None,
    request_id: str = "r",
    want_probs: bool = False,
    **params: Any,
) -> ProposalRow:
    sampling = SamplingParams(**params)
    sampler = RequestSampler(
        sampling, vocab_size=BYTE_VOCAB, prompt=tokens[:1], tokens=tokens, eos_ids=(), seed=sampling.seed or 0
    )
    shown = hidden[: len(tokens) - 1][-(len(tokens) if known is None else known) :]
    use = Use.DRAFT if want_probs else Use.TARGET
    return ProposalRow(request_id, tokens, k, nodes or k, sampler, use, want_probs, hidden=shown)


def expected(head: EagleHead, tokens: Sequence[int], hidden: Tensor, count: int = DEPTH) -> tuple[int, ...]:
    """The head's greedy chain, by its training code: the whole text again for each candidate."""
    found: list[int] = []
    ids = head.draft_ids()
    for _ in range(count):
        best = int(said_after(head, tokens, hidden, found).argmax())
        found.append(best if ids is None else int(ids[best]))
    return tuple(found)


def said_after(head: EagleHead, tokens: Sequence[int], hidden: Tensor, path: Sequence[int]) -> Tensor:
    """`[draft_vocab]` logits of the token behind `tokens` and candidates."""
    text = torch.tensor([[*tokens, *path]])
    states = torch.zeros(1, text.shape[1], *hidden.shape[1:])
    states[0, : len(tokens) - 1] = hidden[: len(tokens) - 1]
    logits = head.draft_logits(TrainBatch(text, states, torch.ones_like(text, dtype=torch.bool)))
    return logits[len(path)][0, len(tokens) - 2]


@pytest.mark.parametrize("accepted", range(DEPTH + 1))
def test_drafts_are_right_after_any_number_of_accepted_tokens(
    head: EagleHead, target: LoadedModel, accepted: int
) -> None:
    """CASES kind 03: rows of a draft are computed again from the target's states."""
    proposer = proposer_over(head, target)
    tokens, hidden = text_of(60)
    length = 9
    for _ in range(5):
        (draft,) = proposer.propose([row(tokens[:length], hidden)])
        assert draft.tokens == expected(head, tokens[:length], hidden)
        length += accepted + 1


def test_nothing_is_drafted_without_hidden_states(head: EagleHead, target: LoadedModel) -> None:
    proposer = proposer_over(head, target)
    tokens, hidden = text_of(9)
    unknown = row(tokens, hidden)
    unknown.hidden = None
    none_yet = row(tokens, hidden)
    none_yet.hidden = hidden[:0]
    both = [unknown, none_yet, row(tokens, hidden, request_id="known")]
    assert [len(draft) for draft in proposer.propose(both)] == [0, 0, DEPTH]


def test_a_gap_starts_anew_from_what_is_known(head: EagleHead, target: LoadedModel) -> None:
    """CASES kind 25: after tokens that it was never shown, the head goes on with those that it was."""
    proposer = proposer_over(head, target)
    tokens, hidden = text_of(40)
    proposer.propose([row(tokens[:10], hidden)])
    (draft,) = proposer.propose([row(tokens, hidden, known=6)])
    assert draft.tokens == expected(head, tokens[-7:], hidden[-7:])


def test_a_request_that_was_dropped_is_read_again(head: EagleHead, target: LoadedModel) -> None:
    proposer = proposer_over(head, target)
    tokens, hidden = text_of(20)
    (first,) = proposer.propose([row(tokens, hidden)])
    proposer.forget("r")
    proposer.forget("never seen")
    other, other_hidden = text_of(20, seed=7)
    proposer.propose([row(other, other_hidden, request_id="takes its place")])
    assert proposer.propose([row(tokens, hidden)])[0].tokens == first.tokens


def test_asking_twice_gives_the_same_draft(head: EagleHead, target: LoadedModel) -> None:
    proposer = proposer_over(head, target)
    tokens, hidden = text_of(20)
    assert proposer.propose([row(tokens, hidden)])[0].tokens == proposer.propose([row(tokens, hidden)])[0].tokens


def test_requests_of_different_length_and_depth_are_drafted_together(head: EagleHead, target: LoadedModel) -> None:
    proposer = proposer_over(head, target)
    texts = {name: text_of(length, seed=length) for name, length in (("a", 30), ("b", 5), ("c", 90), ("d", 2))}
    depths = {"a": 4, "b": 1, "c": 3, "d": 2}
    rows = [row(*text, depths[name], request_id=name) for name, text in texts.items()]
    for draft, (name, (tokens, hidden)) in zip(proposer.propose(rows), texts.items(), strict=True):
        assert draft.tokens == expected(head, tokens, hidden, depths[name])
    proposer.forget("b")
    later = [row(*texts[name], request_id=name) for name in "dca"]
    for draft, name in zip(proposer.propose(later), "dca", strict=True):
        assert draft.tokens == expected(head, *texts[name])


def test_long_prompts_are_read_in_pieces_and_the_cache_grows(head: EagleHead, target: LoadedModel) -> None:
    proposer = proposer_over(head, target)
    tokens, hidden = text_of(CHUNK + 200)
    small, small_hidden = text_of(8, seed=5)
    proposer.propose([row(small, small_hidden, request_id="small")])
    (draft,) = proposer.propose([row(tokens, hidden)])
    assert len(tokens) > INITIAL_CAPACITY
    assert draft.tokens == expected(head, tokens, hidden)
    assert proposer.propose([row(small, small_hidden, request_id="small")])[0].tokens == expected(
        head, small, small_hidden
    )


def test_only_tokens_of_its_vocabulary_are_drafted(target: LoadedModel) -> None:
    head = load_eagle(tiny_heads(target, "eagle", draft_vocab=20), target)
    ids = head.draft_ids()
    assert ids is not None
    tokens, hidden = text_of(20)
    proposer = proposer_over(head, target)
    greedy, drawn = (proposer.propose([row(tokens, hidden, temperature=heat, seed=3)])[0] for heat in (0.0, 2.0))
    assert greedy.tokens == expected(head, tokens, hidden)
    assert set(drawn.tokens) <= set(ids.tolist())


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_a_draft_ends_where_nothing_that_it_knows_is_allowed(target: LoadedModel, temperature: float) -> None:
    head = load_eagle(tiny_heads(target, "eagle", draft_vocab=20), target)
    ids = head.draft_ids()
    assert ids is not None
    tokens, hidden = text_of(20)
    banned = tuple((token,) for token in ids.tolist())
    asked = row(tokens, hidden, temperature=temperature, bad_words=banned)
    assert proposer_over(head, target).propose([asked]) == [EMPTY_DRAFT]


def test_a_head_that_computes_nan_is_a_failure(target: LoadedModel) -> None:
    head = load_eagle(tiny_heads(target, "eagle"), target)
    with torch.no_grad():
        head.norm.fill_(float("nan"))
    with pytest.raises(BadLogits):
        proposer_over(head, target).propose([row(*text_of(9))])


def test_drafts_end_where_the_head_is_unsure(head: EagleHead, target: LoadedModel) -> None:
    tokens, hidden = text_of(30)
    chain = expected(head, tokens, hidden)
    sure = [float(said_after(head, tokens, hidden, chain[:at]).softmax(0).amax()) for at in range(DEPTH)]
    least = sorted(sure[1:])[0]
    draft = proposer_over(head, target, style=Style(least + 1e-4)).propose([row(tokens, hidden)])[0]
    assert draft.tokens == chain[: 1 + sure[1:].index(least)]
    assert len(proposer_over(head, target, style=Style(1.0)).propose([row(tokens, hidden)])[0]) == 1


def test_probabilities_are_those_that_tokens_were_drawn_from(head: EagleHead, target: LoadedModel) -> None:
    tokens, hidden = text_of(30)
    asked = row(tokens, hidden, want_probs=True, temperature=1.0, seed=4)
    (draft,) = proposer_over(head, target).propose([asked])
    assert draft.probs is not None
    assert draft.probs.shape == (DEPTH, BYTE_VOCAB)
    for at, probs in enumerate(draft.probs):
        said = said_after(head, tokens, hidden, draft.tokens[:at]).softmax(0)
        torch.testing.assert_close(probs, said, atol=1e-4, rtol=1e-3)
    (greedy,) = proposer_over(head, target).propose([replace(asked, draft_sampling="greedy")])
    assert greedy.probs is None
    assert greedy.tokens == expected(head, tokens, hidden)


def tree_of(head: EagleHead, target: LoadedModel, tokens: Sequence[int], hidden: Tensor, **options: Any) -> Draft:
    return proposer_over(head, target, style=Style(branching=3)).propose([row(tokens, hidden, 4, nodes=12, **options)])[
        0
    ]


def test_every_branch_is_what_the_head_says_behind_its_own_ancestors(head: EagleHead, target: LoadedModel) -> None:
    """CASES kind 31: rows of a tree see their ancestors and nothing beside them."""
    tokens, hidden = text_of(30)
    draft = tree_of(head, target, tokens, hidden)
    assert not draft.is_chain
    for node in (ROOT, *range(len(draft))):
        children = [draft.tokens[child] for child in draft.children(node)]
        said = said_after(head, tokens, hidden, draft.path_tokens(node)) if len(draft.path(node)) < DEPTH else None
        assert children == [] or said is not None
        if said is not None:
            assert set(children) <= set(said.topk(3).indices.tolist())


def test_a_tree_keeps_its_bounds_and_no_token_twice_below_a_node(head: EagleHead, target: LoadedModel) -> None:
    for seed in range(5):
        tokens, hidden = text_of(30, seed=seed)
        for heat in (0.0, 1.0):
            draft = tree_of(head, target, tokens, hidden, temperature=heat, seed=seed)
            assert len(draft) <= 12
            assert draft.depth <= 4
            for node in (ROOT, *range(len(draft))):
                children = [draft.tokens[child] for child in draft.children(node)]
                assert len(set(children)) == len(children) <= 3


def test_the_first_draw_is_a_branch_of_the_tree(head: EagleHead, target: LoadedModel) -> None:
    """Under `match` the tree widens the chain that would have been drawn with the same noise."""
    for seed in range(8):
        tokens, hidden = text_of(30, seed=seed)
        sampling = {"temperature": 1.0, "seed": seed}
        (chain,) = proposer_over(head, target).propose([row(tokens, hidden, 1, **sampling)])
        tree = tree_of(head, target, tokens, hidden, **sampling)
        assert chain.tokens[0] in [tree.tokens[child] for child in tree.children(ROOT)]


def test_trees_and_chains_are_drafted_in_one_batch(head: EagleHead, target: LoadedModel) -> None:
    one, other = text_of(30), text_of(12, seed=9)
    proposer = proposer_over(head, target, style=Style(branching=3))
    tree, chain = proposer.propose([row(*one, 4, nodes=12, request_id="tree"), row(*other, request_id="chain")])
    alone = tree_of(head, target, *one)
    assert (tree.tokens, tree.parents) == (alone.tokens, alone.parents)
    assert chain.tokens == expected(head, *other)


def test_memory_is_that_of_weights_and_cache(head: EagleHead, target: LoadedModel) -> None:
    proposer = proposer_over(head, target)
    before = proposer.memory_bytes()
    tokens, hidden = text_of(INITIAL_CAPACITY + 9)
    proposer.propose([row(tokens, hidden)])
    assert proposer.memory_bytes() > before > proposer.runner.weight_bytes > 0
