"""What an answer is made of, told while its text comes: reasoning, content, calls of tools.

Calls are written as Hermes and Qwen write them, `<tool_call>{"name": ..., "arguments": ...}</tool_call>`; reasoning
stands in front of the answer, `<think>...</think>`.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

CALL, CALL_END = "<tool_call>", "</tool_call>"
THINK, THINK_END = "<think>", "</think>"

BLANKS = " \t\r\n"
"""Whitespace of JSON. Where it touches a marker, it belongs to the marker."""

MOST_BRACKETS = 200
"""Brackets of JSON within each other; deeper text is no JSON here, as usual readers give up at some depth."""

_B = f"[{BLANKS}]*"
_HEAD = re.compile(
    rf'{_B}\{{{_B}"name"{_B}:{_B}("(?:[^"\\]|\\.)*"){_B},{_B}"(?:arguments|parameters)"{_B}:{_B}(?=\{{)', re.DOTALL
)
"""The usual beginning of a call, up to the arguments, which can then be passed on while they come."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text of the answer, or of the reasoning before it."""

    text: str
    reasoning: bool = False

    def delta(self) -> dict[str, Any]:
        """The `delta` of a chunk of `/v1/chat/completions`."""
        return {"reasoning_content" if self.reasoning else "content": self.text}


