"""The text of an answer, taken apart while it comes: reasoning, content, tool calls."""

from __future__ import annotations

from gamaneh.server.reasoning import ReasoningParser, Split
from gamaneh.server.said import Content, Reasoning, Said
from gamaneh.server.tools import ToolCallParser


class AnswerParser:
    """Turns pieces of text of any size into what a chat message is made of.

    Args:
        reasoning: look for reasoning in front of the answer.
        inside: the prompt has opened the reasoning already.
        tools: look for tool calls in the answer.
    """

    def __init__(self, *, reasoning: bool = False, inside: bool = False, tools: bool = False) -> None:
        self._reasoning = ReasoningParser(inside=inside) if reasoning or inside else None
        self._tools = ToolCallParser() if tools else None

    @property
    def calls(self) -> int:
        """Tool calls that have begun."""
        return 0 if self._tools is None else self._tools.calls

    @property
    def reasoning_part(self) -> range:
        """Which characters of the whole text are the reasoning, as far as that is certain."""
        return range(0) if self._reasoning is None else self._reasoning.part

    @property
    def reasoning_ended(self) -> bool:
        """Whether no more reasoning can come."""
        return self._reasoning is None or self._reasoning.ended

    def feed(self, text: str) -> list[Said]:
        """Read more text and return what has become certain."""
        return self._said(Split(content=text) if self._reasoning is None else self._reasoning.feed(text))

    def finish(self) -> list[Said]:
        """What was held back, when no more text comes."""
        said = self._said(Split() if self._reasoning is None else self._reasoning.finish())
        return said if self._tools is None else [*said, *self._tools.finish()]

    def _said(self, split: Split) -> list[Said]:
        reasoning: list[Said] = [Reasoning(split.reasoning)] if split.reasoning else []
        if not split.content:
            return reasoning
        content = [Content(split.content)] if self._tools is None else self._tools.feed(split.content)
        return [*reasoning, *content]
