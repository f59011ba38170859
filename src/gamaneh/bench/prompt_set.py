"""Sets of prompts, one JSON object a line, and a loader that says where a file breaks a rule."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from gamaneh.errors import InvalidOption

CORE = "core.jsonl"


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a set.

    Args:
        id: unique within its file.
        category: what the results are grouped by.
        language: its language code.
        prompt: what the user would write, without a chat template.
        reference: text that is likely to come back in the answer; proposers may look there.
    """

    id: str
    category: str
    language: str
    prompt: str
    reference: str | None = None


_KEYS = tuple(field.name for field in fields(Prompt))
_REQUIRED = tuple(field.name for field in fields(Prompt) if field.default is MISSING)


def load_prompts(path: Path | None = None) -> list[Prompt]:
    """The prompts of `path`, a JSON Lines file of `Prompt` fields; None loads the set that comes along.

    Raises:
        InvalidOption: the file cannot be read, is empty, or a line breaks a rule; the message
            names file, line, rule and value.
    """
    source: Path | Traversable = path if path is not None else files("gamaneh.bench") / "prompts" / CORE
    prompts = [_parse(where, line) for where, line in _lines(source)]
    if not prompts:
        raise InvalidOption(str(source), "must hold at least one prompt", 0)
    _refuse_duplicates(source, prompts)
    return prompts


def _lines(source: Path | Traversable) -> Iterator[tuple[str, str]]:
    try:
        text = source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption("prompts", "must be a readable UTF-8 file", str(source)) from error
    # Not splitlines(): a JSON text may hold U+2028 and the like, which are no ends of lines in JSON Lines.
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield f"{source} line {number}", line


def _parse(where: str, line: str) -> Prompt:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidOption(where, f"must be JSON ({error.msg})", _short(line)) from error
    if not isinstance(row, dict):
        raise InvalidOption(where, "must be a JSON object", _short(line))
    _check_keys(where, row)
    return Prompt(**row)


def _check_keys(where: str, row: dict[str, Any]) -> None:
    for key in row:
        if key not in _KEYS:
            raise InvalidOption(where, f"may have the keys {', '.join(_KEYS)}", key)
    for key in _REQUIRED:
        if key not in row:
            raise InvalidOption(where, f"must have the key {key}", sorted(row))
    for key, value in row.items():
        if not isinstance(value, str) or not value.strip():
            raise InvalidOption(f"{where} {key}", "must be a text that is not empty", value)


def _refuse_duplicates(source: Path | Traversable, prompts: list[Prompt]) -> None:
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise InvalidOption(f"{source} id", "must be unique in the file", prompt.id)
        seen.add(prompt.id)


def _short(line: str) -> str:
    return line if len(line) <= 60 else f"{line[:57]}..."
