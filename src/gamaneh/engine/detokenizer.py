"""From tokens to text, as they come: nothing that is emitted is ever taken back."""

from __future__ import annotations

from collections import deque
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


class SupportsText(TextDecoder, Protocol):
    """What the engine needs of a tokenizer."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def absent_ids(self) -> frozenset[int]: ...


@dataclass(frozen=True, slots=True)
class Piece:
    """What one call of `feed` has brought.

    Args:
        texts: text of each token whose text is certain now, the oldest first. Together they are new text, never to be
            taken back. A token that is a part of a character has none; the one that completes it has all of it.
        stopped: a stop text is complete; `texts` end before it.
        kept_tokens: fed tokens that were used; the last of them completes the stop text.
        cut: bytes of UTF-8 at the end of the last of these tokens that belong to the stop text.
    """

    texts: tuple[str, ...] = ()
    stopped: bool = False
    kept_tokens: int = 0
    cut: int = 0

    @property
    def text(self) -> str:
        return "".join(self.texts)


class Detokenizer:
    """Decodes the output of one request incrementally and ends it at a stop text.

    Held back are the tokens of an incomplete character at the end and of the longest ending that may
    become a stop text. Of several stop texts the one that is complete first ends the output, so the
    result does not depend on how tokens are split into calls.

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
        self._held: deque[str] = deque()  # text of each token that is held back
        self._unfinished = 0  # of them, those since the last whole character
        self._certain = 0  # characters of their text that belong to no stop text

    def feed(self, tokens: Sequence[int]) -> Piece:
        """Decode more tokens, of which a stop text may use only the first few."""
        texts: list[str] = []
        for count, token in enumerate(tokens, start=1):
            new, stopped = self._stops.feed(self._push(token))
            self._certain += len(new)
            if stopped:
                before, cut = self._before_stop()
                return Piece((*texts, *before), True, count, cut)
            texts += self._released()
        return Piece(tuple(texts), kept_tokens=len(tokens))

    def flush(self) -> Piece:
        """What is held back, when no more tokens come and no stop text was completed.

        A character that the end cuts off is one U+FFFD, as in the decoding of all tokens at once.
        """
        rest = self._window.flush()
        if rest:
            self._held[-1] += rest
        self._stops.clear()
        texts, self._certain = tuple(self._held), 0
        self._held.clear()
        return Piece(texts)

    def _push(self, token: int) -> str:
        text = self._window.push(token)
        self._held.append(text)
        # The last few tokens are always enough to hold the text that the window is not sure of.
        self._unfinished = 0 if self._window.whole else min(self._unfinished + 1, 2 * _MAX_UNSURE)
        return text

    def _released(self) -> list[str]:
        """Take the tokens whose whole text is certain. Parts of a character go with the one that completes it."""
        count = 0
        for at, text in enumerate(self._held, start=1):
            if at > len(self._held) - self._unfinished or len(text) > self._certain:
                break
            if text or at == len(self._held):
                count, self._certain = at, self._certain - len(text)
        return [self._held.popleft() for _ in range(count)]

    def _before_stop(self) -> tuple[list[str], int]:
        """Take the tokens that begin before the stop text, the last one cut by so many bytes."""
        texts: list[str] = []
        cut = 0
        while self._certain:
            text = self._held.popleft()
            texts.append(text[: self._certain])
            cut = len(text[self._certain :].encode())
            self._certain -= len(texts[-1])
        self._held.clear()
        return texts, cut


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

    @property
    def whole(self) -> bool:
        """Whether all text so far is certain."""
        return self._released == len(self._text)

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

    def clear(self) -> None:
        """Forget what may have become a stop text."""
        self._held = ""


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
