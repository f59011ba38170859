"""The vocabulary bridge samples over the tokens that both have, in either's ids."""

from __future__ import annotations

import pytest
import torch
from crossing import (
    BYTES,
    IMAGE,
    OURS,
    THEIR_BEGIN,
    THEIR_EOS,
    THEIR_USER,
    THEIRS,
    USER,
    proposer_over,
    row,
    transcriber,
)

from gamaneh.proposers.cross.vocabulary_bridge import SharedTokens, VocabularyBridge
from gamaneh.proposers.tree import Style
from gamaneh.testing import PieceTokenizer, hashed

SHARED = SharedTokens(OURS, THEIRS, OURS.vocab_size)


def bridge() -> VocabularyBridge:
    return VocabularyBridge(transcriber(), SHARED)


def test_tokens_are_the_same_when_they_stand_for_the_same_bytes() -> None:
    logits = torch.randn(THEIRS.vocab_size)
    wide = SHARED.to_target(logits)
    for token in range(OURS.vocab_size):
        if wide[token] == -torch.inf:
            assert OURS.token_bytes(token) not in {THEIRS.token_bytes(other) for other in range(9, 265)}
        else:
            theirs = SHARED.to_draft(token)
            assert wide[token] == logits[theirs]
            assert OURS.token_bytes(token) == THEIRS.token_bytes(theirs)
            assert (token in OURS.special_ids) == (theirs in THEIRS.special_ids)


def test_special_tokens_are_shared_by_name() -> None:
    assert SHARED.to_draft(USER) == THEIR_USER
    logits = torch.zeros(THEIRS.vocab_size)
    logits[THEIR_EOS] = logits[THEIR_BEGIN] = 9.0
    wide = SHARED.to_target(logits)
    assert wide[IMAGE] == -torch.inf
    assert wide.amax() == 0.0


def test_text_that_reads_like_a_special_token_is_not_one() -> None:
    ours = PieceTokenizer([*BYTES, "<|user|>x"], special=("<end>",))
    theirs = PieceTokenizer([*BYTES], special=("<|user|>x",))
    assert len(SharedTokens(ours, theirs, ours.vocab_size)) == 256


def test_of_two_tokens_for_the_same_bytes_the_piece_is_taken() -> None:
    """SentencePiece has the letter A and, for what has no piece, the byte of it."""

    class Fallback(PieceTokenizer):
        def vocab(self) -> dict[str, int]:
            return {"<0x41>": 0, "A": 1, "B": 2}

        def token_bytes(self, token: int) -> bytes:
            return [b"A", b"A", b"B"][token]

    fallback = Fallback(["A", "A", "B"], special=("x",))
    fallback.special_ids = frozenset()
    shared = SharedTokens(PieceTokenizer(["B", "A"]), fallback, 3)
    assert [shared.to_draft(token) for token in (0, 1)] == [2, 1]


@pytest.mark.parametrize(("same", "expected"), [(["ab", "cd"], 1.0), (["ab"], 2 / 3), (["cd"], 1 / 3), ([], 0.0)])
def test_coverage_weighs_tokens_by_their_rank(same: list[str], expected: float) -> None:
    ours, theirs = PieceTokenizer(["a", "b", "c", "d", "ab", "cd"]), PieceTokenizer(["a", "b", *same])
    assert SharedTokens(ours, theirs, ours.vocab_size).coverage == pytest.approx(expected)


@pytest.mark.parametrize("params", [{"temperature": 1.0}, {"temperature": 0.7, "top_k": 9}, {"temperature": 0.0}])
def test_probabilities_are_the_draft_models_renormalised_over_shared_tokens(params: dict[str, float]) -> None:
    script = hashed(THEIRS.vocab_size)
    proposer = proposer_over(script, bridge())
    tokens = OURS.encode("the cat")
    (draft,) = proposer.propose([row(tokens, 3, want_probs=True, seed=3, **params)])
    history = THEIRS.encode("the cat")
    assert draft.probs is not None
    for token, probs in zip(draft.tokens, draft.probs, strict=True):
        assert probs.sum() == pytest.approx(1.0, abs=1e-5)
        assert probs[token] > 0
        if params == {"temperature": 1.0}:
            shared = SHARED.to_target(script(history)).softmax(0)
            torch.testing.assert_close(probs, shared)
        history.append(SHARED.to_draft(token))


def test_drafted_tokens_are_read_as_they_were_said() -> None:
    """Also where the whole text would be spelled with other tokens."""
    script = hashed(THEIRS.vocab_size)
    proposer = proposer_over(script, bridge())
    tokens = OURS.encode("the cat sat")
    (draft,) = proposer.propose([row(tokens, 4)])
    history = THEIRS.encode("the cat sat")
    for token in draft.tokens:
        assert token == int(SHARED.to_target(script(history)).argmax())
        history.append(SHARED.to_draft(token))


def test_a_path_ends_where_most_is_left_to_tokens_that_are_not_shared() -> None:
    said = torch.zeros(THEIRS.vocab_size)
    said[THEIRS.encode("cat")[0]] = 9.0  # a token of the draft model alone
    proposer = proposer_over(lambda history: said, bridge(), style=Style(0.3))
    assert len(proposer.propose([row(OURS.encode("the"), 6)])[0]) == 1


def test_a_path_ends_where_no_shared_token_is_allowed() -> None:
    proposer = proposer_over(hashed(THEIRS.vocab_size), bridge())
    tokens = OURS.encode("the")
    offered = SHARED.to_target(torch.zeros(THEIRS.vocab_size))
    banned = row(
        tokens, 4, temperature=1.0, bad_words=tuple((token,) for token in offered.isfinite().nonzero()[:, 0].tolist())
    )
    assert len(proposer.propose([banned])[0]) == 0


def test_nothing_is_drafted_inside_a_character() -> None:
    proposer = proposer_over(hashed(THEIRS.vocab_size), bridge())
    tokens = OURS.encode("the 👋")
    assert len(proposer.propose([row(tokens[:-1])])[0]) == 0
    assert len(proposer.propose([row(tokens)])[0]) == 4


def test_trees_grow_over_shared_tokens_too() -> None:
    proposer = proposer_over(hashed(THEIRS.vocab_size), bridge(), style=Style(branching=3))
    (draft,) = proposer.propose([row(OURS.encode("the"), 3, nodes=9)])
    assert len(draft) == 9
    assert not draft.is_chain
    assert all(SHARED.to_target(torch.zeros(THEIRS.vocab_size))[token] == 0.0 for token in draft.tokens)
