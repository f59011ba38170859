"""JSON Lines files, read so that an error names the file, the line, the rule and the value."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from gamaneh.errors import InvalidOption


@dataclass(frozen=True, slots=True)
class Line:
    """One object of a file, and where it stands in words."""

    where: str
    values: dict[str, Any]


def json_lines(source: Path | Traversable) -> Iterator[Line]:
    """The objects of a JSON Lines file; blank lines are passed over.

    Raises:
        InvalidOption: the file cannot be read, or a line is no JSON object.
    """
    # Not splitlines(): a JSON text may hold U+2028 and the like, which are no ends of lines in JSON Lines.
    for number, line in enumerate(read_text(source).split("\n"), start=1):
        if line.strip():
            yield _parsed(f"{source} line {number}", line)


def read_text(source: Path | Traversable) -> str:
    """
    Raises:
        InvalidOption: the file is not there, or is not UTF-8.
    """
    try:
        return source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption("prompts", "must be a readable UTF-8 file", str(source)) from error


def _parsed(where: str, line: str) -> Line:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidOption(where, f"must be JSON ({error.msg})", shortened(line)) from error
    if not isinstance(row, dict):
        raise InvalidOption(where, "must be a JSON object", shortened(line))
    return Line(where, row)


def shortened(line: str) -> str:
    """The beginning of a line, to show it."""
    return line if len(line) <= 60 else f"{line[:57]}..."
