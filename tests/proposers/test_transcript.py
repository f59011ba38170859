"""The draft model reads the request's text, whatever the target's tokens are and however they come."""

from __future__ import annotations

import random

import pytest
from crossing import IMAGE, OURS, THEIR_USER, THEIRS, USER, row, transcriber
from hypothesis import given
from hypothesis import strategies as st

from gamaneh.proposers.cross.spelling import Speller
from gamaneh.proposers.cross.transcript import FARTHEST, LOOK_BEHIND, Transcriber, Transcript, settled
from gamaneh.testing import PieceTokenizer

TEXT = "the cat sat on the mat; the quick cat and  two  spaces\n\n\tsat on سلام 👋 the mat."


def text_of(tokens: list[int]) -> str:
    return b"".join(map(THEIRS.token_bytes, tokens)).decode()


def expected_text(tokens: list[int]) -> str:
    """Runs of text between special tokens, without what is no text; of special tokens those that both have."""
    parts, run = [], b""
    for token in tokens:
        if token not in OURS.special_ids:
            run += OURS.token_bytes(token)
            continue
        parts += [run.decode(errors="ignore"), "<|user|>" if token == USER else ""]
        run = b""
    return "".join([*parts, run.decode(errors="ignore")])


@given(st.lists(st.integers(0, OURS.vocab_size - 1), max_size=80), st.randoms(use_true_random=False))
def test_any_tokens_in_any_portions_are_the_text_that_they_stand_for(tokens: list[int], rng: random.Random) -> None:
    transcript = Transcript(transcriber())
    read = 0
    while read < len(tokens):
        read = min(read + rng.randint(1, 9), len(tokens))
        before = list(transcript.tokens)
        transcript.extend(tokens[:read])
        assert transcript.tokens[: transcript.unchanged] == before[: transcript.unchanged]
        assert text_of(transcript.tokens) == expected_text(tokens[:read])


def test_growing_text_is_spelled_as_a_whole_one() -> None:
    whole, grown = Transcript(transcriber()), Transcript(transcriber())
    tokens = OURS.encode(TEXT * 8)
    for end in range(1, len(tokens) + 1):
        grown.extend(tokens[:end])
    whole.extend(tokens)
    assert text_of(grown.tokens) == TEXT * 8
    assert grown.tokens == whole.tokens


class CountingTokenizer(PieceTokenizer):
    """Notes how long the texts are that it is asked to encode."""

    def __init__(self) -> None:
        super().__init__([bytes([byte]) for byte in range(256)])
        self.longest = 0

    def encode(self, text: str, special: bool = True) -> list[int]:
        self.longest = max(self.longest, len(text))
        return super().encode(text, special)


@pytest.mark.parametrize("text", [TEXT * 40, "x" * 3000, "ش" * 1500])
def test_reading_one_token_more_takes_no_longer_when_the_text_is_long(text: str) -> None:
    counting = CountingTokenizer()
    transcript = Transcript(transcriber(draft=counting))
    tokens = OURS.encode(text)
    transcript.extend(tokens[:-50])
    counting.longest = 0
    for end in range(len(tokens) - 50, len(tokens) + 1):
        transcript.extend(tokens[:end])
    assert 0 < counting.longest <= LOOK_BEHIND + FARTHEST + 16


def test_special_tokens_are_walls_and_only_shared_ones_are_read() -> None:
    transcript = Transcript(transcriber())
    transcript.extend([USER, *OURS.encode("qu"), IMAGE, *OURS.encode("ick"), USER])
    user = THEIR_USER
    assert transcript.tokens == [user, *THEIRS.encode("qu"), *THEIRS.encode("ick"), user]


@pytest.mark.parametrize("text", ["a <s> b", "<eos>", "<s><s>", "say <|user|"])
def test_the_draft_models_special_tokens_in_a_text_are_only_characters(text: str) -> None:
    transcript = Transcript(transcriber())
    tokens = list(text.encode())
    transcript.extend(tokens)
    assert not THEIRS.special_ids.intersection(transcript.tokens)
    assert text_of(transcript.tokens) == text


