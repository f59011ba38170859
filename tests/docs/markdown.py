"""Fenced blocks of a Markdown file."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = (ROOT / "README.md", ROOT / "README.fa.md", *sorted((ROOT / "docs").glob("*.md")))

_FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """One fenced block: language, what else stands on its first line, text, and the line it begins at."""

    language: str
    title: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a document, in order."""
    content = path.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(content):
        language, _, title = match[1].partition(" ")
        found.append(Block(language, title, match[2], content.count("\n", 0, match.start(2)) + 1))
    return found


def prose(path: Path) -> str:
    """The document without its fenced blocks."""
    return _FENCE.sub("", path.read_text(encoding="utf-8"))
