"""The design page shows code as it is."""

from __future__ import annotations

from markdown import ROOT, blocks

PAGE = ROOT / "docs" / "design.md"


def test_the_page_begins_with_the_reference_as_it_is() -> None:
    first = blocks(PAGE)[0]
    assert first.title == "src/gamaneh/reference.py"
    assert first.text == (ROOT / first.title).read_text("utf-8")
