"""Tokens of the reasoning are counted in `usage`, each by the text that it brought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from served import ChatBytes, Running, engine_for, saying, streamed

from gamaneh.core import FinishReason, StepOutput
from gamaneh.engine.detokenizer import Detokenizer
from gamaneh.server.answer_parser import AnswerParser
from gamaneh.server.chat import TokenPlaces
from gamaneh.testing import ByteTokenizer

PATH = "/v1/chat/completions"
MESSAGES = [{"role": "user", "content": "hello"}]
FRAGMENTS = ["<think>", "</think>", "<thi", "</", "I must add.", "سلام", "\n", " ", "5", "think"]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)


class Reasoner(ChatBytes):
    """Reasons, in a template that opens the reasoning or leaves that to the model."""

    reasons = True

    def __init__(self, opening: str = "<think>\n") -> None:
        super().__init__()
        self.opening = opening

    def chat(self, messages: Sequence[Mapping[str, Any]], tools: object = None) -> list[int]:
        return self.encode(f"{messages[0]['content']}{self.opening}")


def count(*words: str, inside: bool = False) -> int:
    """Tokens of the reasoning, where each word is a token."""
    places, parser = TokenPlaces(), AnswerParser(reasoning=True, inside=inside)
    for word in words:
        places.add(StepOutput("r", texts=(word,)))
        parser.feed(word)
    parser.finish()
    return places.count(parser.reasoning_part)


def reasoning_tokens(answer: Mapping[str, Any]) -> int:
    tokens: int = answer["usage"]["completion_tokens_details"]["reasoning_tokens"]
    return tokens


def both_ways(running: Running, **fields: Any) -> int:
    """What a response says, and the last chunk of the same as a stream."""
    asked = {"messages": MESSAGES, "temperature": 0, **fields}
    tokens = reasoning_tokens(running.post(PATH, **asked))
    assert reasoning_tokens(streamed(running, PATH, **asked, stream_options={"include_usage": True})[-1]) == tokens
    return tokens


@given(texts, st.booleans())
@settings(deadline=None, max_examples=400)
def test_the_reasoning_is_where_the_parser_says_that_it_is(text: str, inside: bool) -> None:
    parser = AnswerParser(reasoning=True, inside=inside)
    told = [*(one for letter in text for one in parser.feed(letter)), *parser.finish()]
    part = parser.reasoning_part
    assert text[part.start : part.stop] == "".join(one.text for one in told if one.reasoning)


def test_markers_and_the_blanks_beside_them_are_no_reasoning() -> None:
    assert count("<think>", "\n", "I", " must", " add.", "\n", "</think>", "\n\n", "5") == 3


def test_a_token_that_holds_reasoning_and_more_counts() -> None:
    assert count("<think>I", " must", " add.</think>5") == 3


def test_a_token_that_holds_only_markers_does_not_count() -> None:
    assert count("<think></think>", "5") == 0


@pytest.mark.parametrize("words", [(), ("5",), ("<think>", "\n\n", "</think>", "5"), ("so ", "<think>", "x")])
def test_without_reasoning_nothing_is_counted(words: Sequence[str]) -> None:
    assert count(*words) == 0


def test_reasoning_that_is_cut_off_counts() -> None:
    assert count("I", " must", inside=True) == 2


@pytest.mark.parametrize("step", [1, 3, 64])
def test_parts_of_characters_count_whatever_comes_together(step: int) -> None:
    data = "<think>گمان</think>آری".encode()
    places, texts = TokenPlaces(), Detokenizer(ByteTokenizer())
    for at in range(0, len(data), step):
        places.add(StepOutput("r", texts=texts.feed(data[at : at + step]).texts))
    parser = AnswerParser(reasoning=True)
    parser.feed(data.decode())
    assert places.count(parser.reasoning_part) == len("گمان".encode())


def test_a_character_that_the_end_breaks_off_counts() -> None:
    places, texts = TokenPlaces(), Detokenizer(ByteTokenizer())
    told = (*texts.feed("ok گ".encode()[:-1]).texts, *texts.flush().texts)
    places.add(StepOutput("r", texts=told, finish_reason=FinishReason.LENGTH))
    assert places.count(range(4)) == 4


@pytest.mark.parametrize("k", [1, 4, 9])
def test_stream_and_response_say_how_many_tokens_were_reasoning(start, k: int) -> None:
    script = saying("let me think\n</think>\n\nan answer", "hello<think>\n")
    running = start(engine_for(script, k=k, accuracy=0.7), tokenizer=Reasoner())
    assert both_ways(running) == len("let me think")
    assert both_ways(running, speculation={"enabled": False}) == len("let me think")


def test_reasoning_that_the_model_opens_is_counted_too(start) -> None:
    running = start(engine_for(saying("<think>گمان</think>آری", "hello")), tokenizer=Reasoner(""))
    assert both_ways(running) == len("گمان".encode())


def test_a_stop_text_is_no_reasoning(start) -> None:
    running = start(engine_for(saying("let me think", "hello<think>\n")), tokenizer=Reasoner())
    assert both_ways(running, stop="me") == len("let ")


def test_reasoning_of_all_answers_is_counted(start) -> None:
    running = start(engine_for(saying("hm</think>5", "hello<think>\n")), tokenizer=Reasoner())
    assert both_ways(running, n=3) == 3 * len("hm")


def test_there_is_none_where_the_model_has_none(server: Running) -> None:
    assert both_ways(server, max_tokens=8) == 0
    assert reasoning_tokens(server.complete(max_tokens=8)) == 0
