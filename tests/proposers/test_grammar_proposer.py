"""The proposer `grammar` offers the text that the grammar forces, in the tokenizer's own tokens."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from gamaneh.core import Draft, ProposalRow, TokenMask
from gamaneh.errors import BadLogits, InvalidOption
from gamaneh.proposers import registry
from gamaneh.proposers.grammar import GrammarProposer
from gamaneh.sampling import grammar_mask
from gamaneh.sampling.grammar_mask import Grammar
from gamaneh.testing import ByteTokenizer, PieceTokenizer

DOCUMENT = {"destination_city": "Shiraz", "days": 12, "window_seat": True}
SCHEMA = {
    "type": "object",
    "properties": {
        "destination_city": {"enum": ["Shiraz", "Tabriz"]},
        "days": {"type": "integer"},
        "window_seat": {"type": "boolean"},
    },
    "required": list(DOCUMENT),
}
WORDS = ['{"', '":', '",', ' "', "dest", "ination", "city", "days", "raz", "rue"]
PIECES = [*map(chr, range(32, 127)), "\n", "\t", "\r", *WORDS]
PROMPT = "JSON: "


def row(tokens: Sequence[int], mask: TokenMask | None, depth: int = 30, name: str = "r") -> ProposalRow:
    return ProposalRow(name, tokens, depth, depth, sampler=None, mask=mask)


def drafted(text: str, tokenizer: ByteTokenizer | PieceTokenizer, depth: int = 30) -> list[str]:
    """Texts of the tokens that are drafted behind `text`, which is emitted token by token."""
    tokens, output = tokenizer.encode(PROMPT), tokenizer.encode(text)
    mask = Grammar.from_json_schema(SCHEMA, tokenizer).new_mask(tokens, len(tokens))
    proposer, draft = GrammarProposer(tokenizer), Draft()
    for token in output:
        tokens.append(token)
        (draft,) = proposer.propose([row(tokens, mask, depth)])
    assert draft.is_chain
    return [tokenizer.token_bytes(token).decode() for token in draft.tokens]


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("{", ['"', "dest", "ination", "_", "city", '":', ' "']),
        ('{"d', ["e", "s", "t", "ination", "_", "city", '":', ' "']),
        ('{"destination_city": "Sh', ["i", "raz", '",', ' "', "days", '":']),
        ('{"destination_city": "Shiraz", "days": 12,', [' "', *"window_seat", '":']),
        ('{"destination_city":"Shiraz","days":12,', ['"', *"window_seat", '":']),
        ('{\n "destination_city": "Shiraz"', [",", "\n", ' "', "days", '":']),
        ('{"destination_city": "Shiraz", "days": 1', []),
    ],
)
def test_forced_text_is_drafted_as_the_tokenizer_cuts_it(text: str, tokens: list[str]) -> None:
    assert drafted(text, PieceTokenizer(PIECES)) == tokens


def test_a_draft_is_no_longer_than_allowed() -> None:
    whole = drafted("{", ByteTokenizer())
    assert "".join(whole) == '"destination_city": "'
    for depth in (1, 2, 7):
        assert drafted("{", ByteTokenizer(), depth) == whole[:depth]


@pytest.mark.parametrize("indent", [None, 2])
def test_most_of_a_document_is_drafted(indent: int | None) -> None:
    """Greedy rounds over a known document: each takes what is right of the draft and one more token."""
    tokenizer = PieceTokenizer(PIECES)
    wanted = tokenizer.encode(json.dumps(DOCUMENT, indent=indent))
    tokens = wanted[:1]
    mask = Grammar.from_json_schema(SCHEMA, tokenizer).new_mask(tokens, 0)
    proposer, rounds = GrammarProposer(tokenizer), 0
    while len(tokens) < len(wanted):
        (draft,) = proposer.propose([row(tokens, mask)])
        rest = wanted[len(tokens) :]
        right = next((at for at, token in enumerate(draft.tokens) if rest[at : at + 1] != [token]), len(draft))
        tokens += rest[: right + 1]
        rounds += 1
    assert rounds < len(wanted) / 2.5


def test_a_draft_that_guesses_blanks_is_less_sure() -> None:
    tokenizer = ByteTokenizer()
    grammar = Grammar.from_json_schema(SCHEMA, tokenizer)
    texts = b'{"destination_city": "Shiraz"', b'{"destination_city": "Shiraz", "days": 1, "window_seat": t'
    rows = [row(tokens, grammar.new_mask(tokens, 0), name=str(tokens)) for tokens in map(list, texts)]
    grades = [draft.grade for draft in GrammarProposer(tokenizer).propose(rows)]
    assert grades == [0, 1]


def test_a_request_without_a_mask_gets_no_draft() -> None:
    (draft,) = GrammarProposer(ByteTokenizer()).propose([row([1, 2], None)])
    assert draft.tokens == ()


class Broken:
    def mask(self, path):
        raise BadLogits("too complex")

    def forced(self, length):
        raise BadLogits("too complex")


def test_a_mask_that_gave_up_costs_no_other_request_its_draft() -> None:
    tokenizer = ByteTokenizer()
    tokens = list(b"{")
    mask = Grammar.from_json_schema(SCHEMA, tokenizer).new_mask(tokens, 0)
    rows = [row(tokens, Broken(), name="broken"), row(tokens, mask, name="sound")]
    broken, sound = GrammarProposer(tokenizer).propose(rows)
    assert not len(broken)
    assert len(sound)


def test_requests_keep_their_blanks_apart_and_a_dropped_one_begins_anew() -> None:
    tokenizer = ByteTokenizer()
    proposer, grammar = GrammarProposer(tokenizer), Grammar.from_json_schema(SCHEMA, tokenizer)
    texts = {"dense": list(b"{"), "usual": list(b"{")}
    masks = {name: grammar.new_mask(tokens, 0) for name, tokens in texts.items()}

    def drafts() -> list[bytes]:
        made = proposer.propose([row(tokens, masks[name], name=name) for name, tokens in texts.items()])
        return [bytes(draft.tokens) for draft in made]

    drafts()
    texts["dense"] += b'"destination_city":"Tabriz","days":1,'
    texts["usual"] += b'"destination_city": "Tabriz", "days": 1,'
    assert drafts() == [b'"window_seat":', b' "window_seat":']
    proposer.forget("dense")
    proposer.forget("nobody")
    assert drafts() == [b' "window_seat":'] * 2


def test_it_is_there_when_grammars_can_be_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = registry.REGISTRY["grammar"]
    assert recipe.ready(None)
    monkeypatch.setattr(grammar_mask, "grammars_are_there", lambda: False)
    assert not recipe.ready(None)
    with pytest.raises(InvalidOption, match=r"proposer needs the extra gamaneh\[grammar\], got 'grammar'"):
        recipe.build(None)
