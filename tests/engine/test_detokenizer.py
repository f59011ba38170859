from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gamaneh.engine.detokenizer import Detokenizer, TextDecoder

TEXTS = [
    "Hello, world",
    "  two  spaces ",
    "سلام دنیا، می‌خواهم",
    "👋🏽 👨‍👩‍👧‍👦 é e\u0301 ก็",
    "a\n\n\tb",
    "already \ufffd broken \ufffd\ufffd",
    "漢字かな交じり文" * 12,
    "",
]


class ByteLevel:
    """Byte-level vocabulary: a token is any run of bytes; token 0 is special."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = [b"<special>", *pieces]

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        return b"".join(self.pieces[token] for token in ids if token or not skip_special).decode(errors="replace")


class SentencePiece:
    """Pieces with a mark for spaces and byte fallback; the first space of a text is dropped.

    A run of bytes that is no UTF-8 as a whole becomes one replacement character per byte.
    """

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = list(pieces)

    def encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for character in " " + text:
            known = character in self.pieces
            ids += [256 + self.pieces.index(character)] if known else list(character.encode())
        return ids

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        text, run = "", b""
        for token in [*ids, 256 + len(self.pieces)]:
            if token < 256:
                run += bytes([token])
                continue
            text += _fallback(run) + "".join(self.pieces[token - 256 : token - 255])
            run = b""
        return text.removeprefix(" ")


def _fallback(run: bytes) -> str:
    try:
        return run.decode()
    except UnicodeDecodeError:
        return "\ufffd" * len(run)


BYTES = ByteLevel([bytes([value]) for value in range(256)])


def byte_ids(text: str) -> list[int]:
    return [byte + 1 for byte in text.encode()]


def stream(detokenizer: Detokenizer, tokens: Sequence[int], sizes: Sequence[int]) -> list[str]:
    """All pieces, and the flushed rest, when `tokens` come in calls of these sizes."""
    pieces, start = [], 0
    for size in [*sizes, len(tokens)]:
        pieces.append(detokenizer.feed(tokens[start : start + size]).text)
        start += size
    return [*pieces, detokenizer.flush().text]


sizes_of_calls = st.lists(st.integers(0, 7), max_size=30)


@given(st.lists(st.integers(0, 256), max_size=200), sizes_of_calls)
@example([0xE3 + 1] * 300, [])
def test_pieces_of_any_bytes_join_to_the_whole_text(tokens: list[int], sizes: list[int]) -> None:
    assert "".join(stream(Detokenizer(BYTES), tokens, sizes)) == BYTES.decode(tokens)


@given(st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=8), st.data(), sizes_of_calls)
def test_pieces_of_tokens_of_many_bytes_join_to_the_whole_text(
    pieces: list[bytes], data: st.DataObject, sizes: list[int]
) -> None:
    decoder = ByteLevel(pieces)
    tokens = data.draw(st.lists(st.integers(0, len(pieces)), max_size=120))
    assert "".join(stream(Detokenizer(decoder), tokens, sizes)) == decoder.decode(tokens)


@given(st.text(alphabet=" abé漢👋\u0301ی", max_size=120), sizes_of_calls)
def test_pieces_of_byte_fallback_join_to_the_whole_text(text: str, sizes: list[int]) -> None:
    decoder = SentencePiece(" ab")
    assert "".join(stream(Detokenizer(decoder), decoder.encode(text), sizes)) == text


@pytest.mark.parametrize("token", [0, 0xE3 + 1], ids=["special", "broken"])
def test_the_cost_of_a_token_does_not_grow_with_a_run_without_text(token: int) -> None:
    longest = 0

    class Measured(ByteLevel):
        def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            return super().decode(ids, skip_special)

    Detokenizer(Measured(BYTES.pieces[1:])).feed([token] * 1000)
    assert longest <= 128


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("size", [1, 2, 3, 16])
def test_text_of_any_script_comes_out_whole(text: str, size: int) -> None:
    tokens = byte_ids(text)
    assert "".join(stream(Detokenizer(BYTES), tokens, [size] * len(tokens))) == text


def test_a_character_is_emitted_with_its_last_byte() -> None:
    detokenizer = Detokenizer(BYTES)
    assert [detokenizer.feed([token]).text for token in byte_ids("سo👋")] == ["", "س", "o", "", "", "", "👋"]


def test_text_before_an_incomplete_character_is_not_held_back() -> None:
    assert Detokenizer(BYTES).feed(byte_ids("ab👋")[:-1]).text == "ab"


def test_an_incomplete_character_is_flushed_as_a_replacement() -> None:
    detokenizer = Detokenizer(BYTES)
    assert detokenizer.feed(byte_ids("👋")[:2]).text == ""
    assert detokenizer.flush().text == "\ufffd"
    assert detokenizer.flush().text == ""


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    assert Detokenizer(BYTES).feed([*byte_ids("a"), 0]).text == "a"
    assert Detokenizer(BYTES, skip_special=False).feed([*byte_ids("a"), 0]).text == "a<special>"


def test_the_first_word_keeps_its_space_behind_a_prompt() -> None:
    decoder = SentencePiece(" abc")
    prompt, output = decoder.encode("ab"), decoder.encode("c")
    assert Detokenizer(decoder).feed(output).text == "c"
    assert Detokenizer(decoder, prompt=prompt).feed(output).text == " c"


def test_a_space_survives_a_special_token_in_front_of_it() -> None:
    decoder = SentencePiece([" ", "a", ""])
    tokens = [257, 258, *[258] * 40, 256, 257]
    assert "".join(stream(Detokenizer(decoder), tokens, [1] * 50)) == "a a"


@pytest.mark.parametrize("decoder", [BYTES, SentencePiece(" ab")], ids=["byte level", "byte fallback"])
def test_the_prompt_is_not_repeated_wherever_its_tail_is_cut(decoder: TextDecoder) -> None:
    text = "سلام دنیا" * 5
    for length in range(1, 40):
        prompt = byte_ids(text)[: 2 * length] if decoder is BYTES else SentencePiece(" ab").encode("ab" * length)
        output = byte_ids("خوب") if decoder is BYTES else list("خوب".encode())
        assert Detokenizer(decoder, prompt=prompt).feed(output).text == "خوب"


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("stop", ["STOP", "ایست", "\n\n\n"])
def test_a_stop_text_ends_the_output_at_any_place_of_a_block(stop: str, size: int) -> None:
    tokens, detokenizer, text, kept = byte_ids(f"before {stop} after"), Detokenizer(BYTES, [stop]), "", 0
    for start in range(0, len(tokens), size):
        piece = detokenizer.feed(tokens[start : start + size])
        text, kept = text + piece.text, kept + piece.kept_tokens
        if piece.stopped:
            break
    assert (text, piece.stopped, kept) == ("before ", True, len(f"before {stop}".encode()))


def test_nothing_of_a_stop_text_is_emitted_before_it_is_complete() -> None:
    detokenizer = Detokenizer(BYTES, ["STOP"])
    assert [detokenizer.feed([token]).text for token in byte_ids("aSTSTOP")] == ["a", "", "", "ST", "", "", ""]


def test_what_looked_like_a_stop_text_is_emitted_when_it_is_none() -> None:
    detokenizer = Detokenizer(BYTES, ["STOP"])
    assert detokenizer.feed(byte_ids("STO")).text == ""
    assert detokenizer.feed(byte_ids("RE")).text == "STORE"


def test_the_beginning_of_a_stop_text_is_flushed_at_the_end() -> None:
    detokenizer = Detokenizer(BYTES, ["\n\n\n"])
    assert detokenizer.feed(byte_ids("a\n\n")).text == "a"
    assert detokenizer.flush().text == "\n\n"


@pytest.mark.parametrize(
    ("stop", "text", "expected"),
    [
        (["end", "mid"], "a mid b end", "a "),
        (["abcd", "bc"], "xabcd", "xa"),
        (["bc", "abc"], "xabcd", "x"),
        (["aab"], "aaab", "a"),
        (["x"], "x", ""),
    ],
)
def test_the_stop_text_that_is_complete_first_wins(stop: list[str], text: str, expected: str) -> None:
    assert Detokenizer(BYTES, stop).feed(byte_ids(text)).text == expected


def test_the_token_that_completes_a_stop_text_is_the_last_one_kept() -> None:
    decoder = ByteLevel([b"say ST", b"OP", b" it", b"!"])
    piece = Detokenizer(decoder, ["STOP i"]).feed([1, 2, 3, 4])
    assert (piece.text, piece.stopped, piece.kept_tokens) == ("say ", True, 3)


def test_a_stop_text_is_not_looked_for_in_the_prompt() -> None:
    assert not Detokenizer(BYTES, ["ab"], prompt=byte_ids("xa")).feed(byte_ids("b")).stopped


@given(st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.text("abc", max_size=30), sizes_of_calls)
def test_stop_texts_are_found_alike_however_the_tokens_are_split(stop: list[str], text: str, sizes: list[int]) -> None:
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(one) for one in stop)]
    expected = text
    if ends:
        longest = max(len(one) for one in stop if text[: ends[0]].endswith(one))
        expected = text[: ends[0] - longest]
    detokenizer, emitted, start = Detokenizer(BYTES, stop), "", 0
    for size in [*sizes, len(text)]:
        piece = detokenizer.feed(byte_ids(text)[start : start + size])
        emitted, start = emitted + piece.text, start + size
        if piece.stopped:
            break
    assert emitted + ("" if piece.stopped else detokenizer.flush().text) == expected
