"""Rules of options: each says in words what a value has to be, and whether it is."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gamaneh.errors import GamanehError, InvalidOption

Check = tuple[str, Callable[[Any], bool]]
"""The rule in words, behind the name of the option; and whether a value keeps it."""


def number(low: float, high: float = math.inf, *, above: bool = False) -> Check:
    """A finite number, at least `low` or above it."""
    bounds = f"{'above' if above else 'at least'} {low:g}"
    if high != math.inf:
        bounds += f" and at most {high:g}"

    def holds(value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and (value > low or (value == low and not above)) and value <= high

    return f"must be a number {bounds}", holds


def whole(low: int, high: int | None = None) -> Check:
    """A whole number within bounds, both included."""
    bounds = f"at least {low}" if high is None else f"from {low} to {high}"

    def holds(value: Any) -> bool:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return is_whole and value >= low and (high is None or value <= high)

    return f"must be a whole number {bounds}", holds


def one_of(names: Sequence[str]) -> Check:
    """One of these texts."""
    return f"must be one of {', '.join(names)}", lambda value: value in list(names)


def text(what: str) -> Check:
    """A text that is not empty."""
    return f"must be a {what}", lambda value: isinstance(value, str) and value != ""


def each(what: str, holds: Callable[[Any], bool]) -> Check:
    """A sequence of `what`."""
    return f"must be a sequence of {what}", lambda value: isinstance(value, tuple | list) and all(map(holds, value))


def optional(check: Check) -> Check:
    """None, or what `check` allows."""
    rule, holds = check
    return f"{rule}, or none", lambda value: value is None or holds(value)


def is_token(value: Any) -> bool:
    """Whether a value can be a token id."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


FLAG: Check = ("must be true or false", lambda value: isinstance(value, bool))


def verify(
    owner: object, checks: Mapping[str, Check], error: Callable[[str, str, object], GamanehError] = InvalidOption
) -> None:
    """Hold the attributes of `owner` against their rules.

    Raises:
        GamanehError: an attribute breaks its rule; made by `error` from its name, the rule and the value.
    """
    for name, (rule, holds) in checks.items():
        value = getattr(owner, name)
        if not holds(value):
            raise error(name, rule, value)
