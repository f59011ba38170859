"""Proposers of other packages: the worked example of the documentation, installed; and packages that are broken."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import Proposer, Request
from gamaneh.engine.assembly import assemble
from gamaneh.engine.engine import Engine
from gamaneh.errors import InvalidOption
from gamaneh.kv import BlockPool, KVCache, KVManager
from gamaneh.models.runner import DecoderRunner
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.proposers.plugins import plugin_names
from gamaneh.proposers.recipe import Ingredients, ReadyModel
from gamaneh.proposers.registry import build_proposers
from gamaneh.testing import ByteTokenizer, tiny_model

PAGE = Path(__file__).parents[2] / "docs" / "proposers.md"
FILES = ("followers.py", "pyproject.toml")


def example(title: str) -> str:
    """The block of the page that bears this title."""
    match = re.search(rf"^```\w+ {re.escape(title)}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert match is not None, title
    return match[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example is installed."""
    project, site = tmp_path_factory.mktemp("gamaneh-followers"), tmp_path_factory.mktemp("site")
    for name in FILES:
        (project / name).write_text(example(name), encoding="utf-8")
    offline = ("--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    subprocess.run([sys.executable, "-m", "pip", "install", *offline, "--target", site, project], check=True)
    return site


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(site)


def parts_for(proposer: str) -> Ingredients:
    target = tiny_model()
    config = target.config
    cache = KVCache(config.num_layers, 32, 16, config.num_kv_heads, config.head_dim, torch.float32)
    runner, kv = DecoderRunner(target.decoder, cache, invariant=True), KVManager(BlockPool(32, 16), cache)
    return Ingredients(
        SpeculationOptions(proposer=proposer, draft_length=4), ReadyModel(target, PagedBackend(runner, kv))
    )


def answer(proposer: str) -> tuple[list[int], Engine]:
    parts = parts_for(proposer)
    engine = assemble(
        parts.target.backend,
        ByteTokenizer(),
        proposers=build_proposers(parts),
        speculation=parts.options,
    )
    engine.add(
        Request(list(b"tick tock tick tock"), SamplingParams(max_tokens=40, temperature=1.0, seed=3, ignore_eos=True))
    )
    tokens: list[int] = []
    while engine.has_work:
        tokens += [token for output in engine.step() for token in output.tokens]
    return tokens, engine


def test_the_example_is_short() -> None:
    assert sum(len(example(name).splitlines()) for name in FILES) < 100


@pytest.mark.usefixtures("installed")
def test_the_installed_example_is_found_by_its_name() -> None:
    assert "followers" in plugin_names()
    assert build_proposers(parts_for("followers"))["followers"].name == "followers"


@pytest.mark.usefixtures("installed")
def test_the_installed_example_drafts_and_changes_nothing() -> None:
    plain, _ = answer("none")
    tokens, engine = answer("followers")
    assert tokens == plain
    totals = engine.snapshot().proposers["followers"].totals
    assert totals.drafted > 0


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(("wanted", "there"), [("auto", True), ("portfolio", True), ("lookup", False), ("none", False)])
def test_a_plug_in_is_built_where_it_or_all_are_asked_for(wanted: str, there: bool) -> None:
    assert ("followers" in build_proposers(parts_for(wanted))) == there


Package = Callable[..., None]


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Package:
    """Lays a package on the path that offers one proposer."""
    monkeypatch.syspath_prepend(tmp_path)

    def lay(name: str, module: str, text: str, package: str = "broken") -> None:
        info = tmp_path / f"{package}-1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[gamaneh.proposers]\n{name} = {module}:recipe\n")
        (tmp_path / f"{module}.py").write_text(text)
        monkeypatch.delitem(sys.modules, module, raising=False)

    return lay


RECIPE = "from gamaneh import Recipe\nfrom gamaneh.proposers.lookup import LookupProposer\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "oracle",
            "import no_such_module_anywhere",
            r"proposer must load from the plug-in plugged:recipe of broken \(ModuleNotFoundError: .*\), got 'oracle'",
        ),
        ("oracle", "", r"must load from the plug-in plugged:recipe of broken \(AttributeError: .*got 'oracle'"),
        ("oracle", "1 / 0", r"must load from the plug-in plugged:recipe of broken \(ZeroDivisionError: .*"),
        ("oracle", "recipe = 7", r"plug-in plugged:recipe of broken must be a Recipe, got 7"),
        (
            "lookup",
            f"{RECIPE}recipe = Recipe('lookup', lambda parts: LookupProposer())",
            r"proposer must not be a built-in one for the plug-in plugged:recipe of broken, got 'lookup'",
        ),
        (
            "oracle",
            f"{RECIPE}recipe = Recipe('oracle', lambda parts: LookupProposer())",
            r"proposer oracle must have the name under which it is asked for, got 'lookup'",
        ),
    ],
    ids=["import", "missing", "raising", "no recipe", "taken", "misnamed"],
)
def test_a_broken_plug_in_is_named(package: Package, name: str, text: str, message: str) -> None:
    package(name, "plugged", text)
    for wanted in (name, "auto"):
        with pytest.raises(InvalidOption, match=message if wanted == name else "plug|oracle"):
            build_proposers(parts_for(wanted))


def test_a_broken_plug_in_does_no_harm_where_it_is_not_asked_for(package: Package) -> None:
    package("oracle", "plugged", "1 / 0")
    built: dict[str, Proposer] = build_proposers(parts_for("lookup"))
    assert "oracle" not in built


def test_two_packages_of_one_name_are_both_named(package: Package) -> None:
    package("oracle", "first_one", "recipe = 1", package="first")
    package("oracle", "second_one", "recipe = 2", package="second")
    with pytest.raises(InvalidOption, match=r"must be offered by one plug-in, not .*first.* and .*second.*, got"):
        build_proposers(parts_for("oracle"))


def test_an_unknown_proposer_lists_plug_ins_too(package: Package) -> None:
    package("oracle", "plugged", "recipe = 7")
    with pytest.raises(InvalidOption, match=r"must be one of none, auto, portfolio, .*oracle, got 'nobody'"):
        build_proposers(parts_for("nobody"))
