"""The map of the source counts what is there and finds names that occur twice."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from tools.map import SourceMap, describe, draw, main, read_modules

FILES = {
    "__init__.py": "",
    "core.py": "class Request: ...\nclass Output: ...\n",
    "engine/__init__.py": "",
    "engine/engine.py": (
        "from house.core import Request\nfrom house.engine.turn import Turn\n"
        "class Engine:\n    def step(self, turns: list[Turn]) -> None: ...\n"
    ),
    "engine/turn.py": "from house.core import Request\nclass Turn:\n    request: Request\n",
    "server/__init__.py": "",
    "server/app.py": "def serve():\n    from house.engine import engine\n    return engine\n",
}


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tools.map.ENTRY", "house.engine.engine")
    put(tmp_path, FILES)
    return tmp_path


def put(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        path = folder / "house" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def mapped(source: Path) -> SourceMap:
    return draw(read_modules(source, "house"))


def test_packages_are_counted(source: Path) -> None:
    sizes = {size.package: size for size in mapped(source).packages}
    assert sizes.keys() == {"(root)", "engine", "server"}
    engine = sizes["engine"]
    assert (engine.files, engine.lines, engine.functions, engine.classes) == (3, 7, 1, 2)
    assert engine.imports_per_file == pytest.approx(3 / 3)


def test_late_imports_count_but_lengthen_no_chain(source: Path) -> None:
    found = mapped(source)
    assert {size.package: size.imports_per_file for size in found.packages}["server"] == pytest.approx(1 / 2)
    assert found.chain == ["house.engine.engine", "house.engine.turn", "house.core"]


def test_types_are_those_that_annotations_behind_the_engine_name(source: Path) -> None:
    assert mapped(source).crossed_types == ["Request", "Turn"]


def test_names_that_occur_once_pass_the_check(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--check"], source=source, package="house") == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["total"]["files"] == len(FILES)


@pytest.mark.parametrize(
    ("files", "name", "places"),
    [
        ({"server/turn.py": ""}, "turn", "engine.turn, server.turn"),
        ({"server/page.py": "class Output: ..."}, "Output", "core, server.page"),
    ],
)
def test_a_name_that_occurs_twice_fails_the_check(
    source: Path, capsys: pytest.CaptureFixture[str], files: Mapping[str, str], name: str, places: str
) -> None:
    put(source, files)
    assert f"  {name}: {places}" in list(describe(mapped(source)))
    assert main([], source=source, package="house") == 0
    assert main(["--check"], source=source, package="house") == 1
    assert name in capsys.readouterr().err


def test_files_that_every_package_has_are_no_duplicates(source: Path) -> None:
    put(source, {"engine/__main__.py": "", "server/__main__.py": ""})
    assert not mapped(source).duplicates
