"""Forced tool calls: whatever the model would say, a call of the right tool comes out, streamed or not."""

from __future__ import annotations

import json

import pytest
from jsonschema import validate

from gamaneh.core import FinishReason, Request
from gamaneh.errors import InvalidRequest
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.sampling.grammar_mask import Grammar
from gamaneh.server.answer_parser import AnswerParser, message
from gamaneh.server.constraints import tool_grammar
from gamaneh.testing import BYTE_VOCAB, EOS_ID, ByteTokenizer, ScriptedProposer, ScriptedRunner, hashed, scripted_engine

CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer", "minimum": 1, "maximum": 14}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"city": {"enum": ["Shiraz", "Tabriz"]}},
}
TREE = {
    "type": "object",
    "properties": {"leaf": {"type": "boolean"}, "below": {"type": "array", "items": {"$ref": "#"}, "maxItems": 1}},
    "required": ["leaf"],
    "additionalProperties": False,
}
PARAMETERS = {"weather": CITY, "tree": TREE, "now": None}
TOOLS = [
    {"type": "function", "function": {"name": name, **({"parameters": schema} if schema else {})}}
    for name, schema in PARAMETERS.items()
]
SCRIPT = hashed(BYTE_VOCAB)
ENDING = {**{ord(blank): -20.0 for blank in " \n\r\t"}, ord("}"): 8.0, ord("]"): 8.0, EOS_ID: 12.0}


def named(name: str) -> dict:
    return {"type": "function", "function": {"name": name}}


def grammar(choice, **options) -> Grammar:
    made = tool_grammar(TOOLS, choice, ByteTokenizer(), **options)
    assert made is not None
    return made


def said(mask: Grammar, seed: int, *, k: int = 5) -> dict:
    """The message that the deltas make, from a target that knows nothing of tools."""
    runner = ScriptedRunner(SCRIPT, BYTE_VOCAB, num_blocks=256, max_context=600)
    speculation = SpeculationOptions(proposer="scripted", draft_length=k)
    proposer = ScriptedProposer(SCRIPT, BYTE_VOCAB, accuracy=0.6)
    engine = scripted_engine(runner, ByteTokenizer(), proposer=proposer, speculation=speculation)
    params = SamplingParams(temperature=1.0, seed=seed, max_tokens=500, logit_bias=ENDING)
    engine.add(Request([seed], params, mask=mask))
    parser = AnswerParser(tools=True, new_id=lambda: "c")
    outputs = [output for _ in range(500) if engine.has_work for output in engine.step()]
    assert outputs[-1].finish_reason is FinishReason.STOP
    pieces = [*(one for output in outputs for one in parser.feed(output.text)), *parser.finish()]
    return message([piece.delta() for piece in pieces])


def assert_valid(call: dict) -> None:
    function = call["function"]
    validate(json.loads(function["arguments"]), PARAMETERS[function["name"]] or {"maxProperties": 0})


@pytest.mark.parametrize("name", PARAMETERS)
@pytest.mark.parametrize("seed", range(2))
def test_the_named_tool_is_called_once(name: str, seed: int) -> None:
    made = said(grammar(named(name)), seed)
    assert made["content"] is None
    (call,) = made["tool_calls"]
    assert call["function"]["name"] == name
    assert_valid(call)


@pytest.mark.parametrize("seed", range(4))
def test_required_calls_at_least_one_of_the_tools(seed: int) -> None:
    made = said(grammar("required"), seed)
    assert made["content"] is None
    assert made["tool_calls"]
    for call in made["tool_calls"]:
        assert_valid(call)


def accepts(mask_source: Grammar, text: str) -> bool:
    mask, tokens = mask_source.new_mask([], 0), [*text.encode(), EOS_ID]
    return all(mask.mask(tokens[:at])[token] for at, token in enumerate(tokens))


NOW = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


@pytest.mark.parametrize(("parallel", "several"), [(True, True), (False, False)])
def test_several_calls_are_made_only_where_they_may(parallel: bool, several: bool) -> None:
    assert accepts(grammar("required", parallel=parallel), NOW)
    assert accepts(grammar("required", parallel=parallel), f"{NOW}\n{NOW}") is several
    assert not accepts(grammar(named("now")), f"{NOW}\n{NOW}")


def test_reasoning_may_come_first() -> None:
    assert accepts(grammar("required", until="</think>"), f"Hm, <tool_call> or not?</think>\n\n{NOW}")
    assert not accepts(grammar("required"), f"Hm</think>\n\n{NOW}")


@pytest.mark.parametrize("choice", ["none", "auto"])
def test_a_free_choice_needs_no_grammar(choice: str) -> None:
    assert tool_grammar(TOOLS, choice, ByteTokenizer()) is None


def test_an_unknown_tool_is_refused_by_name() -> None:
    with pytest.raises(InvalidRequest, match="tool_choice must name one of weather, tree, now, got 'wether'"):
        grammar(named("wether"))


def test_parameters_that_are_no_schema_are_refused() -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "wat"}}}]
    with pytest.raises(InvalidRequest, match="tools must hold a JSON schema") as refusal:
        tool_grammar(tools, "required", ByteTokenizer())
    assert refusal.value.field == "tools"
