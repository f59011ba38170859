"""Links lead somewhere, and the files that the documentation names exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from markdown import DOCUMENTS, ROOT, blocks, prose
from test_examples import _RUNNERS

_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FILE = re.compile(r"`([\w./-]+\.(?:py|md|toml|txt|jsonl))`")
_HOMES = (ROOT, ROOT / "src" / "gamaneh", ROOT / "docs")


def _slug(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def _headings(path: Path) -> set[str]:
    return {_slug(heading) for heading in re.findall(r"^#+ (.*)$", prose(path), flags=re.MULTILINE)}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for link in _LINK.findall(prose(path)):
        file, _, heading = link.partition("#")
        target = path.parent / file if file else path
        assert target.exists(), f"{path.name} links to {link}"
        assert not heading or heading in _headings(target), f"{path.name} links to {link}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_named_files_exist(path: Path) -> None:
    examples = {block.title for block in blocks(path)}
    for name in set(_FILE.findall(prose(path))) - examples:
        assert any((home / name).exists() for home in _HOMES), f"{path.name} names {name}"


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_every_block_says_what_it_is(path: Path) -> None:
    assert {block.language for block in blocks(path)} <= set(_RUNNERS)
