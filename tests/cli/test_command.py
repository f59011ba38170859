from dataclasses import dataclass
from typing import Annotated

import typer
from typer.testing import CliRunner, Result

from gamaneh.cli.command import command
from gamaneh.errors import InvalidOption


@dataclass(frozen=True)
class Group:
    color: Annotated[str, typer.Option(help="A colour.")]
    size: Annotated[int, typer.Option("--size", "-s")] = 3

    def __post_init__(self) -> None:
        if self.size > 9:
            raise InvalidOption("size", "must be at most 9", self.size)


@command
def paint(group: Group, target: Annotated[str, typer.Argument()], twice: bool = False) -> None:
    """Paint something."""
    print(group.color, group.size, target, twice)


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(paint)
    return CliRunner().invoke(app, list(arguments))


def test_the_fields_of_a_group_are_options() -> None:
    assert run("--color", "red", "-s", "5", "door").stdout == "red 5 door False\n"


def test_a_field_without_a_default_is_required() -> None:
    result = run("door")

    assert (result.exit_code, "--color" in result.stderr) == (2, True)


def test_a_groups_own_checks_end_the_command_in_one_line() -> None:
    result = run("--color", "red", "-s", "10", "door")

    assert (result.exit_code, result.stderr) == (2, "gamaneh: size must be at most 9, got 10\n")


def test_the_help_of_a_field_is_shown() -> None:
    assert "A colour." in run("--help").stdout
