"""Text that a grammar forces, in the tokens of a real tokenizer: it is cut as the tokenizer cuts the whole answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gamaneh.core import ProposalRow
from gamaneh.models.gguf_file import GgufFile
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.proposers.grammar import GrammarProposer
from gamaneh.sampling.grammar_mask import Grammar

TRIP = {"destination_city": "Shiraz", "number_of_days": 12, "window_seat": True, "توضیح": "بی‌درنگ"}
SCHEMA = {
    "type": "object",
    "properties": {
        "destination_city": {"enum": ["Shiraz", "Tabriz", "Isfahan"]},
        "number_of_days": {"type": "integer"},
        "window_seat": {"type": "boolean"},
        "توضیح": {"enum": ["بی‌درنگ", "بعداً"]},
    },
    "required": list(TRIP),
    "additionalProperties": False,
}
DEPTH = 15
ENOUGH = {"one line": 3.0, "indented": 2.5}
"""Tokens per round that are reached at least."""


@pytest.fixture(scope="module")
def tokenizer(model_file: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GgufFile(model_file))


@pytest.mark.parametrize(("style", "indent"), [("one line", None), ("indented", 2)])
def test_most_drafted_tokens_are_those_of_the_answer(tokenizer: Tokenizer, style: str, indent: int | None) -> None:
    """Rounds over a known answer: each takes what is right of the draft and one more token."""
    answer = tokenizer.encode(json.dumps(TRIP, indent=indent, ensure_ascii=False), special=False)
    tokens = answer[:1]
    mask = Grammar.from_json_schema(SCHEMA, tokenizer).new_mask(tokens, 0)
    proposer, rounds, drafted, accepted = GrammarProposer(tokenizer), 0, 0, 0
    while len(tokens) < len(answer):
        (draft,) = proposer.propose([ProposalRow("r", tokens, DEPTH, DEPTH, sampler=None, mask=mask)])
        rest = answer[len(tokens) :]
        right = next((at for at, token in enumerate(draft.tokens) if rest[at : at + 1] != [token]), len(draft))
        tokens += rest[: right + 1]
        rounds, drafted, accepted = rounds + 1, drafted + len(draft), accepted + right
    assert len(answer) > ENOUGH[style] * rounds
    assert accepted > 0.7 * drafted
