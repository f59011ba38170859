"""Reasoning in front of an answer, told apart while the text comes."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gamaneh.server.answer_parser import AnswerParser, message, opens_reasoning

WHOLE = "<think>\nI must add.\n\nDone.\n</think>\n\nThe sum is 5."
FRAGMENTS = ["<think>", "</think>", "<thi", "</", "think>", "I must add.", "سلام", "\n", " ", "5", "<tool_call>"]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)


def split(pieces, *, inside: bool = False) -> tuple[str, str]:
    parser = AnswerParser(reasoning=True, inside=inside)
    told = message(
        [one.delta() for piece in [*pieces, None] for one in (parser.finish() if piece is None else parser.feed(piece))]
    )
    return told.get("reasoning_content", ""), told["content"]


@given(texts, st.lists(st.integers(0, 80), max_size=8), st.booleans())
@settings(deadline=None, max_examples=400)
def test_pieces_of_any_size_are_split_alike(text: str, at: list[int], inside: bool) -> None:
    borders = [0, *sorted(place % (len(text) + 1) for place in at), len(text)]
    pieces = [text[start:end] for start, end in itertools.pairwise(borders)]
    assert split(pieces, inside=inside) == split([text], inside=inside) == split(text, inside=inside)


def test_reasoning_and_answer_come_without_the_markers_and_the_blanks_beside_them() -> None:
    assert split([WHOLE]) == ("I must add.\n\nDone.", "The sum is 5.")


def test_the_prompt_may_have_opened_it() -> None:
    assert split([WHOLE.removeprefix("<think>")], inside=True) == ("I must add.\n\nDone.", "The sum is 5.")


@pytest.mark.parametrize("text", ["", "5", " 5 ", "so <think>x</think> y", "</think>", "<thin", "< think>"])
def test_without_reasoning_all_is_content(text: str) -> None:
    assert split([text]) == ("", text)


def test_markers_in_the_answer_are_text() -> None:
    text = "<think>a</think>b <think>c</think> d</think>"
    assert split([text]) == ("a", "b <think>c</think> d</think>")


@pytest.mark.parametrize("text", ["unfinished", "unfinished </thi", "unfinished\n"])
def test_reasoning_that_is_cut_off_is_reasoning(text: str) -> None:
    assert split(f"<think>{text}") == (text, "")


def test_empty_reasoning_leaves_the_answer() -> None:
    assert split(["<think>\n\n</think>\n\n5"]) == ("", "5")


@pytest.mark.parametrize(
    ("prompt", "opened"), [("<|assistant|>\n<think>\n", True), ("<|assistant|>", False), ("<think></think>\n", False)]
)
def test_a_prompt_that_opens_the_reasoning_is_noticed(prompt: str, opened: bool) -> None:
    assert opens_reasoning(prompt) is opened


CALL = '<tool_call>{"name":"add","arguments":{"a":2,"b":3}}</tool_call>'


def answer(text, **options) -> dict:
    parser = AnswerParser(**options)
    said = [*(one for piece in text for one in parser.feed(piece)), *parser.finish()]
    assert parser.calls == len(message([one.delta() for one in said]).get("tool_calls", []))
    return message([one.delta() for one in said])


class TestWholeAnswers:
    def test_reasoning_content_and_calls_are_told_apart(self) -> None:
        made = answer(f"{WHOLE}\n{CALL}", reasoning=True, tools=True)
        assert made["reasoning_content"] == "I must add.\n\nDone."
        assert made["content"] == "The sum is 5."
        assert made["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a":2,"b":3}'}

    def test_calls_in_the_reasoning_are_reasoning(self) -> None:
        made = answer(f"<think>Maybe {CALL}?</think>No.", reasoning=True, tools=True)
        assert made["reasoning_content"] == f"Maybe {CALL}?"
        assert made["content"] == "No."
        assert "tool_calls" not in made

    def test_nothing_is_looked_for_that_was_not_asked_for(self) -> None:
        assert answer(WHOLE + CALL)["content"] == WHOLE + CALL

    def test_each_call_has_an_id_of_its_own(self) -> None:
        ids = [call["id"] for call in answer(CALL * 3, tools=True)["tool_calls"]]
        assert len(set(ids)) == 3
