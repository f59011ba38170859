"""What heads learn from: files of prompts, of finished conversations and of text, read line by line."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gamaneh.errors import InvalidOption
from gamaneh.heads.artifact import ALL_PROMPTS

Message = Mapping[str, str]
"""`role` and `content` of one turn of a conversation."""

ROLES = ("system", "user", "assistant")
EVERYTHING = ALL_PROMPTS
"""Category of lines that name none."""

FORMS = ("prompt", "messages", "text")


@dataclass(frozen=True, slots=True)
class Example:
    """One line of data: a conversation or a text.

    Args:
        messages: a conversation; where its last turn is not the assistant's, the target answers it.
        text: a text to be learned from as it is, where there are no messages.
        category: what its figures are grouped by.
    """

    messages: tuple[Message, ...] = ()
    text: str = ""
    category: str = EVERYTHING

    @classmethod
    def from_prompt(cls, prompt: str, category: str = EVERYTHING) -> Example:
        """A conversation that begins with `prompt` and waits for an answer."""
        return cls(messages=({"role": "user", "content": prompt},), category=category)

    @property
    def prompt(self) -> str:
        """What the user said last; empty for a text."""
        return next((turn["content"] for turn in reversed(self.messages) if turn["role"] == "user"), "")

    @property
    def is_open(self) -> bool:
        """The target has to answer."""
        return bool(self.messages) and self.messages[-1]["role"] == "user"

    @property
    def is_silent(self) -> bool:
        """A conversation in which nobody asks and nobody answers."""
        return bool(self.messages) and self.messages[-1]["role"] == "system"


def read_examples(paths: Sequence[Path]) -> list[Example]:
    """All lines of JSON Lines files; a file of any other suffix is one text.

    A line is an object with one of `prompt` (a text), `messages` (turns with `role` and `content`)
    and `text`. `category` may stand beside it; other keys are left alone.

    Raises:
        InvalidOption: a file cannot be read, a line breaks a rule, or there is none. Named are
            file, line, rule and value.
    """
    examples = [example for path in paths for example in _read(path)]
    if not examples:
        raise InvalidOption("data", "must hold at least one usable line", ", ".join(map(str, paths)))
    return examples


def _read(path: Path) -> Iterator[Example]:
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption("data", f"must be readable UTF-8 files ({error})", str(path)) from error
    if path.suffix != ".jsonl":
        yield from [Example(text=content)] if content.strip() else []
        return
    # Not splitlines(): a JSON text may hold U+2028, which is no end of a line in JSON Lines.
    for number, line in enumerate(content.split("\n"), start=1):
        if line.strip():
            yield _parse(f"{path} line {number}", line)


def _parse(where: str, line: str) -> Example:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidOption(where, f"must be JSON ({error.msg})", _short(line)) from error
    forms = [name for name in FORMS if isinstance(row, dict) and name in row]
    if len(forms) != 1:
        raise InvalidOption(where, f"must be an object with exactly one of {', '.join(FORMS)}", _short(line))
    category = row.get("category", EVERYTHING)
    _require_text(f"{where} category", category)
    if forms == ["messages"]:
        return Example(messages=_turns(f"{where} messages", row["messages"]), category=category)
    value = row[forms[0]]
    _require_text(f"{where} {forms[0]}", value)
    return Example(text=value, category=category) if forms == ["text"] else Example.from_prompt(value, category)


def _turns(where: str, turns: Any) -> tuple[Message, ...]:
    if not isinstance(turns, list) or not turns:
        raise InvalidOption(where, "must be a list of turns", turns)
    for turn in turns:
        if not isinstance(turn, dict) or turn.get("role") not in ROLES:
            raise InvalidOption(where, f"must have turns with a role among {', '.join(ROLES)}", turn)
        _require_text(f"{where} content", turn.get("content"))
    return tuple({"role": turn["role"], "content": turn["content"]} for turn in turns)


def _require_text(where: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip():
        raise InvalidOption(where, "must be a text that is not empty", value)


def _short(line: str) -> str:
    return line if len(line) <= 60 else f"{line[:57]}..."
