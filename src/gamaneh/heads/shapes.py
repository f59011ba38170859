"""Shapes of heads as records: read from an artifact or from options, each value checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, TypeVar

from gamaneh.errors import CorruptModel, InvalidOption
from gamaneh.options import from_mapping

_T = TypeVar("_T")

Rule = tuple[str, Callable[[Any], bool]]


def stored_shape(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """The shape of an artifact, which names every part.

    Raises:
        CorruptModel: a part is missing or unknown, or breaks a rule.
    """
    known = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    if values.keys() != set(known):
        raise CorruptModel(f"shape of heads must have the keys {', '.join(known)}, got {', '.join(values)}")
    try:
        return from_mapping(kind, values)
    except InvalidOption as error:
        raise CorruptModel(f"shape of heads is wrong: {error}") from error


def check(shape: object, rules: Mapping[str, Rule]) -> None:
    """
    Raises:
        InvalidOption: a part of the shape breaks its rule.
    """
    for name, (rule, holds) in rules.items():
        value = getattr(shape, name)
        if not holds(value):
            raise InvalidOption(name, rule, value)


def whole(low: int, high: int) -> Rule:
    """A whole number in these bounds."""

    def holds(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high

    return f"must be a whole number from {low} to {high}", holds


FLAG: Rule = ("must be true or false", lambda value: isinstance(value, bool))
