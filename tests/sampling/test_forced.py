"""What a grammar forces is all that can come, blanks aside, and looking for it changes nothing."""

from __future__ import annotations

import json
import random
from functools import cache

import pytest
from json_tokenizers import TOKENIZERS
from jsonschema import validate

from gamaneh.sampling.grammar_mask import Frame, Grammar, GrammarMask, SupportsBytes
from gamaneh.testing import ByteTokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Shiraz", "Shahrekord"]},
        "days": {"type": "integer"},
        "price": {"type": "number"},
        "open": {"type": "boolean"},
        "code": {"type": "string", "maxLength": 2},
    },
    "required": ["city", "days", "price", "open"],
    "additionalProperties": False,
}
LENGTH = 64
PROMPT = [5, 6, 7]


@cache
def tokenizer_of(kind: str) -> SupportsBytes:
    return TOKENIZERS[kind]()


def mask_behind(text: str, schema: object = SCHEMA, frame: Frame | None = None) -> GrammarMask:
    tokens = [*PROMPT, *text.encode()]
    return Grammar.from_json_schema(schema, ByteTokenizer(), frame=frame).new_mask(tokens, len(PROMPT))


def forced(text: str, **more) -> tuple[bytes, ...]:
    return mask_behind(text, **more).forced(LENGTH)


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("", ("{", '"city"', ":", '"Sh')),
        ("{", ("", '"city"', ":", '"Sh')),
        ('{"ci', ('ty"', ":", '"Sh')),
        ('{"city" \n', ("", ":", '"Sh')),
        ('{"city": "Sh', ()),
        ('{"city": "Shi', ('raz"', ",", '"days"', ":")),
        ('{"city": "Shiraz"', ("", ",", '"days"', ":")),
        ('{"city": "Shiraz", "days": 1', ()),
        ('{"city": "Shiraz", "days": 1 ', ("", ",", '"price"', ":")),
        ('{"city": "Shiraz", "days": 1, "price": 0', ()),
        ('{"city": "Shiraz", "days": 1, "price": 0.5, "open": t', ("rue",)),
        ('{"city": "Shiraz", "days": 1, "price": 0.5, "open": true', ()),
        ('{"city": "Shiraz", "days": 1, "price": 0.5, "open": true,', ("", '"code"', ":", '"')),
        ('{"city": "Shiraz", "days": 1, "price": 0.5, "open": true, "code": "a', ()),
        ('{"city": "Shiraz", "days": 1, "price": 0.5, "open": true}', ()),
        ("no JSON", ()),
    ],
)
def test_text_is_forced_up_to_the_next_choice(text: str, pieces: tuple[str, ...]) -> None:
    assert forced(text) == tuple(piece.encode() for piece in pieces)


def test_text_around_values_is_forced_too() -> None:
    frame = Frame("<call>\n", "\n</call>", between="\n")
    schema = {"const": 12}
    assert forced("", schema=schema, frame=frame) == (b"<call>\n12\n</call>",)
    assert forced("<call>\n12\n</call>", schema=schema, frame=frame) == ()
    assert forced("<call>\n12\n</call>\n", schema=schema, frame=frame) == (b"<call>\n12\n</call>",)


def test_nothing_is_forced_before_the_text_to_wait_for() -> None:
    frame = Frame(until="</think>")
    assert forced("{ well", frame=frame) == ()
    assert forced("well</think>", frame=frame)[:2] == (b"", b"{")


@pytest.mark.parametrize("length", [1, 2, 9, 10, 30])
def test_looking_ends_at_the_wanted_length(length: int) -> None:
    schema = {"type": "object", "properties": {f"key{at}": {"const": f"{at}"} for at in range(20)}}
    pieces = mask_behind("", {**schema, "required": list(schema["properties"])}).forced(length)
    assert sum(map(len, pieces[:-1])) < length <= sum(map(len, pieces))


def test_a_text_that_breaks_off_within_a_character_is_the_last() -> None:
    schema = {"enum": ["شیراز", "شیخ"]}
    (piece,) = forced("", schema=schema)
    assert piece == '"شیر'.encode()[:-1]
    middle = Grammar.from_json_schema(schema, ByteTokenizer()).new_mask([*'"شیر'.encode()], 0)
    assert middle.forced(LENGTH) == ('از"'.encode(),)


def test_nothing_is_forced_behind_the_end() -> None:
    end = ByteTokenizer.eos_ids[0]
    assert Grammar.from_json_schema({"const": 12}, ByteTokenizer()).new_mask([*b"12", end], 0).forced(LENGTH) == ()


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_every_output_has_what_was_forced_and_the_masks_are_those_without_looking(kind: str) -> None:
    tokenizer = tokenizer_of(kind)
    grammar = Grammar.from_json_schema(SCHEMA, tokenizer)
    for seed in range(6):
        chance, tokens = random.Random(seed), list(PROMPT)
        looking, other = (grammar.new_mask(tokens, len(PROMPT)) for _ in range(2))
        expected: list[tuple[int, tuple[bytes, ...]]] = []
        while tokens[-1] not in tokenizer.eos_ids and len(tokens) < 150:
            expected.append((len(tokens), looking.forced(LENGTH)))
            allowed = looking.mask(())
            assert allowed.equal(other.mask(()))
            tokens.append(chance.choice(allowed.nonzero().flatten().tolist()))
        bare = bytes(tokenizer_text(tokenizer, tokens[len(PROMPT) :]))
        for at, pieces in expected:
            rest = bytes(tokenizer_text(tokenizer, tokens[at:])).translate(None, b" \n\r\t")
            wanted = b"".join(pieces).translate(None, b" \n\r\t")
            assert rest.startswith(wanted[: len(rest)]), bare


def tokenizer_text(tokenizer: SupportsBytes, tokens: list[int]) -> bytes:
    return b"".join(tokenizer.token_bytes(token) for token in tokens if token not in tokenizer.eos_ids)


def test_a_scout_that_gave_up_sees_nothing_and_breaks_nothing() -> None:
    mask = mask_behind('{"ci')
    assert mask.forced(LENGTH)
    mask._scout._parser.matcher.consume_token(0)
    assert mask._scout._parser.matcher.is_error()
    assert mask.forced(LENGTH) == ()
    assert mask.mask(())[ord("t")]


def test_the_forced_parts_of_a_document_are_most_of_it() -> None:
    """The tokens that are left to choose are those of the values."""
    document = {"city": "Shiraz", "days": 12, "price": 3.5, "open": True}
    validate(document, SCHEMA)
    text, chosen, at = json.dumps(document), 0, 0
    while at < len(text):
        pieces = [piece.decode() for piece in forced(text[:at])]
        for piece in pieces:
            at = text.index(piece, at) + len(piece)
        chosen += not pieces
        at += not pieces
    assert chosen < len(text) / 3
