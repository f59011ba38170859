"""Blanks between tokens of JSON are guessed from those of the text so far."""

from __future__ import annotations

import json

import pytest

from gamaneh.proposers.blanks import Blanks

DOCUMENT = {"a": 1, "b": {"c": [{"d": True}, {"d": False}], "e": "x, y: z"}, "f": None}
STYLES = {
    "one line": {},
    "without blanks": {"separators": (",", ":")},
    "two spaces": {"indent": 2},
    "four spaces": {"indent": 4},
    "tabs": {"indent": "\t"},
}


def blanks_behind(text: str) -> Blanks:
    blanks = Blanks()
    blanks.read(text.encode())
    return blanks


def guessed(text: str, piece: str) -> str:
    blanks = blanks_behind(text)
    return blanks.before(piece.encode(), blanks.end).decode()


def borders(text: str) -> list[int]:
    """Where blanks may stand behind the document's third key, by which its style has shown."""
    start = text.index('"c"')
    marks = [at for at, mark in enumerate(text) if at > start and mark in "{[]}" and text[at - 1] != '"']
    return [at for at in marks if text[:at].count('"') % 2 == 0]


@pytest.mark.parametrize("style", STYLES.values(), ids=list(STYLES))
def test_a_text_goes_on_in_its_own_style(style: dict) -> None:
    text = json.dumps(DOCUMENT, **style)
    assert borders(text)
    for at in borders(text):
        bare = text[:at].rstrip()
        assert guessed(bare, text[at:]) == text[len(bare) : at]


def test_a_text_of_which_nothing_is_known_is_in_one_line() -> None:
    assert guessed("", "{") == guessed("{", '"a"') == guessed('{"a"', ":") == guessed('{"a": 1', "}") == ""
    assert guessed('{"a":', "1") == guessed('{"a": 1,', '"b"') == " "


def test_blanks_that_are_there_are_not_guessed_again() -> None:
    assert guessed('{\n  "a": 1,', '"b"') == "\n  "
    assert guessed('{\n  "a": 1,\n', '"b"') == "  "
    assert guessed('{\n  "a": 1,\n  ', '"b"') == ""
    assert guessed('{\n  "a": 1,\n\n\n', '"b"') == ""


def test_commas_and_colons_in_strings_say_nothing() -> None:
    assert guessed('{"a":"x, y: z","b"', ":") == ""
    assert guessed('{"a":"x, y: z,","b":1,', '"c"') == ""


def test_the_last_habit_counts() -> None:
    assert guessed('{"a":  1, "b": 2, "c":', "3") == " "
    assert guessed('{\n  "a": 1}\n{"b": 1', "}") == ""


def test_pieces_of_a_text_are_read_as_the_whole() -> None:
    text = json.dumps(DOCUMENT, indent=3)
    whole, pieces = blanks_behind(text), Blanks()
    for byte in text.encode():
        pieces.read(bytes([byte]))
    assert pieces.end == whole.end
    for before, piece in (("{", '"x"'), ('{\n   "x": [', "1"), ('{\n   "x":', "1"), ('{\n   "x": 1', "}")):
        assert pieces.before(piece.encode(), before.encode()) == whole.before(piece.encode(), before.encode())
