"""The design page shows code as it is."""

from __future__ import annotations

import ast
import re
import textwrap

from markdown import ROOT, blocks

PAGE = ROOT / "docs" / "design.md"
SOURCE = ROOT / "src" / "gamaneh"


def test_the_page_begins_with_the_reference_as_it_is() -> None:
    first = blocks(PAGE)[0]
    assert first.title == "src/gamaneh/reference.py"
    assert first.text == (ROOT / first.title).read_text("utf-8")


def test_the_page_quotes_the_step_as_it_is() -> None:
    quote = next(block for block in blocks(PAGE) if block.title == "src/gamaneh/engine/engine.py")
    source = (ROOT / quote.title).read_text("utf-8")
    (step,) = (
        node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef) and node.name == "step"
    )
    lines = source.splitlines(keepends=True)[step.lineno - 1 : step.end_lineno]
    assert quote.text == textwrap.dedent("".join(lines))


def test_the_table_of_rooms_has_every_package() -> None:
    assert set(_rooms()) - {""} == {path.parent.name for path in SOURCE.glob("*/__init__.py")}


def test_the_doors_of_rooms_are_there() -> None:
    doors = [(package, door) for package, own in _rooms().items() for door in own if package != "cli"]
    assert [door for package, door in doors if not (SOURCE / package / f"{door}.py").exists()] == []


def _rooms() -> dict[str, list[str]]:
    """Doors by package; the root's package is empty."""
    section = PAGE.read_text("utf-8").split("## The rooms\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (?:`(\w+)`|\(root\)) \|.*\| ([^|]*) \|$", section, flags=re.MULTILINE)
    return {package: re.findall(r"`([\w/]+)`", doors) for package, doors in rows}
