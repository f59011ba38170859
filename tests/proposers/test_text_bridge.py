"""The text bridge proposes what the draft model writes, in the target's tokens, and nothing else (CASES kind 25)."""

from __future__ import annotations

import pytest
from crossing import BYTES, OURS, THEIR_USER, THEIRS, USER, proposer_over, row, transcriber, writes
from hypothesis import given
from hypothesis import strategies as st

from gamaneh.core import Draft
from gamaneh.proposers.cross.spelling import Speller
from gamaneh.proposers.cross.text import PATIENCE, TextBridge, end_of_text, spell_behind
from gamaneh.proposers.tree import Style
from gamaneh.testing import PieceTokenizer

TEXT = "the quick cat sat on the mat and the quick cat sat"


def draft_of(text: str, read: int, k: int = 4, **options) -> Draft:
    """The draft behind the first `read` of the target's tokens of a text that the draft model knows."""
    proposer = proposer_over(writes(text), TextBridge(transcriber()), **options)
    return proposer.propose([row(OURS.encode(text)[:read], k)])[0]


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("text", [TEXT, "  two  spaces  sat ", "a\n\n\tb the", "سلام 👋 سلام 👋 the", "the " * 30])
def test_a_text_that_the_draft_model_knows_is_drafted_in_the_targets_tokens(text: str, k: int) -> None:
    """Also the last token, which is not the beginning of a longer one that was not written yet."""
    tokens = OURS.encode(text)
    for read in range(1, len(tokens)):
        draft = draft_of(text, read, k)
        assert draft.tokens == tuple(tokens[read : read + k])
        assert draft.is_chain
        assert draft.probs is None


def test_what_is_written_in_pieces_becomes_the_targets_whole_token() -> None:
    assert draft_of("the quick cat", 1, 3).tokens == tuple(OURS.encode(" quick cat"))


def test_a_draft_begins_behind_a_character_that_is_not_complete() -> None:
    """The draft model writes the whole character; the target has half of it already."""
    tokens = OURS.encode("the 👋 cat")
    split = next(at for at, token in enumerate(tokens) if OURS.token_bytes(token) == b" \xf0\x9f") + 1
    assert draft_of("the 👋 cat", split, 2).tokens == tuple(tokens[split : split + 2])


def test_another_character_than_the_one_begun_is_not_proposed() -> None:
    proposer = proposer_over(writes("the \N{WAVING HAND SIGN}"), TextBridge(transcriber()))
    begun = OURS.encode("the س")[:-1]
    assert len(proposer.propose([row(begun)])[0]) == 0
    assert len(proposer.reader.backend.model.forwards) == 1


def test_the_end_is_proposed_where_both_have_a_special_token_of_that_name() -> None:
    def script(history):
        logits = writes(TEXT)(history) * 0
        logits[THEIR_USER] = 9.0
        return logits

    proposer = proposer_over(script, TextBridge(transcriber()))
    assert proposer.propose([row(OURS.encode("the"))])[0].tokens == (USER,)
    assert len(draft_of("the quick", len(OURS.encode("the quick")))) == 0  # `<eos>` is none of the target's


def test_a_draft_ends_where_the_draft_model_is_not_sure() -> None:
    proposer = proposer_over(writes(TEXT, sharpness=2.0), TextBridge(transcriber()), style=Style(0.5))
    first = proposer.propose([row(OURS.encode("the"), 8)])[0]
    assert OURS.decode(first.tokens) in (" qu", " ")  # what the first token of the draft model stands for


def test_a_draft_model_with_small_tokens_is_not_waited_for_without_end() -> None:
    """Each letter makes the target's token longer, and none makes a second one."""
    alphabet = "abcdefghijklmnopqrstuvwxyz"
    letters = PieceTokenizer(BYTES)
    words = PieceTokenizer([*BYTES, *(alphabet[:size] for size in range(2, 27))])
    bridge = TextBridge(transcriber(words, letters))
    proposer = proposer_over(writes(f"- {alphabet}", letters), bridge, vocab_size=letters.vocab_size)
    (draft,) = proposer.propose([row(words.encode("- "), 2)])
    assert len(proposer.reader.backend.model.forwards) == PATIENCE * 3
    assert words.decode(draft.tokens) == alphabet[: PATIENCE * 3]


