"""What a model says besides plain text, as the pieces of a streamed chat message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol


class Said(Protocol):
    """A piece of an answer."""

    def delta(self) -> dict[str, Any]:
        """The `delta` of a chunk of `/v1/chat/completions`."""
        ...


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str

    def delta(self) -> dict[str, Any]:
        return {"content": self.text}


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of what comes before the answer."""

    text: str

    def delta(self) -> dict[str, Any]:
        return {"reasoning_content": self.text}


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
        function = {"name": self.name, "arguments": ""}
        return {"tool_calls": [{"index": self.index, "id": self.call_id, "type": "function", "function": function}]}


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of a call, as the model wrote them."""

    index: int
    text: str

    def delta(self) -> dict[str, Any]:
        return {"tool_calls": [{"index": self.index, "function": {"arguments": self.text}}]}


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
