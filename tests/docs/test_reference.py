"""The written references are what the code says today."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from types import ModuleType

import pytest
from markdown import ROOT

import gamaneh
import gamaneh.testing
from gamaneh.bench.comparison import Comparison
from gamaneh.bench.result import Setup
from gamaneh.core import StepReport
from gamaneh.metrics.collector import SpeculationStats


def _load_reference() -> ModuleType:
    spec = importlib.util.spec_from_file_location("reference", ROOT / "docs" / "reference.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _load_reference()


@pytest.mark.parametrize(
    ("name", "written"), [("api.md", reference.api_reference), ("cli.md", reference.cli_reference)]
)
def test_a_reference_is_up_to_date(name: str, written: Callable[[], str]) -> None:
    current = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert current == written(), f"run docs/reference.py to write {name} anew"


@pytest.mark.parametrize(
    ("module", "groups"), [(gamaneh, reference.API_GROUPS), (gamaneh.testing, reference.TESTING_GROUPS)]
)
def test_every_public_name_is_in_the_reference(module: ModuleType, groups: Mapping[str, Sequence[str]]) -> None:
    assert sorted(name for names in groups.values() for name in names) == sorted(module.__all__)


@pytest.mark.parametrize(
    ("heading", "kinds"),
    [
        ("StepReport", [StepReport]),
        ("SpeculationStats", [SpeculationStats]),
        ("gamaneh compare --json", [Setup, Comparison]),
    ],
)
def test_the_metrics_page_names_every_field(heading: str, kinds: Sequence[type]) -> None:
    page = (ROOT / "docs" / "metrics.md").read_text(encoding="utf-8")
    section = page.split(f"## `{heading}`\n")[1].split("\n## ")[0]
    documented = set(re.findall(r"^\| `(\w+)` \|", section, flags=re.MULTILINE))
    # The fields of `setup` stand beside the others in the JSON.
    assert documented >= {field.name for kind in kinds for field in fields(kind)} - {"setup"}
