"""Which bridge leads to a draft model, and why: said in words, as it decides what can be expected of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gamaneh.core import ProposalRow
from gamaneh.errors import InvalidOption, TokenizerMismatch
from gamaneh.models.loading import LoadedModel
from gamaneh.models.tokenizer import tokenizer_difference
from gamaneh.proposers.bridge import Bridge, Growth, SameTokens
from gamaneh.proposers.cross.spelling import Speller
from gamaneh.proposers.cross.text import TextBridge
from gamaneh.proposers.cross.transcript import Transcriber
from gamaneh.proposers.cross.vocabulary_bridge import SharedTokens, VocabularyBridge
from gamaneh.proposers.tree import Style

ENOUGH = 0.75
"""Coverage from which on drafts that are restricted to common tokens are worth sampling."""

SAMPLE = "A sample, two lines:\nit must come back."
"""A text that both tokenizers must be able to spell byte for byte."""


class EitherBridge:
    """By text for greedy requests, by vocabulary for those that sample: text can be certain or nothing."""

    gives_probs = True

    def __init__(self, text: TextBridge, vocabulary: VocabularyBridge, about: str) -> None:
        self._text, self._vocabulary, self.about = text, vocabulary, about

    def growth(self, row: ProposalRow, style: Style) -> Growth | None:
        by_text = row.sampler.greedy or row.draft_sampling == "greedy"
        return (self._text if by_text else self._vocabulary).growth(row, style)

    def drop(self, request_ids: Iterable[str]) -> None:
        self._text.drop(request_ids)

    def reads(self, draft_vocab: int) -> None:
        """All: the text is read, whatever its tokens."""


def choose_bridge(target: LoadedModel, draft: LoadedModel, asked: str, branching: int, vocab_size: int) -> Bridge:
    """The bridge that is `asked` for, or with `auto` the one that suits the two tokenizers.

    Args:
        branching: candidates on each level of the drafts.
        vocab_size: size of the target's vocabulary, padding included.

    Raises:
        TokenizerMismatch: a tokenizer changes what it reads, so that no text leads from one to the other.
        InvalidOption: the bridge that was asked for cannot do what was asked for.
    """
    difference = tokenizer_difference(target.tokenizer, draft.tokenizer)
    if difference is None and asked == "auto":
        return SameTokens(vocab_size)
    return _Crossing(target, draft, asked, branching, vocab_size).bridge()


@dataclass(frozen=True, slots=True)
class _Crossing:
    """The choice between two tokenizers."""

    target: LoadedModel
    draft: LoadedModel
    asked: str
    branching: int
    vocab_size: int

    def bridge(self) -> Bridge:
        transcriber = Transcriber(_speller(self.target), _speller(self.draft))
        shared = SharedTokens(self.target.tokenizer, self.draft.tokenizer, self.vocab_size, self.draft.decoder.device)
        kind = self.asked if self.asked != "auto" else self._suited(shared)
        name = "text and vocabulary bridges" if kind == "either" else f"{kind} bridge"
        about = f"{name} to the tokens of {self.draft.name}: {self._reason(kind, shared)}"
        self._check(kind, shared)
        text, vocabulary = TextBridge(transcriber, about), VocabularyBridge(transcriber, shared, about)
        either = EitherBridge(text, vocabulary, about)
        bridges: Mapping[str, Bridge] = {"text": text, "vocabulary": vocabulary, "either": either}
        return bridges[kind]

    @property
    def _branches(self) -> bool:
        return self.branching > 1

    def _suited(self, shared: SharedTokens) -> str:
        if shared.coverage < ENOUGH:
            return "text"
        return "vocabulary" if self._branches else "either"

    def _reason(self, kind: str, shared: SharedTokens) -> str:
        share = f"{shared.coverage:.0%} of the target's tokens, by how common they are, are the draft model's too"
        if self.asked != "auto":
            return f"asked for by the option bridge; {share}"
        meaning = {
            "text": f"fewer than {ENOUGH:.0%}, so what it writes is spelled again",
            "either": "greedy requests by text, sampled ones by vocabulary",
            "vocabulary": "draft_branching asks for trees, which the text bridge does not make",
        }
        return f"{share}: {meaning[kind]}"

    def _check(self, kind: str, shared: SharedTokens) -> None:
        if kind == "text" and self._branches:
            raise InvalidOption("draft_branching", "must be 1 with the text bridge", self.branching)
        if kind == "vocabulary" and len(shared) == 0:
            raise InvalidOption("bridge", "must be text for tokenizers that have no token in common", kind)


def _speller(model: LoadedModel) -> Speller:
    speller = Speller(model.tokenizer)
    if speller.spell(SAMPLE).ends is None:
        rule = "must spell texts byte for byte where target and draft model have different ones"
        raise TokenizerMismatch(
            f"the tokenizer of {model.name} {rule}, got {speller.joined(speller.spell(SAMPLE).tokens)!r}"
        )
    return speller
