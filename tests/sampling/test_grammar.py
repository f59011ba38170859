"""What a grammar allows, for each kind of tokenizer, whatever was tried before."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from json_tokenizers import TOKENIZERS
from jsonschema import Draft202012Validator

from gamaneh.errors import InvalidRequest
from gamaneh.sampling.edits import TokenMask
from gamaneh.sampling.grammar_mask import Frame, Grammar, SupportsBytes
from gamaneh.testing import ByteTokenizer

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": ["x", "y"]}}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
SCHEMAS = {
    "record": SCHEMA,
    "object": {"type": "object"},
    "number": {"type": "number"},
    "choice": {"anyOf": [{"type": "boolean"}, {"type": "string", "maxLength": 3}, {"const": None}]},
    "references": {"$ref": "#/$defs/pair", "$defs": {"pair": {"type": "array", "items": SCHEMA, "maxItems": 2}}},
}
PROMPT = [5, 6, 7]
STEPS = 60

kinds = pytest.mark.parametrize("kind", TOKENIZERS)


@cache
def tokenizer_of(kind: str) -> SupportsBytes:
    return TOKENIZERS[kind]()


@cache
def grammar_of(kind: str, schema: str) -> Grammar:
    return Grammar.from_json_schema(SCHEMAS[schema], tokenizer_of(kind))


def allowed(mask: TokenMask, path: Sequence[int] = ()) -> list[int]:
    found = mask.mask(path)
    assert found is not None
    return torch.nonzero(found).flatten().tolist()


def text_of(tokenizer: SupportsBytes, tokens: Sequence[int]) -> str:
    return b"".join(map(tokenizer.token_bytes, tokens)).decode()


def is_complete(text: str, schema: dict) -> bool:
    try:
        return text == text.strip() and Draft202012Validator(schema).is_valid(json.loads(text))
    except json.JSONDecodeError:
        return False


def walk(kind: str, schema: str, seed: int) -> list[list[int]]:
    """The allowed tokens of each step of a random output; the last step is an end token if one was drawn."""
    chance, tokens = random.Random(seed), list(PROMPT)
    mask = grammar_of(kind, schema).new_mask(tokens, len(PROMPT))
    steps = []
    while len(steps) < STEPS and tokens[-1] not in tokenizer_of(kind).eos_ids:
        steps.append(allowed(mask))
        tokens.append(chance.choice(steps[-1]))
    return [*steps, tokens[len(PROMPT) :]]


@kinds
@pytest.mark.parametrize("schema", SCHEMAS)
def test_the_output_may_end_exactly_where_it_is_valid(kind: str, schema: str) -> None:
    tokenizer = tokenizer_of(kind)
    for seed in range(12):
        *steps, tokens = walk(kind, schema, seed)
        for at, step in enumerate(steps):
            so_far = b"".join(map(tokenizer.token_bytes, tokens[:at])).decode(errors="replace")
            complete = is_complete(so_far, SCHEMAS[schema])
            assert [end in step for end in tokenizer.eos_ids] == [complete] * len(tokenizer.eos_ids), so_far


@kinds
@pytest.mark.parametrize("schema", SCHEMAS)
@settings(deadline=None, max_examples=20)
@given(data=st.data())
def test_the_answer_depends_on_the_tokens_alone(kind: str, schema: str, data: st.DataObject) -> None:
    """Any paths may be tried between two committed tokens, refused ones and ones past the end too."""
    grammar, ends = grammar_of(kind, schema), tokenizer_of(kind).eos_ids
    tokens = list(PROMPT)
    used = grammar.new_mask(tokens, len(PROMPT))
    for _ in range(data.draw(st.integers(1, 6))):
        for _ in range(data.draw(st.integers(0, 3))):
            path: list[int] = []
            for _ in range(data.draw(st.integers(0, 5))):
                choices = allowed(used, path) + data.draw(st.sampled_from([[], [*ends, 40, 3]]))
                path.append(data.draw(st.sampled_from(choices)))
            fresh = grammar.new_mask([*tokens, *path], len(PROMPT))
            assert allowed(used, path) == allowed(fresh)
        tokens.append(data.draw(st.sampled_from(allowed(used))))


@kinds
class TestTheEnd:
    """CASES kind 21: asking past the end is harmless."""

    def test_after_the_end_only_end_tokens_are_allowed(self, kind: str) -> None:
        tokenizer = tokenizer_of(kind)
        mask, ends = grammar_of(kind, "object").new_mask([], 0), list(tokenizer.eos_ids)
        whole = tokenizer.encode("{}", special=False)[-2:]
        for beyond in ([], ends[:1], [*ends, *ends], [ends[0], *whole]):
            assert allowed(mask, [*whole, *beyond]) == ends

    def test_after_a_refused_token_only_end_tokens_are_allowed(self, kind: str) -> None:
        mask = grammar_of(kind, "object").new_mask([], 0)
        assert allowed(mask, [70, 71]) == list(tokenizer_of(kind).eos_ids)

    def test_a_committed_end_is_the_end(self, kind: str) -> None:
        tokenizer = tokenizer_of(kind)
        tokens: list[int] = []
        mask = grammar_of(kind, "number").new_mask(tokens, 0)
        tokens += [*tokenizer.encode("12", special=False)[-1:], tokenizer.eos_ids[0]]
        for _ in range(3):
            assert allowed(mask) == allowed(mask, [70]) == list(tokenizer.eos_ids)
            tokens.append(tokenizer.eos_ids[0])

    def test_a_path_past_the_end_is_taken_back(self, kind: str) -> None:
        tokenizer = tokenizer_of(kind)
        mask = grammar_of(kind, "number").new_mask([], 0)
        digits = tokenizer.encode("12", special=False)[-1:]
        before = allowed(mask, digits)
        allowed(mask, [*digits, tokenizer.eos_ids[0], *digits])
        assert allowed(mask, digits) == before
        assert len(before) > len(tokenizer.eos_ids)


class TestFrames:
    """Text around values."""

    def accepts(self, frame: Frame, text: str) -> bool:
        """Whether the grammar allows each token of the text and then the end."""
        tokenizer = ByteTokenizer()
        mask = Grammar.from_json_schema({"type": "integer"}, tokenizer, frame=frame).new_mask([], 0)
        tokens = [*tokenizer.encode(text), *tokenizer.eos_ids]
        return all(token in allowed(mask, tokens[:at]) for at, token in enumerate(tokens))

    def test_one_value_has_its_text_around_it(self) -> None:
        frame = Frame('<call>"\\\n', "\n</سلام>")
        assert self.accepts(frame, '<call>"\\\n12\n</سلام>')
        assert not self.accepts(frame, "12")
        assert not self.accepts(frame, '<call>"\\\n12\n</سلام><call>"\\\n12\n</سلام>')

    @pytest.mark.parametrize("values", [1, 2, 4])
    def test_values_repeat_if_there_is_a_text_between(self, values: int) -> None:
        frame = Frame("<", ">", between=", ")
        assert self.accepts(frame, ", ".join(["<7>"] * values))
        assert not self.accepts(frame, ", ".join(["<7>"] * values) + ", ")

    @pytest.mark.parametrize("thought", ["", "hm </thin", 'about "12" \n', "۱۲"])
    @pytest.mark.parametrize("space", ["", "\n\n"])
    def test_anything_may_come_before_the_text_to_wait_for(self, thought: str, space: str) -> None:
        frame = Frame(until="</think>")
        assert self.accepts(frame, f"{thought}</think>{space}12")
        assert not self.accepts(frame, thought or "12")
        assert not self.accepts(frame, f"{thought}</think>{space}x")


def test_blanks_come_to_an_end() -> None:
    tokenizer = ByteTokenizer()
    mask = Grammar.any_json(tokenizer).new_mask([], 0)
    assert ord(" ") in allowed(mask, b"{" + b" " * 39)
    assert ord(" ") not in allowed(mask, b"{" + b" " * 40)


def test_special_tokens_are_never_part_of_a_text() -> None:
    tokenizer = TOKENIZERS["byte-level"]()
    inside = allowed(Grammar.any_json(tokenizer).new_mask([], 0), tokenizer.encode('{"', special=False))
    assert not tokenizer.special_ids & set(inside)
    assert tokenizer.encode("<tool_call>")[0] in inside


class TestRefusals:
    @pytest.mark.parametrize(
        ("schema", "reason"),
        [
            ({"type": "wat"}, "Invalid type: wat"),
            ({"not": {}}, "Unimplemented keys"),
            ({"type": "integer", "minimum": 5, "maximum": 3}, "minimum (5) is greater than maximum (3)"),
            ({"$ref": "http://example.org/schema"}, "not present"),
            ({"x-guidance": {"lenient": True}, "not": {}}, "Unimplemented keys"),
        ],
    )
    def test_a_schema_that_cannot_be_enforced_is_refused_with_the_reason(self, schema: dict, reason: str) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            Grammar.from_json_schema(schema, ByteTokenizer(), field="response_format")
        assert refusal.value.field == "response_format"
        assert reason in str(refusal.value)
        assert "start:" not in str(refusal.value)

    def test_a_model_without_an_end_token_is_refused(self) -> None:
        tokenizer = ByteTokenizer()
        tokenizer.eos_ids = ()
        with pytest.raises(InvalidRequest, match="json_schema needs a model with an end token"):
            Grammar.any_json(tokenizer)

    def test_the_missing_extra_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "llguidance", None)
        with pytest.raises(InvalidRequest, match=r"json_schema needs the extra gamaneh\[grammar\]"):
            Grammar.any_json(ByteTokenizer())
