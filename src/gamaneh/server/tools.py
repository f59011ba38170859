"""Tool calls in an answer, as Hermes and Qwen write them: `<tool_call>{"name": ..., "arguments": ...}</tool_call>`."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable
from typing import Any

from gamaneh.server.json_extent import JsonExtent, State
from gamaneh.server.markers import BLANKS, certain_length
from gamaneh.server.said import Arguments, CallBegins, Content, Said

OPEN, CLOSE = "<tool_call>", "</tool_call>"

_B = f"[{BLANKS}]*"
_HEAD = re.compile(
    rf'{_B}\{{{_B}"name"{_B}:{_B}("(?:[^"\\]|\\.)*"){_B},{_B}"(?:arguments|parameters)"{_B}:{_B}(?=\{{)', re.DOTALL
)
"""The usual beginning of a call, up to the arguments, which can then be passed on while they come."""


def new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"


class ToolCallParser:
    """Takes tool calls out of an answer while it comes, wherever the text is cut.

    A call begins with its name and the first bracket of its arguments, which are then passed on as the
    model writes them. What is no call up to there is content, markers included; what goes wrong
    later ends the call, and from there on is content. Blanks around a call are left out.

    Args:
        new_id: makes the id of a call.
    """

    def __init__(self, new_id: Callable[[], str] = new_call_id) -> None:
        self.calls = 0
        self._new_id = new_id
        self._rest = ""
        self._gap = ""
        self._after_call = False
        self._extent = JsonExtent()
        self._scanned = 0
        self._said: list[Said] = []
        self._state: Callable[[], bool] = self._content

    def feed(self, text: str) -> list[Said]:
        """Read more text and return what has become certain."""
        self._rest += text
        return self._run()

    def finish(self) -> list[Said]:
        """What was held back, when no more text comes."""
        said = self._run()
        while self._state == self._head:
            self._no_call()
            said += self._run()
        if self._state == self._content:
            self._say(self._rest)
        self._rest = ""
        return said + self._taken()

    def _run(self) -> list[Said]:
        while self._state():
            pass
        return self._taken()

    def _taken(self) -> list[Said]:
        said, self._said = self._said, []
        return said

    def _say(self, text: str) -> None:
        if text:
            self._said.append(Content(text))

    # Each state takes what is certain from the front of the rest, and tells whether the next may go on.

    def _content(self) -> bool:
        if self._after_call:
            self._rest = self._rest.lstrip(BLANKS)
            self._after_call = not self._rest
        before, found, after = self._rest.partition(OPEN)
        certain = len(before.rstrip(BLANKS)) if found else certain_length(before, OPEN)
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
        if self._extent.state is State.CLOSED:
            return self._whole_call()
        return self._extent.state is State.BROKEN and self._no_call()

    def _begin_call(self, head: re.Match[str]) -> bool:
        name = _loaded(head[1])
        if name is None:
            return self._no_call()
        self._call(name)
        self._rest = self._rest[head.end() :]
        self._extent = JsonExtent()
        self._state = self._arguments
        return True

    def _whole_call(self) -> bool:
        """A call in an unusual form: the name not first, or no arguments."""
        body = _loaded(self._rest[: self._scanned])
        arguments = _arguments_of(body)
        if arguments is None:
            return self._no_call()
        self._call(body["name"])
        self._said.append(Arguments(self.calls - 1, arguments))
        self._rest = self._rest[self._scanned :]
        self._state = self._close
        return True

    def _call(self, name: str) -> None:
        self._said.append(CallBegins(self.calls, self._new_id(), name))
        self.calls += 1

    def _no_call(self) -> bool:
        self._say(self._gap + OPEN)
        self._after_call = False
        self._state = self._content
        return True

    def _arguments(self) -> bool:
        length = self._extent.take(self._rest)
        if length:
            self._said.append(Arguments(self.calls - 1, self._rest[:length]))
        self._rest = self._rest[length:]
        if self._extent.state is State.OPEN:
            return False
        self._extent = JsonExtent("}")
        self._state = self._others
        return True

    def _others(self) -> bool:
        """Members after the arguments are left out."""
        self._rest = self._rest[self._extent.take(self._rest) :]
        if self._extent.state is State.OPEN:
            return False
        self._state = self._close
        return True

    def _close(self) -> bool:
        text = self._rest.lstrip(BLANKS)
        if CLOSE.startswith(text) and text != CLOSE:
            return False
        self._rest = text.removeprefix(CLOSE)
        self._after_call = True
        self._state = self._content
        return True


def _loaded(text: str) -> Any:
    """The value of a JSON text, None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _arguments_of(body: Any) -> str | None:
    """Arguments of a whole call as JSON; some models write them as a text that holds JSON. None if it is no call."""
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        return None
    arguments = body.get("arguments", body.get("parameters", {}))
    if isinstance(arguments, str):
        return arguments if isinstance(_loaded(arguments), dict) else None
    return json.dumps(arguments, ensure_ascii=False) if isinstance(arguments, dict) else None