def test_a_begin_token_comes_in_front_and_nowhere_else() -> None:
    """Neither twice, when the target has one too, nor in mid-text, when the text is spelled again."""
    ours = PieceTokenizer([bytes([byte]) for byte in range(256)], special=("</s>", "<s>"), begin="<s>")
    theirs = PieceTokenizer([bytes([byte]) for byte in range(256)], special=("<s>", "</s>"), begin="<s>")
    transcript = Transcript(Transcriber(Speller(ours), Speller(theirs)))
    tokens = ours.encode("hello, how are you today? " * 3)
    for end in range(1, len(tokens) + 1):
        transcript.extend(tokens[:end])
    assert theirs.decode(transcript.tokens) == "hello, how are you today? " * 3
    assert [at for at, token in enumerate(transcript.tokens) if token in theirs.special_ids] == [0]


@pytest.mark.parametrize(("ours_adds", "theirs_add"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("text", ["Hello", "  two  spaces ", "a\n\n\tb", "سلام 👋"])
def test_a_space_that_a_tokenizer_adds_is_none_of_the_text(text: str, ours_adds: bool, theirs_add: bool) -> None:
    ours = PieceTokenizer([*[bytes([byte]) for byte in range(256)], " H", "ello"], adds_space=ours_adds)
    theirs = PieceTokenizer([*[bytes([byte]) for byte in range(256)], " two", " Hell"], adds_space=theirs_add)
    transcript = Transcript(Transcriber(Speller(ours), Speller(theirs)))
    tokens = ours.encode(text * 5)
    for end in range(1, len(tokens) + 1):
        transcript.extend(tokens[:end])
    spelled = b"".join(map(theirs.token_bytes, transcript.tokens)).decode()
    assert spelled.removeprefix(" " * theirs_add) == text * 5


def test_a_character_that_is_not_complete_waits_for_its_rest() -> None:
    transcript = Transcript(transcriber())
    first, second = OURS.encode(" 👋")
    transcript.extend([first])
    assert (text_of(transcript.tokens), transcript.rest) == (" ", b"\xf0\x9f")
    transcript.extend([first, second])
    assert (text_of(transcript.tokens), transcript.rest) == (" 👋", b"")


def test_a_tokenizer_that_changes_the_text_is_given_all_the_same() -> None:
    """What it makes of it cannot be cut where a token ends, only where a piece of text does."""

    class Lower(PieceTokenizer):
        def encode(self, text: str, special: bool = True) -> list[int]:
            return super().encode(text.lower().replace("ß", "ss"), special)

    lower = Lower([bytes([byte]) for byte in range(256)])
    transcript = Transcript(transcriber(draft=lower))
    tokens = OURS.encode("The Straße is Long, and the Cat sat on it " * 4)
    for end in range(1, len(tokens) + 1):
        transcript.extend(tokens[:end])
    assert lower.decode(transcript.tokens) == "the strasse is long, and the cat sat on it " * 4


def test_texts_of_different_requests_are_apart_and_can_be_forgotten() -> None:
    scribe = transcriber()
    first = scribe.transcript(row(OURS.encode("one"), request_id="a"))
    second = scribe.transcript(row(OURS.encode("two"), request_id="b"))
    assert (text_of(first.tokens), text_of(second.tokens)) == ("one", "two")
    scribe.drop(["a", "unknown"])
    assert scribe.transcript(row(OURS.encode("one more"), request_id="a")) is not first
    assert scribe.transcript(row(OURS.encode("two"), request_id="b")) is second


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (b"short", 0),
        (b"one two" + b"x" * LOOK_BEHIND, 3),
        (b"one, " + b"x" * LOOK_BEHIND, 5),  # no word begins behind a letter: any character will do
        (b"x" * 40, 40 - LOOK_BEHIND),
    ],
)
def test_what_lies_far_enough_back_stays(run: bytes, expected: int) -> None:
    assert settled(run, range(1, len(run) + 1)) == expected
