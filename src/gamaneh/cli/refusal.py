"""Values that break the rule of their option, told in one line as every other mistake is."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand

from gamaneh.cli.command import LATE, fail, interrupted, late_values
from gamaneh.errors import InvalidOption

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_RULES: Mapping[str, str] = {
    "int_parsing": "must be a whole number",
    "float_parsing": "must be a number",
    "greater_than_equal": "must be at least {ge:.15g}",
    "less_than_equal": "must be at most {le:.15g}",
}
"""By the kind of mistake, as Pydantic names it, which reads the values for Typer."""


class Command(TyperCommand):
    """A command that names option, rule and value where a value is no number or out of range.

    Options that its function finds late, such as those of proposers, are read as all others are.
    """

    @cached_property
    def late(self) -> list[Any]:
        """Options that are found late."""
        find = getattr(self.callback, LATE, None)
        if find is None:
            return []

        def take(**values: Any) -> None:
            """Only the parameters of this function are of use."""

        take.__dict__["__signature__"] = inspect.Signature(parameters := find())
        take.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        reader = typer.Typer(add_completion=False)
        reader.command()(take)
        return typer.main.get_command(reader).params

    def get_params(self, ctx: Any) -> list[Any]:
        """All options, the late ones among them."""
        return [*super().get_params(ctx), *self.late]

    def invoke(self, ctx: Any) -> Any:
        """Run the function; the values of late options are left in `late_values`."""
        names = [parameter.name for parameter in self.late]
        late_values.set({name: ctx.params.pop(name) for name in names if name in ctx.params})
        return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options; exits with code 2 where a value breaks a rule."""
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            refused = _refused(error)
            if refused is None:
                raise
            fail(refused)
        except KeyboardInterrupt:  # what is found late imports much
            interrupted()


def _refused(error: typer.BadParameter) -> InvalidOption | None:
    """None where Typer's own message says everything: a choice, a file, an option that is missing."""
    from pydantic import ValidationError

    if error.param is None or not isinstance(error.__cause__, ValidationError):
        return None
    broken = error.__cause__.errors()[0]
    rule = _RULES.get(broken["type"])
    if rule is None:
        return None
    return InvalidOption(max(error.param.opts, key=len), rule.format(**broken.get("ctx", {})), _value(broken))


def _value(broken: ErrorDetails) -> object:
    """As it was written; a number, where only its size was wrong, without quotation marks."""
    text = broken["input"]
    if "ctx" not in broken or not isinstance(text, str):
        return text
    return int(text) if text.lstrip("+-").isdecimal() else float(text)
