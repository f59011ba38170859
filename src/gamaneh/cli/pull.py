"""`gamaneh pull`: bring a model of the catalogue here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gamaneh.cli.command import command
from gamaneh.cli.option_groups import JsonFlag
from gamaneh.cli.terminal import byte_bar, print_json
from gamaneh.models.catalogue import lookup
from gamaneh.models.fetch import SOURCES, find, pull

CacheFolder = Annotated[
    Path | None,
    typer.Option("--cache", help="Folder of pulled models.", show_default="$GAMANEH_CACHE or ~/.cache/gamaneh"),
]


@command
def pull_model(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `gamaneh models`.", show_default=False)],
    source: Annotated[str, typer.Option(help=f"auto, {' or '.join(SOURCES)}.")] = "auto",
    cache: CacheFolder = None,
    as_json: JsonFlag = False,
) -> None:
    """Fetch a model of the catalogue, check its hash, compile its steps for this processor, and print where it lies."""
    path = pull_with_bar(name, source=source, cache=cache)
    _compile_ahead(path)
    if as_json:
        entry = lookup(name)
        print_json({"name": name, "path": str(path), "size": entry.size, "sha256": entry.sha256})
    else:
        print(path)


def pull_with_bar(name: str, *, source: str = "auto", cache: Path | None = None) -> Path:
    """Fetch with a progress bar."""
    with byte_bar(f"fetching {name}") as tick:
        return pull(name, source=source, cache=cache, progress=tick)


def _compile_ahead(path: Path) -> None:
    # Numba and torch take seconds to import, which help and errors need not wait for.
    from gamaneh.backends.choose import compile_ahead

    compile_ahead(path)


def located(name: str) -> Path:
    """The file of a catalogue model, fetched now if it was not pulled before."""
    return find(name) or pull_with_bar(name)