@dataclass(frozen=True, slots=True)
class CallBegins:
    """A tool is called; the arguments follow.

    Args:
        index: which call of this answer, from 0.
    """

    index: int
    call_id: str
    name: str

    def delta(self) -> dict[str, Any]:
        """As `Text.delta`."""
        function = {"name": self.name, "arguments": ""}
        return {"tool_calls": [{"index": self.index, "id": self.call_id, "type": "function", "function": function}]}


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of a call, as the model wrote them."""

    index: int
    text: str

    def delta(self) -> dict[str, Any]:
        """As `Text.delta`."""
        return {"tool_calls": [{"index": self.index, "function": {"arguments": self.text}}]}


Said = Text | CallBegins | Arguments


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def opens_reasoning(prompt: str) -> bool:
    """Whether a prompt ends where the reasoning has begun, as some chat templates make it."""
    return prompt.rstrip(BLANKS).endswith(THINK)


class AnswerParser:
    """Turns pieces of text of any size into what a chat message is made of.

    Reasoning can only come first: later on its markers are ordinary text. A call begins with its name
    and the first bracket of its arguments, which are then passed on as the model writes them, as long as
    they are JSON. What is no call up to there is content, markers included; what goes wrong later ends the
    call, and from there on is content. Blanks around markers are left out.

    Args:
        reasoning: look for reasoning in front of the answer.
        inside: the prompt has opened the reasoning already.
        tools: look for tool calls in the answer.
        new_id: makes the id of a call.
    """

    def __init__(
        self,
        *,
        reasoning: bool = False,
        inside: bool = False,
        tools: bool = False,
        new_id: Callable[[], str] = new_call_id,
    ) -> None:
        self._tools, self._new_id = tools, new_id
        self._whole: list[bool] = []  # of each call, whether its arguments were closed
        self._rest = ""
        self._gap = ""
        self._skipping = inside
        self._extent = JsonExtent()
        self._scanned = 0
        self._read = self._start = self._length = 0
        self._said: list[Said] = []
        self._state: Callable[[], bool] = self._think if inside else self._begin if reasoning else self._content

    @property
    def calls(self) -> int:
        """Tool calls that have begun."""
        return len(self._whole)

    def calls_are_whole(self, *, first_only: bool = False) -> bool:
        """Whether there are calls, and all of them have arguments that are a JSON object."""
        return self.calls > 0 and all(self._whole[: 1 if first_only else None])

    @property
    def reasoning_part(self) -> range:
        """Which characters of the whole text are the reasoning, as far as that is certain."""
        return range(self._start, self._start + self._length)

    @property
    def reasoning_ended(self) -> bool:
        """Whether no more reasoning can come."""
        return self._state not in (self._begin, self._think)

    def feed(self, text: str) -> list[Said]:
        """Read more text and return what has become certain."""
        self._rest += text
        self._read += len(text)
        while self._state():
            pass
        said, self._said = self._said, []
        return said

    def finish(self) -> list[Said]:
        """Return what was held back, when no more text comes."""
        said = self.feed("")
        while self._state == self._head:
            self._no_call()
            said += self.feed("")
        if self._state in (self._begin, self._content) or (
            self._state == self._think and (self._rest.strip(BLANKS) or not self._skipping)
        ):
            self._say(self._rest, reasoning=self._state == self._think)
        self._rest = ""
        said += self._said
        self._said = []
        return said

    def _say(self, text: str, *, reasoning: bool = False) -> None:
        if text:
            self._said.append(Text(text, reasoning))
            self._length += len(text) * reasoning

    def _skip(self) -> None:
        """Leave out the blanks that follow a marker."""
        if self._skipping:
            self._rest = self._rest.lstrip(BLANKS)
            self._skipping = not self._rest

    # Each state takes what is certain from the front of the rest, and tells whether the next may go on.

    def _begin(self) -> bool:
        text = self._rest.lstrip(BLANKS)
        if text.startswith(THINK):
            self._rest = text.removeprefix(THINK)
            self._state, self._skipping = self._think, True
            return True
        if THINK.startswith(text):
            return False
        self._state = self._content
        return True

    def _think(self) -> bool:
        self._skip()
        if not self._length:
            self._start = self._read - len(self._rest)
        before, found, after = self._rest.partition(THINK_END)
        certain = len(before.rstrip(BLANKS)) if found else certain_length(before, THINK_END)
        self._say(before[:certain], reasoning=True)
        self._rest = after if found else before[certain:]
        if found:
            self._state, self._skipping = self._content, True
        return bool(found)

    def _content(self) -> bool:
        self._skip()
        if not self._tools:
            self._say(self._rest)
            self._rest = ""
            return False
        before, found, after = self._rest.partition(CALL)
        certain = len(before.rstrip(BLANKS)) if found else certain_length(before, CALL)
        self._say(before[:certain])
        self._rest = after if found else before[certain:]
        if found:
            self._gap = before[certain:]
            self._extent, self._scanned = JsonExtent(), 0
            self._state = self._head
        return bool(found)

    def _head(self) -> bool:
        """Before the arguments."""
        head = _HEAD.match(self._rest)
        if head is not None:
            return self._begin_call(head)
        start = len(self._rest) - len(self._rest.lstrip(BLANKS))
        self._scanned = max(self._scanned, start)
        self._scanned += self._extent.take(self._rest[self._scanned :])
        if self._extent.state is Extent.CLOSED:
            return self._whole_call()
        return self._extent.state is Extent.BROKEN and self._no_call()

    def _begin_call(self, head: re.Match[str]) -> bool:
        name = loaded(head[1])
        if name is None:
            return self._no_call()
        self._call(name)
        self._rest = self._rest[head.end() :]
        self._extent = JsonExtent()
        self._state = self._arguments
        return True

    def _whole_call(self) -> bool:
        """A call in an unusual form: the name not first, or no arguments."""
        body = loaded(self._rest[: self._scanned])
        arguments = _arguments_of(body)
        if arguments is None:
            return self._no_call()
        self._call(body["name"])
        self._said.append(Arguments(self.calls - 1, arguments))
        self._whole[-1] = True
        self._rest = self._rest[self._scanned :]
        self._state = self._close
        return True

    def _call(self, name: str) -> None:
        self._said.append(CallBegins(self.calls, self._new_id(), name))
        self._whole.append(False)

    def _no_call(self) -> bool:
        self._say(self._gap + CALL)
        self._skipping = False
        self._state = self._content
        return True

    def _arguments(self) -> bool:
        length = self._extent.take(self._rest)
        if length:
            self._said.append(Arguments(self.calls - 1, self._rest[:length]))
        self._rest = self._rest[length:]
        if self._extent.state is Extent.OPEN:
            return False
        self._whole[-1] = self._extent.state is Extent.CLOSED
        self._extent = JsonExtent.behind_a_member()
        self._state = self._others if self._whole[-1] else self._close
        return True

    def _others(self) -> bool:
        """Members after the arguments are left out."""
        self._rest = self._rest[self._extent.take(self._rest) :]
        if self._extent.state is Extent.OPEN:
            return False
        self._state = self._close
        return True

    def _close(self) -> bool:
        whole = self._whole[-1]
        text = self._rest.lstrip(BLANKS) if whole else self._rest
        if CALL_END.startswith(text) and text != CALL_END:
            return False
        self._rest = text.removeprefix(CALL_END)
        self._skipping = whole or text.startswith(CALL_END)
        self._state = self._content
        return True


def message(deltas: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The message that a client puts together from these deltas; `content` is null beside calls alone."""
    content, reasoning = (_joined(deltas, key) for key in ("content", "reasoning_content"))
    calls = _calls([part for delta in deltas for part in delta.get("tool_calls", ())])
    return {
        "role": "assistant",
        "content": None if calls and not content else content,
        "refusal": None,
        **({"reasoning_content": reasoning} if reasoning else {}),
        **({"tool_calls": calls} if calls else {}),
    }


def certain_length(text: str, marker: str) -> int:
    """Length of `text` without an ending that may be the beginning of `marker`, and blanks before that."""
    longest = min(len(text), len(marker) - 1)
    begun = next((size for size in range(longest, 0, -1) if text.endswith(marker[:size])), 0)
    return len(text[: len(text) - begun].rstrip(BLANKS))


def loaded(text: str) -> Any:
    """The value of a JSON text, None if it is none."""
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return None


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _joined(deltas: Sequence[Mapping[str, Any]], key: str) -> str:
    return "".join(delta[key] for delta in deltas if key in delta)


