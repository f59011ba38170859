"""One rule for stop texts: text, logprobs and explanations of tokens end before one, and usage counts all tokens."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from served import Running, engine_for, saying, streamed

from gamaneh.options import SpeculationOptions
from gamaneh.testing import PieceTokenizer, ScriptedProposer, ScriptedRunner, fixed_output, scripted_engine

PIECES = ["roses", " are", " red", ". END", " of", "é".encode()[:1], "é".encode()[1:], " E", "ND", "."]
FIELDS: dict[str, Any] = {"temperature": 0, "max_tokens": 20}


class ChatPieces(PieceTokenizer):
    """Pieces with a chat template that writes nothing but the user's words."""

    def chat(self, messages: Any, tools: Any = None) -> list[int]:
        return self.encode(messages[-1]["content"])


def pieces_server(start: Callable[..., Running], *said: int, k: int = 4) -> Running:
    """A server that says these pieces after the prompt `roses`."""
    tokenizer = ChatPieces(PIECES)
    script = fixed_output([*said, *tokenizer.eos_ids], tokenizer.vocab_size, 1)
    engine = scripted_engine(
        ScriptedRunner(script, tokenizer.vocab_size),
        tokenizer,
        proposer=ScriptedProposer(script, tokenizer.vocab_size, 1.0),
        speculation=SpeculationOptions(proposer="scripted", draft_length=k),
    )
    return start(engine, tokenizer=tokenizer)


@pytest.mark.parametrize("k", [1, 3, 8])
@pytest.mark.parametrize("speculation", [{"enabled": True}, {"enabled": False}])
class TestCompletions:
    def test_no_field_has_anything_of_it(self, start, k: int, speculation: dict[str, Any]) -> None:
        running = start(engine_for(saying("a rose is a rose", "hello"), k=k))
        answer = running.complete(
            "hello", stop="rose", logprobs=2, **FIELDS, speculation={**speculation, "tokens": True, "metrics": True}
        )
        choice = answer["choices"][0]
        assert choice["text"] == "a "
        assert choice["logprobs"]["tokens"] == ["a", " "]
        assert [token["text"] for token in answer["gamaneh"]["tokens"]] == ["a", " "]
        assert answer["usage"]["completion_tokens"] == len("a rose")
        assert sum(answer["gamaneh"]["speculation"]["tokens_by_origin"].values()) == len("a rose")

    def test_a_token_that_holds_text_and_the_stop_text_is_cut(self, start, k: int, speculation: dict[str, Any]) -> None:
        running = pieces_server(start, 1, 2, 3, 4, k=k)
        answer = running.complete(
            "roses", stop=" END", logprobs=1, **FIELDS, speculation={**speculation, "tokens": True}
        )
        choice = answer["choices"][0]
        assert choice["text"] == " are red."
        assert choice["logprobs"]["tokens"] == [" are", " red", "."]
        assert list(choice["logprobs"]["top_logprobs"][-1]) == ["."]
        assert [token["text"] for token in answer["gamaneh"]["tokens"]] == [" are", " red", "."]
        assert answer["usage"]["completion_tokens"] == 3

    def test_nothing_of_it_is_streamed_before_it_is_known(self, start, k: int, speculation: dict[str, Any]) -> None:
        running = start(engine_for(saying("a rose is", "hello"), k=k))
        chunks = streamed(
            running,
            "/v1/completions",
            prompt="hello",
            stop="rose",
            logprobs=1,
            **FIELDS,
            speculation={**speculation, "tokens": True},
        )
        words = json.dumps(
            [
                [chunk["choices"], [each["text"] for each in chunk["gamaneh"]["tokens"]]]
                for chunk in chunks
                if "gamaneh" in chunk
            ]
        )
        assert not any(letter in words for letter in ['"r"', '"o"', '"ro"', "ros"])


def test_chats_keep_the_same_rule(start) -> None:
    running = pieces_server(start, 1, 2, 3)
    choice = running.chat("roses", stop=" END", logprobs=True, top_logprobs=1, **FIELDS)["choices"][0]
    entries = choice["logprobs"]["content"]
    assert choice["message"]["content"] == " are red."
    assert [entry["token"] for entry in entries] == [" are", " red", "."]
    assert b"".join(bytes(entry["bytes"]) for entry in entries) == b" are red."
    assert entries[-1]["top_logprobs"][0]["token"] == "."


