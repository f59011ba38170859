"""Chained heads draft, token by token and round by round, what they say of the whole text at once."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import pytest
import torch
from torch import Tensor

from gamaneh.core import Draft, ProposalRow, Use
from gamaneh.heads.mtp_heads import ChainedHeads, load_chained
from gamaneh.heads.trainable import TrainBatch
from gamaneh.options import SamplingParams
from gamaneh.proposers.mtp import WINDOW, ChainedHeadsProposer
from gamaneh.proposers.tree import Style
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.testing import tiny_heads, tiny_model

TARGET = tiny_model("llama")
VOCAB, DEPTH = TARGET.config.vocab_size, 3
HIDDEN = torch.randn(2048, 32, generator=torch.Generator().manual_seed(7))


def heads(**shape: object) -> ChainedHeads:
    return load_chained(tiny_heads(TARGET, "mtp", draft_vocab=200, depth=DEPTH, **shape), TARGET)


def proposer_for(drafting: ChainedHeads, *, num_blocks: int = 256, **options: object) -> ChainedHeadsProposer:
    rotary = TARGET.decoder.ropes[0]
    return ChainedHeadsProposer(drafting, rotary, vocab_size=VOCAB, num_blocks=num_blocks, block_size=4, **options)  # type: ignore[arg-type]


def row(tokens: Sequence[int], depth: int = DEPTH, *, request_id: str = "r", known: int = WINDOW) -> ProposalRow:
    """A request of which the last `known` hidden states are known."""
    sampler = RequestSampler(SamplingParams(), vocab_size=VOCAB, prompt=tokens, tokens=tokens, eos_ids=(), seed=0)
    first = max(len(tokens) - 1 - known, 0)
    hidden = HIDDEN[first : len(tokens) - 1, None]
    return ProposalRow(request_id, tokens, depth, depth, sampler, Use.TARGET, hidden=hidden)


def reference(whole: ChainedHeads, tokens: Sequence[int], depth: int, base: int = 0) -> tuple[int, ...]:
    """Each candidate by a pass over the whole text from `base` on."""
    ids = whole.draft_ids()
    assert ids is not None
    drafted: list[int] = []
    last = len(tokens) - 2 - base
    for level in range(depth):
        text = torch.tensor([[*tokens[base:], *drafted, *[0] * (DEPTH + 1)]])
        hidden = torch.zeros(1, text.shape[1], 1, 32)
        hidden[0, : last + 1, 0] = HIDDEN[base : len(tokens) - 1]
        logits = whole.draft_logits(TrainBatch(text, hidden, torch.ones_like(text).bool()))[level]
        drafted.append(int(ids[logits[0, last].argmax()]))
    return tuple(drafted)


def tokens_of(count: int, seed: int = 0) -> list[int]:
    return random.Random(seed).choices(range(256), k=count)


@pytest.mark.parametrize("shape", [{}, {"shared": True}])
def test_rounds_of_any_length_draft_as_one_pass_over_the_text(shape: Mapping[str, object]) -> None:
    """CASES kind 03: whatever was accepted, what was computed on candidates is computed again."""
    whole, proposer = heads(**shape), proposer_for(heads(**shape))
    tokens, lengths = tokens_of(9), random.Random(1)
    for _ in range(12):
        depth = lengths.choice([1, 2, 3])
        (draft,) = proposer.propose([row(tokens, depth)])
        assert draft.tokens == reference(whole, tokens, depth)
        accepted = draft.tokens[: lengths.randrange(depth + 1)]
        tokens = [*tokens, *accepted, *tokens_of(lengths.choice([1, 1, 6]), len(tokens))]


def test_requests_are_drafted_in_one_batch_each_by_itself() -> None:
    whole, proposer = heads(), proposer_for(heads())
    texts = {name: tokens_of(length, length) for name, length in (("a", 3), ("b", 30), ("c", 2))}
    for _ in range(4):
        rows = [row(text, depth, request_id=name) for depth, (name, text) in zip((3, 1, 2), texts.items(), strict=True)]
        drafts = proposer.propose(rows)
        for one, draft in zip(rows, drafts, strict=True):
            assert draft.tokens == reference(whole, one.tokens, one.max_depth)
        texts = {name: [*text, *draft.tokens, 5] for (name, text), draft in zip(texts.items(), drafts, strict=True)}


def test_a_gap_in_what_is_known_begins_anew_behind_it() -> None:
    whole, proposer = heads(), proposer_for(heads())
    tokens = tokens_of(20)
    proposer.propose([row(tokens)])
    tokens += tokens_of(15, 1)
    (draft,) = proposer.propose([row(tokens, known=10)])
    assert draft.tokens == reference(whole, tokens, DEPTH, base=len(tokens) - 11)


def test_a_pause_without_a_gap_is_caught_up_with() -> None:
    whole, proposer = heads(), proposer_for(heads())
    tokens = tokens_of(20)
    proposer.propose([row(tokens)])
    tokens += tokens_of(15, 1)
    assert proposer.propose([row(tokens, known=16)])[0].tokens == reference(whole, tokens, DEPTH)


def test_asking_twice_gives_the_same_draft() -> None:
    proposer = proposer_for(heads())
    tokens = tokens_of(12)
    assert proposer.propose([row(tokens)])[0].tokens == proposer.propose([row(tokens)])[0].tokens


def test_nothing_is_drafted_where_no_hidden_state_is_known() -> None:
    proposer = proposer_for(heads())
    unknown = row(tokens_of(5), known=0)
    unknown.hidden = None
    assert [len(draft) for draft in proposer.propose([row(tokens_of(5), known=0), unknown])] == [0, 0]


def test_nothing_is_drafted_when_the_cache_is_full() -> None:
    proposer = proposer_for(heads(), num_blocks=3)
    drafts = proposer.propose([row(tokens_of(40)), row(tokens_of(6), request_id="short")])
    assert [len(draft) for draft in drafts] == [0, DEPTH]


def test_letting_go_frees_the_cache() -> None:
    proposer = proposer_for(heads())
    proposer.propose([row(tokens_of(9)), row(tokens_of(7), request_id="s")])
    proposer.forget("r")
    proposer.forget("s")
    proposer.forget("unknown")
    assert proposer.kv.pool.in_use == 0
    proposer.kv.check_integrity()


def test_a_draft_ends_where_the_heads_are_not_sure() -> None:
    proposer = proposer_for(heads(), style=Style(1.0))
    assert len(proposer.propose([row(tokens_of(9))])[0]) == 1


def test_weights_lie_in_memory_once() -> None:
    drafting = heads()
    weights = sum(parameter.nbytes for parameter in drafting.parameters())
    proposer = proposer_for(drafting)
    held: list[Tensor] = [parameter for parameter in drafting.parameters() if not parameter.is_meta]
    layers = sum(linear.nbytes() for layer in proposer._layers for linear in layer.linears)
    norms = sum(norm.nbytes for layer in proposer._layers for norm in layer.norms.values())
    assert sum(tensor.nbytes for tensor in held) + layers + norms == weights
    assert proposer.memory_bytes() == drafting.nbytes() + proposer.cache.nbytes


def test_only_tokens_of_the_draft_vocabulary_are_drafted() -> None:
    drafting = heads()
    ids = drafting.draft_ids()
    assert ids is not None
    allowed = set(ids.tolist())
    drafts: list[Draft] = proposer_for(drafting).propose(
        [row(tokens_of(9, seed), request_id=str(seed)) for seed in range(8)]
    )
    assert {token for draft in drafts for token in draft.tokens} <= allowed