def test_requests_are_drafted_in_one_batch() -> None:
    texts = {"a": "the quick cat sat", "b": "سلام 👋 the mat", "c": "  two  spaces"}

    def script(history):
        said = b"".join(map(THEIRS.token_bytes, history))
        text = next(text for text in texts.values() if text.encode().startswith(said))
        return writes(text)(history)

    rows = [row(OURS.encode(text)[:2], 3, request_id=name) for name, text in texts.items()]
    together = proposer_over(script, TextBridge(transcriber()))
    alone = [proposer_over(script, TextBridge(transcriber())).propose([one])[0] for one in rows]
    assert [draft.tokens for draft in together.propose(rows)] == [draft.tokens for draft in alone]
    assert len(together.reader.backend.model.forwards) < sum(len(draft) for draft in alone) + 6


def test_the_cache_follows_the_text_whatever_became_of_the_drafts() -> None:
    """The script asserts that what the cache holds is a beginning of the text."""
    text = TEXT * 6
    proposer = proposer_over(writes(text), TextBridge(transcriber()))
    tokens = OURS.encode(text)
    read, steps = 1, [1, 5, 2, 1, 1, 4, 3, 1, 5]
    while read < len(tokens) - 6:
        (draft,) = proposer.propose([row(tokens[:read], 4)])
        assert draft.tokens == tuple(tokens[read : read + 4])
        read += steps[read % len(steps)]
    proposer.forget("r")
    assert proposer.reader.backend.kv.pool.in_use == 0


def test_nothing_is_drafted_for_a_request_without_text() -> None:
    proposer = proposer_over(writes(TEXT), TextBridge(transcriber()))
    image = max(OURS.special_ids)
    assert len(proposer.propose([row([image, image])])[0]) == 0


@pytest.mark.parametrize(
    ("before", "written", "expected"),
    [
        ("the", " quick", [" quick"]),
        ("the qu", "ick", ["i", "c", "k"]),  # the two together would be one token: spelled alone
        ("the", " quick c", [" quick", " c"]),
        ("", "the", ["the"]),
        ("the", "", []),
    ],
)
def test_spelling_behind_a_text(before: str, written: str, expected: list[str]) -> None:
    tokens = spell_behind(Speller(OURS), before.encode(), written.encode())
    assert [OURS.token_text(token) for token in tokens] == expected


def test_a_space_that_the_target_adds_is_not_proposed() -> None:
    spaced = Speller(PieceTokenizer([*BYTES, " Hello", "Hello", " there"], adds_space=True))
    assert spaced.joined(spell_behind(spaced, b" Hello", b" there")) == b" there"
    assert spell_behind(spaced, b" Hel", b"lo") == spaced.tokenizer.encode("lo")[1:]
    assert spell_behind(spaced, b"", b"Hello") == [257]


@given(st.text(max_size=30), st.text(max_size=30), st.integers(0, 3))
def test_only_the_text_itself_is_proposed(before: str, written: str, missing: int) -> None:
    data = written.encode()
    data = data[: max(len(data) - missing, 0)]
    tokens = spell_behind(Speller(OURS), before.encode(), data)
    assert data.startswith(b"".join(map(OURS.token_bytes, tokens)))
    assert not OURS.special_ids.intersection(tokens)


def test_the_end_of_a_text_reaches_back_to_a_word_but_not_across_special_tokens() -> None:
    tokens = OURS.encode("the mat and the quick cat sat")
    assert end_of_text(Speller(OURS), tokens) == b" the quick cat sat"
    assert end_of_text(Speller(OURS), [*tokens, USER]) == b""
    assert end_of_text(Speller(OURS), [USER, *OURS.encode("sat")]) == b"sat"