def test_what_only_began_as_one_is_told_in_the_end(start) -> None:
    running = pieces_server(start, 1, 7, 4)
    answer = running.complete("roses", stop=" END", logprobs=0, **FIELDS)
    assert answer["choices"][0]["text"] == " are E of"
    assert answer["choices"][0]["logprobs"]["tokens"] == [" are", " E", " of"]


def test_parts_of_a_character_wait_for_what_their_character_may_become(start) -> None:
    running = pieces_server(start, 1, 5, 6, 8, k=1)
    answer = running.complete("roses", stop="éND", logprobs=0, **FIELDS)
    assert answer["choices"][0]["text"] == " are"
    assert answer["choices"][0]["logprobs"]["tokens"] == [" are"]


class TestTextOffsets:
    def test_they_point_into_the_text_behind_parts_of_characters(self, start) -> None:
        choice = pieces_server(start, 1, 5, 6, 9).complete("roses", logprobs=0, **FIELDS)["choices"][0]
        assert (choice["text"], choice["logprobs"]["text_offset"]) == (" areé.", [0, 4, 4, 5])

    def test_special_tokens_take_no_room(self, start) -> None:
        end = len(PIECES)
        choice = pieces_server(start, 1, end, 9).complete(
            "roses", logprobs=0, ignore_eos=True, temperature=0, max_tokens=3
        )["choices"][0]
        assert (choice["text"], choice["logprobs"]["text_offset"]) == (" are.", [0, 4, 4])

    def test_the_prompt_that_is_echoed_comes_first(self, start) -> None:
        choice = pieces_server(start, 1, 9).complete("roses", echo=True, logprobs=0, **FIELDS)["choices"][0]
        assert (choice["text"], choice["logprobs"]["text_offset"]) == ("roses are.", [0, 5, 9])

    def test_a_begin_token_that_the_text_does_not_have_takes_no_room(self, start) -> None:
        tokenizer = ChatPieces(PIECES, special=("<end>", "<begin>"), begin="<begin>")
        script = fixed_output([9, *tokenizer.eos_ids], tokenizer.vocab_size, 2)
        running = start(scripted_engine(ScriptedRunner(script, tokenizer.vocab_size), tokenizer), tokenizer=tokenizer)
        choice = running.complete("roses", echo=True, logprobs=0, **FIELDS)["choices"][0]
        assert (choice["text"], choice["logprobs"]["text_offset"]) == ("roses.", [0, 0, 5])
        ids = running.complete([tokenizer.bos_id, 0], echo=True, logprobs=0, **FIELDS)["choices"][0]
        assert (ids["text"], ids["logprobs"]["text_offset"]) == ("<begin>roses.", [0, 7, 12])


def test_a_character_that_the_end_cuts_off_is_one_replacement_in_every_field(start) -> None:
    running = pieces_server(start, 1, 5, 6)
    answer = running.complete("roses", logprobs=0, temperature=0, max_tokens=2, speculation={"tokens": True})
    assert answer["choices"][0]["text"] == " are\ufffd"
    assert [token["text"] for token in answer["gamaneh"]["tokens"]] == [" are", "\ufffd"]
    assert answer["choices"][0]["logprobs"]["text_offset"] == [0, 4]


class TestMetricsCountWhatWasEmitted:
    @pytest.mark.parametrize("ends", [{}, {"stop": "c"}])
    def test_candidates_behind_the_end_are_not_accepted(self, start, ends: dict[str, str]) -> None:
        text = "abcd" if ends else "abc"
        running = start(engine_for(saying(text, "hello"), k=8, accuracy=1.0))
        metrics = running.complete("hello", **FIELDS, **ends, speculation={"metrics": True})["gamaneh"]["speculation"]
        # The first token comes from reading the prompt; "b", "c" and an end token, where there is one, are drafted.
        assert metrics["accepted"] == metrics["emitted"] == (2 if ends else 3)
        series = running.http.get("/metrics").text
        assert f"gamaneh_spec_decode_num_accepted_tokens_total {metrics['accepted']:.1f}" in series