def _calls(parts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    begun = [part for part in parts if "id" in part]
    return [
        {
            "id": call["id"],
            "type": call["type"],
            "function": {
                "name": call["function"]["name"],
                "arguments": "".join(p["function"]["arguments"] for p in parts if p["index"] == call["index"]),
            },
        }
        for call in begun
    ]


def _arguments_of(body: Any) -> str | None:
    """Arguments of a whole call as JSON; some models write them as a text that holds JSON. None if it is no call."""
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        return None
    arguments = body.get("arguments", body.get("parameters", {}))
    if isinstance(arguments, str):
        return arguments if isinstance(loaded(arguments), dict) else None
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else None


class Extent(Enum):
    OPEN = auto()
    CLOSED = auto()
    BROKEN = auto()


class _Next(Enum):
    """What may come next outside of texts."""

    OBJECT = auto()
    VALUE = auto()
    VALUE_OR_END = auto()
    KEY = auto()
    KEY_OR_END = auto()
    COLON = auto()
    COMMA_OR_END = auto()


_LITERALS = ("true", "false", "null")
_NUMBER = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NUMBER_BEGUN = re.compile(r"-?(?:(?:0|[1-9]\d*)(?:\.(?:\d+(?:[eE][+-]?\d*)?)?|[eE][+-]?\d*)?)?")
_HEX = frozenset("0123456789abcdefABCDEF")


class JsonExtent:
    """Follows a JSON object (RFC 8259) in text that comes in pieces, to its end or to what cannot be JSON."""

    def __init__(self) -> None:
        self._closers: list[str] = []
        self._next = _Next.OBJECT
        self._in_text = self._is_key = False
        self._escape: str | None = None  # of an escape sequence that has begun, what has come of it
        self._word = ""  # a number or literal that has begun
        self.state = Extent.OPEN

    @classmethod
    def behind_a_member(cls) -> JsonExtent:
        """Inside an object, after the value of a member."""
        extent = cls()
        extent._closers, extent._next = ["}"], _Next.COMMA_OR_END
        return extent

    def take(self, text: str) -> int:
        """Read on, and return how many characters belong to the object.

        `state` tells whether it goes on (`OPEN`) or why it ends there: with its last bracket
        (`CLOSED`) or before a character that it cannot have (`BROKEN`).
        """
        for at, character in enumerate(text):
            if not self._read(character):
                self.state = Extent.BROKEN
            if self.state is not Extent.OPEN:
                return at + (self.state is Extent.CLOSED)
        return len(text)

    def _read(self, character: str) -> bool:
        """Whether the object may go on with this character."""
        if self._in_text:
            return self._read_text(character)
        if self._word:
            if self._goes_on(self._word + character):
                self._word += character
                return True
            if self._word not in _LITERALS and not _NUMBER.fullmatch(self._word):
                return False
            self._word = ""
        return character in BLANKS or self._read_mark(character)

    def _read_mark(self, character: str) -> bool:
        match self._next, character:
            case _Next.OBJECT | _Next.VALUE | _Next.VALUE_OR_END, "{":
                return self._open("}", _Next.KEY_OR_END)
            case _Next.VALUE | _Next.VALUE_OR_END, "[":
                return self._open("]", _Next.VALUE_OR_END)
            case _Next.VALUE | _Next.VALUE_OR_END | _Next.KEY | _Next.KEY_OR_END, '"':
                self._in_text, self._is_key = True, self._next in (_Next.KEY, _Next.KEY_OR_END)
            case _Next.COLON, ":":
                self._next = _Next.VALUE
            case _Next.COMMA_OR_END, ",":
                self._next = _Next.KEY if self._closers[-1] == "}" else _Next.VALUE
            case _Next.COMMA_OR_END | _Next.KEY_OR_END | _Next.VALUE_OR_END, "}" | "]":
                return self._end(character)
            case _Next.VALUE | _Next.VALUE_OR_END, _ if self._goes_on(character):
                self._word, self._next = character, _Next.COMMA_OR_END
            case _:
                return False
        return True

    def _open(self, closer: str, following: _Next) -> bool:
        self._closers.append(closer)
        self._next = following
        return len(self._closers) <= MOST_BRACKETS

    def _end(self, closer: str) -> bool:
        if self._closers.pop() != closer:
            return False
        self._next = _Next.COMMA_OR_END
        if not self._closers:
            self.state = Extent.CLOSED
        return True

    def _goes_on(self, word: str) -> bool:
        return any(literal.startswith(word) for literal in _LITERALS) or bool(_NUMBER_BEGUN.fullmatch(word))

    def _read_text(self, character: str) -> bool:
        if self._escape is not None:
            return self._read_escape(character)
        if character == "\\":
            self._escape = ""
        elif character == '"':
            self._in_text = False
            self._next = _Next.COLON if self._is_key else _Next.COMMA_OR_END
        return character >= " "

    def _read_escape(self, character: str) -> bool:
        if not self._escape:
            self._escape = "u" if character == "u" else None
            return character in '"\\/bfnrtu'
        self._escape += character
        if len(self._escape) == 5:
            self._escape = None
        return character in _HEX
