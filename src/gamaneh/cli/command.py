"""Commands are plain functions; this makes them commands: option groups unfolded, errors in one line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, NoReturn, get_type_hints

import typer

from gamaneh.errors import GamanehError

EXIT_ERROR = 2


@dataclass(frozen=True, slots=True)
class _Group:
    """A parameter whose options are the fields of a dataclass."""

    name: str
    kind: type[Any]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Make a function a command.

    A parameter annotated with a dataclass becomes one option per field of it, so that a group of
    options is declared once and used by many commands. A `GamanehError` becomes one line on standard
    error and exit code 2.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    groups = [_Group(name, hints[name]) for name in parameters if is_dataclass(hints[name])]
    own = [parameter.replace(annotation=hints[name]) for name, parameter in parameters.items()]
    unfolded = [unfolded for parameter in own for unfolded in _unfold(parameter)]

    @functools.wraps(function)
    def run(**values: Any) -> None:
        for group in groups:
            names = [field.name for field in fields(group.kind)]
            values[group.name] = {name: values.pop(name) for name in names}
        try:
            # Built inside: the checks of a group may refuse its values.
            built = {group.name: group.kind(**values[group.name]) for group in groups}
            function(**{**values, **built})
        except GamanehError as error:
            fail(error)

    run.__dict__["__signature__"] = inspect.Signature(sorted(unfolded, key=_has_default))
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in unfolded}
    return run


def fail(error: GamanehError) -> NoReturn:
    """End the program with the error as one line on standard error, and exit code 2."""
    typer.echo(f"gamaneh: {error}", err=True)
    raise typer.Exit(EXIT_ERROR) from error


def _unfold(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if not is_dataclass(parameter.annotation):
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        return
    hints = get_type_hints(parameter.annotation, include_extras=True)
    for field in fields(parameter.annotation):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        yield inspect.Parameter(
            field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[field.name]
        )


def _has_default(parameter: inspect.Parameter) -> bool:
    return parameter.default is not inspect.Parameter.empty
