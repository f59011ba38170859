"""The text bridge: the draft model writes on, and the target's tokenizer spells what it wrote.

Nothing but the text itself is proposed: the bytes of the drafted tokens are those that the draft model
wrote, from where the target's own tokens end. What it wrote is spelled together with the end of the
target's text, as the target would have spelled the two; where the border between them lies inside a
token, it is spelled alone. Such drafts are certain (they have no probabilities), the most likely text
(string-level exact match, Timor et al. 2502.05202).
"""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable, Sequence

from torch import Tensor

from gamaneh.core import Draft, ProposalRow
from gamaneh.prefix import common_prefix
from gamaneh.proposers.cross.spelling import Speller
from gamaneh.proposers.cross.transcript import FARTHEST, LOOK_BEHIND, Transcriber, Transcript
from gamaneh.proposers.draft_reader import DraftReading
from gamaneh.proposers.tree import Style, confidence

PATIENCE = 4
"""Tokens of the draft model, per token of the target that is wanted and one more, after which a draft ends."""


class TextBridge:
    """Drafts by what the draft model writes, read again by the target's tokenizer.

    Args:
        transcriber: keeps the requests' texts in the draft model's tokens.
        about: why this bridge, in words.
    """

    gives_probs = False

    def __init__(self, transcriber: Transcriber, about: str = "") -> None:
        self.transcriber, self.about = transcriber, about

    def growth(self, row: ProposalRow, style: Style) -> TextGrowth | None:
        """Behind the request's text; None where the draft model has none of it."""
        transcript = self.transcriber.transcript(row)
        return TextGrowth(row, transcript, self.transcriber, style) if transcript.tokens else None

    def drop(self, request_ids: Iterable[str]) -> None:
        self.transcriber.drop(request_ids)

    def reads(self, draft_vocab: int) -> None:
        """All: the text is read, whatever its tokens."""


class TextGrowth:
    """The text that the draft model writes, token by token.

    Args:
        row: the request.
        transcript: its text so far.
        transcriber: between the two tokenizers.
        style: when a path ends; the most likely token is taken in any case.
    """

    def __init__(self, row: ProposalRow, transcript: Transcript, transcriber: Transcriber, style: Style) -> None:
        self._row, self._transcript, self._transcriber, self._style = row, transcript, transcriber, style
        self._before = end_of_text(transcriber.target, row.tokens)
        self._written = b""
        self._drafted: list[int] = []
        self._tokens: list[int] = []
        self._confirmed = 0  # first tokens that the last ones of the draft model have left as they were
        self._stopped = False

    @property
    def is_open(self) -> bool:
        """Goes on until tokens enough have withstood more text.

        An unfinished word is seldom spelled as the finished one. Were it proposed, the last token of a draft
        would be refused whatever its length, and it would look as if longer drafts did not pay.
        """
        wanted = self._row.max_depth
        return not self._stopped and self._confirmed < wanted and len(self._drafted) < PATIENCE * (wanted + 1)

    def reading(self) -> DraftReading:
        transcript = self._transcript
        return DraftReading(self._row.request_id, transcript.tokens, self._drafted, unchanged=transcript.unchanged)

    def take(self, logits: Tensor) -> None:
        """Write the most likely token, or end the text."""
        said = logits[-1].float()
        token = int(said.argmax())
        unsure = bool(self._drafted) and confidence(said, said) < self._style.min_confidence
        if unsure or token in self._transcriber.draft.tokenizer.special_ids:
            self._end(None if unsure else token)
            return
        self._drafted.append(token)
        self._write(self._transcriber.draft.tokenizer.token_bytes(token))

    def draft(self) -> Draft:
        return Draft.chain(self._tokens[: self._row.max_depth])

    @property
    def _proposable(self) -> bytes:
        """What was written behind the target's tokens, which the draft model's text may lack a part of."""
        return self._written[len(self._transcript.rest) :]

    def _end(self, special: int | None) -> None:
        """The text ends, with the target's special token of the same name if there is one."""
        self._stopped = True
        same = None if special is None else self._transcriber.special_of_target.get(special)
        if same is not None and self._transcriber.target.joined(self._tokens) == self._proposable:
            self._tokens.append(same)

    def _write(self, more: bytes) -> None:
        """The draft model begins behind the last whole character; its text must go on as the target's does."""
        self._written += more
        rest = self._transcript.rest
        fits = self._written.startswith(rest) or rest.startswith(self._written)
        self._stopped = not more or not fits
        spelled = spell_behind(self._transcriber.target, self._before, self._proposable) if fits else []
        if spelled != self._tokens:  # a part of a character is no more text
            self._confirmed = common_prefix(self._tokens, spelled)
        self._tokens = spelled


def end_of_text(speller: Speller, tokens: Sequence[int]) -> bytes:
    """The end of what the tokens stand for, from the beginning of a word on and without special tokens."""
    pieces: list[bytes] = []
    length = 0
    for token in reversed(tokens):
        piece = speller.tokenizer.token_bytes(token)
        if token in speller.tokenizer.special_ids:
            break
        pieces.append(piece)
        length += len(piece)
        if (length >= LOOK_BEHIND and piece.startswith(b" ")) or length >= FARTHEST:
            break
    return b"".join(reversed(pieces))


def spell_behind(speller: Speller, before: bytes, written: bytes) -> list[int]:
    """Tokens that stand for a beginning of `written`, spelled as it is spelled behind `before`."""
    tokens = _spell(speller, before + written, len(before)) or _spell(speller, written, 0)
    return tokens if written.startswith(speller.joined(tokens)) else []


def _spell(speller: Speller, data: bytes, start: int) -> list[int]:
    """Tokens of a text from byte `start` on; none where a token stands across it, or where it is no text."""
    try:
        text, _ = utf_8_decode(data, "strict", False)
    except UnicodeDecodeError:
        return []
    spelling = speller.spell(text, inside=True).behind(start) if text else None
    return spelling.tokens if spelling else []
