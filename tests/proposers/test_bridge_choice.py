"""Which bridge is taken, and what is said about it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from crossing import BYTES, row

from gamaneh.errors import InvalidOption, TokenizerMismatch
from gamaneh.models.loading import LoadedModel
from gamaneh.proposers.bridge import Bridge, SameTokens, TokenGrowth
from gamaneh.proposers.cross.bridge_choice import ENOUGH, EitherBridge, choose_bridge
from gamaneh.proposers.cross.text import TextBridge, TextGrowth
from gamaneh.proposers.cross.vocabulary_bridge import VocabularyBridge
from gamaneh.proposers.tree import Style
from gamaneh.testing import PieceTokenizer, tiny_model

WORDS = [" the", " cat", " sat", " mat"]
OURS = PieceTokenizer([*BYTES, *WORDS])
ALIKE = PieceTokenizer([*reversed(BYTES), *WORDS[:3], " dog"])
OTHERS = PieceTokenizer([*reversed(BYTES), " der", " Hund", *WORDS[2:]])
LONG = "A sample, two lines:\nit must come back."
APART = PieceTokenizer(["a", LONG]), PieceTokenizer([" a", f" {LONG}"], special=("<none>",), adds_space=True)


def model(tokenizer: object, name: str = "small") -> LoadedModel:
    return replace(tiny_model(), tokenizer=tokenizer, name=name)


def chosen(draft: PieceTokenizer, target: PieceTokenizer = OURS, bridge="auto", draft_branching=1) -> Bridge:
    return choose_bridge(model(target, "large"), model(draft), bridge, draft_branching, target.vocab_size)


def test_the_same_tokenizer_needs_no_bridge() -> None:
    bridge = chosen(OURS)
    assert isinstance(bridge, SameTokens)
    assert bridge.about == ""


def test_vocabularies_that_are_alike_are_used_for_requests_that_sample() -> None:
    bridge = chosen(ALIKE)
    assert isinstance(bridge, EitherBridge)
    greedy, sampled = (row([65], temperature=temperature) for temperature in (0.0, 1.0))
    assert isinstance(bridge.growth(greedy, Style()), TextGrowth)
    assert isinstance(bridge.growth(sampled, Style()), TokenGrowth)
    assert isinstance(bridge.growth(replace(sampled, draft_sampling="greedy"), Style()), TextGrowth)
    assert bridge.about == (
        "text and vocabulary bridges to the tokens of small: 88% of the target's tokens, by how common they are, "
        "are the draft model's too: greedy requests by text, sampled ones by vocabulary"
    )


def test_vocabularies_that_have_little_in_common_are_bridged_by_text() -> None:
    bridge = chosen(OTHERS)
    assert isinstance(bridge, TextBridge)
    assert not bridge.gives_probs
    assert f"fewer than {ENOUGH:.0%}" in bridge.about


@pytest.mark.parametrize(("asked", "kind"), [("text", TextBridge), ("vocabulary", VocabularyBridge)])
@pytest.mark.parametrize("draft", [OURS, ALIKE, OTHERS])
def test_an_option_decides(asked: str, kind: type[Bridge], draft: PieceTokenizer) -> None:
    bridge = chosen(draft, bridge=asked)
    assert isinstance(bridge, kind)
    assert bridge.about.startswith(f"{asked} bridge to the tokens of small: asked for by the option bridge")


def test_trees_are_made_by_vocabulary() -> None:
    bridge = chosen(ALIKE, draft_branching=3)
    assert isinstance(bridge, VocabularyBridge)
    assert "draft_branching asks for trees" in bridge.about


@pytest.mark.parametrize("options", [{"bridge": "text"}, {}])
def test_trees_cannot_be_made_by_text(options: dict[str, str]) -> None:
    with pytest.raises(InvalidOption, match=r"draft_branching must be 1 with the text bridge, got 2"):
        chosen(OTHERS, draft_branching=2, **options)


def test_a_vocabulary_bridge_needs_a_token_in_common() -> None:
    with pytest.raises(InvalidOption, match=r"bridge must be text .* no token in common, got 'vocabulary'"):
        chosen(APART[1], APART[0], bridge="vocabulary")


class Lower(PieceTokenizer):
    """Changes what it reads."""

    def encode(self, text: str, special: bool = True) -> list[int]:
        return super().encode(text.lower(), special)


@pytest.mark.parametrize(("target", "draft", "name"), [(OURS, Lower(BYTES), "small"), (Lower(BYTES), OURS, "large")])
def test_a_tokenizer_that_changes_texts_is_refused(target: PieceTokenizer, draft: PieceTokenizer, name: str) -> None:
    with pytest.raises(TokenizerMismatch, match=f"the tokenizer of {name} must spell texts byte for byte .*b'a sample"):
        chosen(draft, target, bridge="text")
