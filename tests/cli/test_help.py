"""Help that can be read in a terminal of 80 columns: no name cut off, options in panels."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import pytest
import typer
from typer.testing import CliRunner

from gamaneh.cli.main import app

PANELS = {
    "generate": ("Model", "Drafting", "Sampling", "Output"),
    "serve": ("Model", "Drafting", "Engine", "Server"),
    "bench": ("Model", "Drafting", "Servers", "Load", "Output"),
    "train eagle": ("Target and data", "Heads", "Training", "Output"),
}


def commands(prefix: tuple[str, ...] = (), group: object = None) -> Iterator[tuple[str, ...]]:
    """The words of each command, groups apart."""
    found = typer.main.get_group(app) if group is None else group
    for name, command in found.commands.items():  # type: ignore[attr-defined]
        words = (*prefix, name)
        yield from commands(words, command) if hasattr(command, "commands") else [words]


def command_of(words: tuple[str, ...]) -> typer.core.TyperCommand:
    found: object = typer.main.get_group(app)
    for word in words:
        found = found.commands[word]  # type: ignore[attr-defined]
    return found  # type: ignore[return-value]


def help_of(words: tuple[str, ...]) -> str:
    result = CliRunner(env={"COLUMNS": "80", "TERMINAL_WIDTH": "80"}).invoke(app, [*words, "--help"])
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_every_option_is_shown_by_its_whole_name(words: tuple[str, ...]) -> None:
    shown = help_of(words)
    names = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", shown))
    parameters = command_of(words).get_params(typer.Context(command_of(words)))
    declared = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
    assert {name for name in declared if name.startswith("-")} <= names
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize("command", PANELS)
def test_options_are_in_panels(command: str) -> None:
    shown = help_of(tuple(command.split()))
    assert [panel for panel in PANELS[command] if f"─ {panel} ─" not in shown] == []


def test_help_of_no_command_imports_torch() -> None:
    words = [["--help"], *([*command, "--help"] for command in commands())]
    program = f"""
import sys
from contextlib import suppress
from gamaneh.cli.main import main
for words in {words!r}:
    sys.argv[1:] = words
    with suppress(SystemExit):
        main()
    assert "torch" not in sys.modules and "transformers" not in sys.modules, words
"""
    subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.DEVNULL)
