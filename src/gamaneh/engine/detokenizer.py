"""From tokens to text, as they come: nothing that is emitted is ever taken back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

REPLACEMENT = "\ufffd"
"""What a decoder puts where bytes are no UTF-8, hence also where they are not complete yet."""

_MAX_UNSURE = 16
"""Trailing replacement characters that may still become text. Decoders with byte fallback give up a
whole run of bytes while its last character is incomplete, so there are several."""

_MAX_WINDOW = 128
"""Tokens without a whole character at their end after which the window is cut all the same."""


class TextDecoder(Protocol):
    """The part of a tokenizer that is needed here.

    Incomplete or invalid UTF-8 must come out as U+FFFD, and more tokens must only ever append to
    the text apart from that: no clean-up of spaces.
    """

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """What one call of `feed` has brought.

    Args:
        text: new text, never to be taken back.
        stopped: a stop text is complete; `text` ends before it.
        kept_tokens: fed tokens that belong to the output; the last of them completes the stop text.
    """

    text: str
    stopped: bool
    kept_tokens: int


class Detokenizer:
    """Decodes the output of one request incrementally and ends it at a stop text.

    Held back are an incomplete character at the end and the longest ending that may become a stop
    text. Of several stop texts the one that is complete first ends the output, so the result does
    not depend on how tokens are split into calls.

    Args:
        tokenizer: decodes token ids.
        stop: texts that end the output and are not part of it.
        prompt: token ids in front of the output; they decide, for instance, whether the first word
            is preceded by a space.
        skip_special: leave special tokens out of the text.
    """

    def __init__(
        self,
        tokenizer: TextDecoder,
        stop: Sequence[str] = (),
        prompt: Sequence[int] = (),
        skip_special: bool = True,
    ) -> None:
        self._window = _Window(tokenizer, prompt, skip_special)
        self._stops = _StopTexts(stop)

    def feed(self, tokens: Sequence[int]) -> Piece:
        """Decode more tokens, of which a stop text may keep only the first few."""
        text = ""
        for count, token in enumerate(tokens, start=1):
            new, stopped = self._stops.feed(self._window.push(token))
            text += new
            if stopped:
                return Piece(text, stopped=True, kept_tokens=count)
        return Piece(text, stopped=False, kept_tokens=len(tokens))

    def flush(self) -> str:
        """What is held back, when no more tokens come and no stop text was completed."""
        return self._stops.flush() + self._window.flush()


class _Window:
    """Decodes the last few tokens again with each new one and releases what they add.

    A token's text depends on the tokens before it (joined bytes, a leading space that is dropped at
    the start), so it is decoded behind some context and the text of the context is cut off. The
    context is what came between the last two points where the text ended in a whole character.
    """

    def __init__(self, tokenizer: TextDecoder, prompt: Sequence[int], skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._ids = self._context(prompt)
        self._text = self._decode(self._ids)
        self._released = len(self._text)
        self._whole = len(self._ids)  # tokens up to the last point where the text was whole

    def push(self, token: int) -> str:
        """Text that is certain now."""
        self._ids.append(token)
        self._text = self._decode(self._ids)
        certain = _certain_length(self._text)
        text = self._text[self._released : certain]
        if certain == len(self._text):
            self._released = certain
            self._cut(self._whole)
            self._whole = len(self._ids)
        else:
            self._released = max(self._released, certain)
        self._limit()
        return text

    def flush(self) -> str:
        text = self._text[self._released :]
        self._released = len(self._text)
        return text

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special=self._skip_special)

    def _context(self, prompt: Sequence[int]) -> list[int]:
        """The end of the prompt, from where it decodes to whole characters."""
        for size in range(1, 2 * _MAX_UNSURE):
            ids = list(prompt[-size:])
            if size >= len(prompt) or _starts_whole(self._decode(ids)):
                return ids
        return list(prompt[-2 * _MAX_UNSURE :])

    def _cut(self, start: int) -> None:
        """Drop the tokens before `start`, all of whose text is released, if the rest is whole."""
        text = self._decode(self._ids[start:])
        if _starts_whole(text):
            self._ids, self._text, self._released = self._ids[start:], text, len(text)

    def _limit(self) -> None:
        """Keep a long run of tokens without text, or of broken text, from being decoded again and again."""
        if len(self._ids) < _MAX_WINDOW:
            return
        ids, unreleased = self._ids[-2 * _MAX_UNSURE :], self._text[self._released :]
        text = self._decode(ids)
        if text.endswith(unreleased):
            self._ids, self._text, self._whole = ids, text, 0
            self._released = len(text) - len(unreleased)


class _StopTexts:
    """Looks for stop texts in a stream and holds back what may become one."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._held = ""

    def feed(self, text: str) -> tuple[str, bool]:
        """Text that is certain not to belong to a stop text, and whether one is complete."""
        self._held += text
        matches = [(at + len(stop), at) for stop in self._stop if (at := self._held.find(stop)) >= 0]
        if matches:
            certain, self._held = self._held[: min(matches)[1]], ""
            return certain, True
        keep = max((_overlap(self._held, stop) for stop in self._stop), default=0)
        certain = self._held[: len(self._held) - keep]
        self._held = self._held[len(certain) :]
        return certain, False

    def flush(self) -> str:
        text, self._held = self._held, ""
        return text


def _certain_length(text: str) -> int:
    """Length of `text` without the replacement characters at its end that may still change."""
    trailing = len(text) - len(text.rstrip(REPLACEMENT))
    return len(text) - min(trailing, _MAX_UNSURE)


def _starts_whole(text: str) -> bool:
    """Whether `text` begins with a whole character: tokens were not cut off inside of one.

    Empty text does not, because a decoder may drop the leading space of what follows.
    """
    return text != "" and not text.startswith(REPLACEMENT)


def _overlap(text: str, stop: str) -> int:
    """Length of the longest ending of `text` that begins `stop` without completing it."""
    longest = min(len(text), len(stop) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(stop[:size])), 0)
