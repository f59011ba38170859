"""Commands are plain functions; this makes them commands: option groups unfolded, errors in one line."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from typing import Annotated, Any, NoReturn, get_args, get_origin, get_type_hints

import typer
from typer.models import ParameterInfo

from gamaneh.errors import GamanehError

EXIT_ERROR = 2
EXIT_INTERRUPTED = 130
"""128 and the number of the signal, as shells have it."""

LATE = "late"
"""Key under which fields and commands keep what finds their late options."""

late_values: ContextVar[Mapping[str, Any]] = ContextVar("late_values")
"""Values of the late options of the command that runs, None where one was not given."""

LateOptions = Callable[[], list[inspect.Parameter]]


def late_options(find: LateOptions) -> Any:
    """A field of a group that holds options by name which are found when the command is asked for, not before.

    Args:
        find: the options, as keyword parameters of a function would be; slow, as it may import much.
    """
    return field(default_factory=dict, metadata={LATE: find})


@dataclass(frozen=True, slots=True)
class _Group:
    """A parameter whose options are the fields of a dataclass."""

    name: str
    kind: type[Any]


def command(
    function: Callable[..., None], *, refuse: Callable[[GamanehError], NoReturn] | None = None
) -> Callable[..., None]:
    """Make a function a command.

    A parameter annotated with a dataclass becomes one option per field of it, so that a group of
    options is declared once and used by many commands. A `GamanehError` becomes one line on standard
    error and exit code 2, unless `refuse` says it otherwise.
    """
    hints = get_type_hints(function, include_extras=True)
    parameters = inspect.signature(function).parameters
    groups = [_Group(name, hints[name]) for name in parameters if is_dataclass(hints[name])]
    own = [parameter.replace(annotation=hints[name]) for name, parameter in parameters.items()]
    unfolded = [unfolded for parameter in own for unfolded in _unfold(parameter)]

    @functools.wraps(function)
    def run(**values: Any) -> None:
        for group in groups:
            names = [entry.name for entry in fields(group.kind) if LATE not in entry.metadata]
            values[group.name] = {name: values.pop(name) for name in names}
            values[group.name] |= {entry.name: _late_values() for entry in fields(group.kind) if LATE in entry.metadata}
        try:
            # Built inside: the checks of a group may refuse its values.
            built = {group.name: group.kind(**values[group.name]) for group in groups}
            function(**{**values, **built})
        except GamanehError as error:
            (refuse or fail)(error)
        except KeyboardInterrupt:
            interrupted()

    # One line for each paragraph: the terminal's width decides where it is cut.
    paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
    run.__doc__ = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    run.__dict__["__signature__"] = inspect.Signature(sorted(unfolded, key=_has_default))
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in unfolded}
    late = [entry.metadata[LATE] for group in groups for entry in fields(group.kind) if LATE in entry.metadata]
    run.__dict__[LATE] = next(iter(late), None)
    return run


def fail(error: GamanehError) -> NoReturn:
    """End the program with the error as one line on standard error, and exit code 2."""
    typer.echo(f"gamaneh: {error}", err=True)
    raise typer.Exit(EXIT_ERROR) from error


def interrupted() -> NoReturn:
    """End the program after Ctrl-C, with what there is so far."""
    typer.echo("gamaneh: interrupted", err=True)
    raise typer.Exit(EXIT_INTERRUPTED)


def _unfold(parameter: inspect.Parameter) -> Iterator[inspect.Parameter]:
    if not is_dataclass(parameter.annotation):
        yield parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        return
    hints = get_type_hints(parameter.annotation, include_extras=True)
    panel = getattr(parameter.annotation, "PANEL", None)
    for entry in fields(parameter.annotation):
        if LATE in entry.metadata:
            continue
        default = inspect.Parameter.empty if entry.default is MISSING else entry.default
        yield inspect.Parameter(
            entry.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=_paneled(hints[entry.name], panel)
        )


def _paneled(annotation: Any, panel: str | None) -> Any:
    """The annotation of an option, shown in this panel of the help unless it has one of its own."""
    if panel is None or get_origin(annotation) is not Annotated:
        return annotation
    kind, *notes = get_args(annotation)
    notes = [copy.copy(note) for note in notes]
    for note in notes:
        if isinstance(note, ParameterInfo):
            note.rich_help_panel = note.rich_help_panel or panel
    return Annotated[(kind, *notes)]


def _late_values() -> dict[str, Any]:
    """Values of the late options that were given."""
    return {name: value for name, value in late_values.get({}).items() if value is not None}


def _has_default(parameter: inspect.Parameter) -> bool:
    return parameter.default is not inspect.Parameter.empty
