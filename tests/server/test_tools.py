"""Tool calls in streamed text: the same whatever the pieces, nothing lost, broken calls are content."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gamaneh.server.answer_parser import AnswerParser, message

F = '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>'
G = '<tool_call>{"name":"g","arguments":{"y":[2,{"z":"}</tool_call> \\" سلام"}]}}</tool_call>'
TWO = '<tool_call>{"name":"f","arguments":{"x":1}}</tool_call><tool_call>{"name":"g","arguments":{"y":2}}</tool_call>'


def parsed(pieces) -> dict:
    """The message that the deltas of these pieces make; calls are named c0, c1, ..."""
    ids = itertools.count()
    parser = AnswerParser(tools=True, new_id=lambda: f"c{next(ids)}")
    said = [one for piece in pieces for one in parser.feed(piece)]
    return message([one.delta() for one in [*said, *parser.finish()]])


def calls_of(text: str) -> list[tuple[str, object]]:
    calls = parsed([text]).get("tool_calls", [])
    return [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in calls]


def cut(text: str, at: list[int]) -> list[str]:
    borders = [0, *sorted(place % (len(text) + 1) for place in at), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(borders)]


FRAGMENTS = [
    F,
    G,
    "<tool_call>",
    "</tool_call>",
    "<tool_call",
    "Let me look. ",
    "سلام",
    "\n\n",
    " ",
    "<",
    '{"name": "f", "arguments": ',
    '{"x": "<tool_call>"}',
    '{"arguments": {"k": []}, "id": 7, "name": "h"}',
    '{"name": "k"}',
    '{"name": "double", "arguments": "{\\"x\\": 1}"}',
    "}",
    '"',
    "\\",
    '{"name": "bad\\q", "arguments": {}}',
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=7).map("".join)


@given(texts, st.lists(st.integers(0, 400), max_size=8))
@example(TWO, list(range(len(TWO))))
@settings(deadline=None, max_examples=400)
def test_pieces_of_any_size_make_the_same_message(text: str, at: list[int]) -> None:
    assert parsed(cut(text, at)) == parsed([text])


@given(texts)
@settings(deadline=None)
def test_single_characters_make_the_same_message(text: str) -> None:
    assert parsed(text) == parsed([text])


@given(texts.filter(lambda text: "<tool_call>" not in text))
def test_text_without_calls_is_passed_on_as_it_is(text: str) -> None:
    assert parsed(cut(text, [3, 5, 17])) == {"role": "assistant", "content": text, "refusal": None}


@pytest.mark.parametrize("size", range(1, 65))
def test_kind_15_blocks_of_any_size_bring_both_calls(size: int) -> None:
    made = parsed([TWO[at : at + size] for at in range(0, len(TWO), size)])
    assert [call["function"] for call in made["tool_calls"]] == [
        {"name": "f", "arguments": '{"x":1}'},
        {"name": "g", "arguments": '{"y":2}'},
    ]
    assert [call["id"] for call in made["tool_calls"]] == ["c0", "c1"]
    assert made["content"] is None


def test_text_before_between_and_after_calls_is_content() -> None:
    made = parsed([f"First.\n\n{F}\nThen.\n{G}\n\nDone. "])
    assert made["content"] == "First.Then.Done. "
    assert len(made["tool_calls"]) == 2


def test_arguments_stay_as_the_model_wrote_them() -> None:
    arguments = parsed([G])["tool_calls"][0]["function"]["arguments"]
    assert arguments == '{"y":[2,{"z":"}</tool_call> \\" سلام"}]}'


def test_arguments_are_passed_on_while_they_come() -> None:
    parser = AnswerParser(tools=True)
    assert parser.feed('<tool_call>{"name": "write", "arguments": {"text": "once')
    assert [one.delta() for one in parser.feed(" upon")] == [
        {"tool_calls": [{"index": 0, "function": {"arguments": " upon"}}]}
    ]


class TestUnusualCalls:
    @pytest.mark.parametrize(
        ("body", "call"),
        [
            ('{"arguments": {"k": []}, "id": 7, "name": "h"}', ("h", {"k": []})),
            ('{"name": "k"}', ("k", {})),
            ('{"name": "d", "arguments": "{\\"x\\": 1}"}', ("d", {"x": 1})),
            ('{"name": "p", "parameters": {"x": 1}}', ("p", {"x": 1})),
            ('{"name": "m", "arguments": {}, "id": [1, {}]}', ("m", {})),
            ('{"name": "\\u0633\\"", "arguments": {}}', ('س"', {})),
            (' \n {\t"name"\n:"s" , "arguments" : { } } \n', ("s", {})),
        ],
    )
    def test_they_are_understood(self, body: str, call: tuple[str, object]) -> None:
        text = f"<tool_call>{body}</tool_call>"
        assert calls_of(text) == [call]
        assert parsed([text])["content"] is None

    def test_a_missing_end_marker_is_forgiven(self) -> None:
        text = F.removesuffix("</tool_call>")
        assert calls_of(text) == calls_of(text + G)[:1] == [("f", {"x": 1})]
        assert len(calls_of(text + G)) == 2


class TestBrokenCalls:
    @pytest.mark.parametrize(
        "body",
        [
            "not JSON",
            "",
            '{"name": "f"',
            '{"name": 5, "arguments": {}}',
            '{"name": "f", "arguments": [1]}',
            '{"name": "f", "arguments": "x"}',
            '{"nome": "f", "arguments": {}}',
            '{"name": "f\\q", "arguments": {}}',
            '{"name": "f", "arguments" {}}',
            "[" * 5000 + "]" * 5000,
            '{"name": "f", "a": ' + "[" * 5000 + "]" * 5000 + "}",
        ],
    )
    @pytest.mark.parametrize("end", ["</tool_call>", "</tool_call> and so on", ""])
    def test_they_are_content_as_they_stand(self, body: str, end: str) -> None:
        text = f"See \n<tool_call>{body}{end}"
        assert parsed([text]) == {"role": "assistant", "content": text, "refusal": None}

    def test_a_call_after_a_broken_one_is_found(self) -> None:
        assert calls_of(f"<tool_call>oops {F}") == [("f", {"x": 1})]
        assert parsed([f"<tool_call>oops {F}"])["content"] == "<tool_call>oops"

    def test_what_breaks_in_the_arguments_goes_on_as_content(self) -> None:
        made = parsed(['<tool_call>{"name": "f", "arguments": {"x": @}}</tool_call>'])
        assert made["tool_calls"][0]["function"]["arguments"] == '{"x": '
        assert made["content"] == "@}}</tool_call>"

    def test_arguments_that_are_cut_off_stay_cut_off(self) -> None:
        made = parsed(['<tool_call>{"name": "f", "arguments": {"x": "unfin'])
        assert made["tool_calls"][0]["function"]["arguments"] == '{"x": "unfin'
        assert made["content"] is None

    def test_arguments_that_are_not_closed_end_with_the_call(self) -> None:
        made = parsed(['<tool_call>{"name": "f", "arguments": {"x": 1</tool_call>Well'])
        assert made["tool_calls"][0]["function"]["arguments"] == '{"x": 1'
        assert made["content"] == "Well"


@pytest.mark.parametrize("text", ["a <", "a <tool_ca", "a \n", " ", "<tool_call>", "<tool_call> {"])
def test_what_is_held_back_comes_at_the_end(text: str) -> None:
    assert parsed(text)["content"] == text
