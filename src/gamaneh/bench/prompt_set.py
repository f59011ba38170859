"""Prompts: the sets that come along, and where a set of one's own breaks a rule."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import MISSING, dataclass, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from gamaneh.bench.lines import Line, json_lines
from gamaneh.errors import InvalidOption

SETS = {"core": ("core.jsonl",), "full": ("en.jsonl", "fa.jsonl")}
"""Sets that come along. `core`: 20 short prompts. `full`: eight categories in two languages, short and long."""

LONG = 1500
"""Characters from which on a prompt counts as long."""


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

    @property
    def length(self) -> str:
        """`long` from 1500 characters on, else `short`."""
        return "long" if len(self.prompt) >= LONG else "short"


_KEYS = tuple(field.name for field in fields(Prompt))
_REQUIRED = tuple(field.name for field in fields(Prompt) if field.default is MISSING)


def load_prompts(path: Path | None = None) -> list[Prompt]:
    """The prompts of `path`, a JSON Lines file of `Prompt` fields; None loads the set `core`.

    Raises:
        InvalidOption: the file cannot be read, is empty, or a line breaks a rule; the message
            names file, line, rule and value.
    """
    return load_set("core") if path is None else _load(path)


def load_set(name: str) -> list[Prompt]:
    """The prompts of a set that comes along.

    Raises:
        InvalidOption: there is no such set.
    """
    if name not in SETS:
        raise InvalidOption("prompts", f"must be {', '.join(SETS)} or a file", name)
    folder = files("gamaneh.bench") / "prompts"
    return [prompt for file in SETS[name] for prompt in _load(folder / file)]


def hash_prompts(texts: Iterable[str]) -> str:
    """SHA-256 of texts in their order."""
    return hashlib.sha256(json.dumps(list(texts), ensure_ascii=False).encode()).hexdigest()


def _load(source: Path | Traversable) -> list[Prompt]:
    prompts = [parse_prompt(line) for line in json_lines(source)]
    if not prompts:
        raise InvalidOption(str(source), "must hold at least one prompt", 0)
    refuse_duplicates(source, prompts)
    return prompts


def parse_prompt(line: Line) -> Prompt:
    """
    Raises:
        InvalidOption: a key is missing or unknown, or a value is no text.
    """
    _check_keys(line.where, line.values)
    return Prompt(**line.values)


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


def refuse_duplicates(source: Path | Traversable, prompts: Sequence[Prompt]) -> None:
    """
    Raises:
        InvalidOption: two prompts have the same id.
    """
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise InvalidOption(f"{source} id", "must be unique in the file", prompt.id)
        seen.add(prompt.id)
