"""The text of a request in the draft model's tokens, kept up while the target's tokens grow."""

from __future__ import annotations

from codecs import utf_8_decode
from collections.abc import Iterable, Sequence

from gamaneh.core import ProposalRow
from gamaneh.proposers.cross.spelling import Speller

LOOK_BEHIND = 16
"""Bytes at the end of a text whose spelling more text may change; from the beginning of a word before them on,
the text is spelled again."""

FARTHEST = 256
"""Bytes before these within which the beginning of a word is looked for."""


class Transcriber:
    """Knows how one tokenizer's tokens are written in another's, and keeps the transcripts of all requests.

    Special tokens are walls: each becomes the draft model's special token of the same name, or nothing, and
    what stands between two of them is text. Bytes that are no text are left out.

    Args:
        target, draft: spell in the tokens of target and draft model.
    """

    def __init__(self, target: Speller, draft: Speller) -> None:
        self.target, self.draft = target, draft
        names = {draft.tokenizer.token_bytes(token): token for token in draft.tokenizer.special_ids}
        special = target.tokenizer.special_ids
        self.special = {token: names.get(target.tokenizer.token_bytes(token)) for token in special}
        self.special_of_target = {theirs: ours for ours, theirs in self.special.items() if theirs is not None}
        self.prefix = _prefix(draft)
        self._transcripts: dict[str, Transcript] = {}

    def transcript(self, row: ProposalRow) -> Transcript:
        """Up to date with the request's tokens."""
        if row.request_id not in self._transcripts:
            self._transcripts[row.request_id] = Transcript(self)
        transcript = self._transcripts[row.request_id]
        transcript.extend(row.tokens)
        return transcript

    def drop(self, request_ids: Iterable[str]) -> None:
        """Forget the texts of these requests."""
        for request_id in request_ids:
            self._transcripts.pop(request_id, None)


class Transcript:
    """One request's text. Each `extend` takes time by what is new, not by the length of the text.

    Attributes:
        tokens: of the draft model.
        unchanged: how many of the first of them the last `extend` left as they were.
        rest: bytes at the end that are no whole character yet; `tokens` lack them.
    """

    def __init__(self, transcriber: Transcriber) -> None:
        self._transcriber = transcriber
        self.tokens = list(transcriber.prefix)
        self.unchanged = 0
        self.rest = b""
        self._read = 0
        self._begin_run()

    def extend(self, tokens: Sequence[int]) -> None:
        """Read the target's tokens, from where the last call came to their end."""
        self.unchanged = len(self.tokens)
        transcriber = self._transcriber
        for position, token in enumerate(tokens[self._read :], self._read):
            if token not in transcriber.special:
                self.rest += transcriber.target.tokenizer.token_bytes(token)
            elif position > 0 or token != transcriber.target.tokenizer.bos_id:
                self._wall(transcriber.special[token])
        self._read = len(tokens)
        self._write()

    def _wall(self, special: int | None) -> None:
        """End the run of text, with a special token of the draft model or without."""
        self._write()
        self.rest = b""
        if special is not None:
            self.tokens.append(special)
        self._begin_run()

    def _begin_run(self) -> None:
        self._first = len(self.tokens)  # token with which the run of text begins
        self._run = bytearray()
        self._at_start = True
        self._ends: list[int] = []  # bytes of the run up to the end of each token

    def _write(self) -> None:
        """Spell what has come, together with the end of what was there."""
        text, used = utf_8_decode(self.rest, "ignore", False)
        self.rest = self.rest[used:]
        if text and self._at_start and self._transcriber.target.adds_space:
            text = text.removeprefix(" ")  # the tokenizer's, and none of the text
            self._at_start = False
        if text:
            kept = settled(self._run, self._ends)
            self._spell(kept, self._ends[kept - 1] if kept else 0, text)

    def _spell(self, kept: int, start: int, text: str) -> None:
        """Spell the run anew from its token `kept` on, which begins at byte `start`."""
        spelling = self._transcriber.draft.spell(self._run[start:].decode() + text, inside=kept > 0)
        del self.tokens[self._first + kept :], self._ends[kept:]
        self.unchanged = min(self.unchanged, len(self.tokens))
        self._run += text.encode()
        ends = spelling.ends
        self.tokens += spelling.tokens
        self._ends += [len(self._run)] * len(spelling.tokens) if ends is None else [start + end for end in ends]


def settled(run: bytes | bytearray, ends: Sequence[int]) -> int:
    """How many tokens of a text stay as they are whatever follows: those before a word at some distance from its end.

    Where there is no such word, as in a text without spaces, those before a character.

    Args:
        ends: bytes of the text up to the end of each token.
    """
    limit = len(run) - LOOK_BEHIND
    nearest = 0
    for count in range(len(ends), 0, -1):
        end = ends[count - 1]
        if limit - FARTHEST <= end <= limit:
            if _begins_word(run, end):
                return count
            nearest = nearest or count * _begins_character(run, end)
        elif end < limit:
            break
    return nearest


def _begins_word(run: bytes | bytearray, at: int) -> bool:
    """A space behind a letter: no tokenizer that cuts texts into words joins what stands on either side."""
    return 0 < at < len(run) and run[at] == 0x20 and (run[at - 1] >= 0x80 or run[at - 1 : at].isalnum())


def _begins_character(run: bytes | bytearray, at: int) -> bool:
    return at >= len(run) or not 0x80 <= run[at] < 0xC0


def _prefix(speller: Speller) -> list[int]:
    """What a tokenizer puts in front of a text, such as a begin token."""
    plain, whole = (speller.tokenizer.encode("a", special=special) for special in (False, True))
    found = (at for at in range(len(whole)) if whole[at : at + len(plain)] == plain)
    return whole[: next(found, 0)]
