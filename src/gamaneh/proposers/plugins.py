"""Proposers of other packages, found by the entry points that they declare.

A package offers one in its `pyproject.toml`:

    [project.entry-points."gamaneh.proposers"]
    NAME = "module:recipe"

Nothing of a plug-in is imported before it is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from gamaneh.errors import InvalidOption

GROUP = "gamaneh.proposers"

_T = TypeVar("_T")


def plugin_names() -> list[str]:
    """Names of the proposers that installed packages offer."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def load_plugin(name: str, kind: type[_T], taken: Sequence[str]) -> _T:
    """What the plug-in of this name offers.

    Args:
        kind: what that has to be.
        taken: names that no plug-in may have.

    Raises:
        InvalidOption: no package offers it, or several do; its name is taken; it cannot be imported, or is
            something else.
    """
    entry = _only(name, list(entry_points(group=GROUP, name=name)))
    if name in taken:
        raise InvalidOption("proposer", f"must not be a built-in one for the plug-in {_described(entry)}", name)
    try:
        offered = entry.load()
    except Exception as error:  # a module may raise what it likes
        rule = f"must load from the plug-in {_described(entry)} ({type(error).__name__}: {error})"
        raise InvalidOption("proposer", rule, name) from error
    if not isinstance(offered, kind):
        raise InvalidOption(f"plug-in {_described(entry)}", f"must be a {kind.__name__}", offered)
    return offered


def _only(name: str, entries: Sequence[EntryPoint]) -> EntryPoint:
    if len(entries) != 1:
        offers = " and ".join(map(_described, entries)) or "none"
        raise InvalidOption("proposer", f"must be offered by one plug-in, not {offers}", name)
    return entries[0]


def _described(entry: EntryPoint) -> str:
    package = "an unknown package" if entry.dist is None else entry.dist.name
    return f"{entry.value} of {package}"
