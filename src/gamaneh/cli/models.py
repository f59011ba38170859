"""`gamaneh models`: the catalogue."""

from __future__ import annotations

from typing import Any

from rich.table import Table

from gamaneh.cli.command import command
from gamaneh.cli.option_groups import JsonFlag
from gamaneh.cli.pull import CacheFolder
from gamaneh.cli.terminal import output, print_json
from gamaneh.models.catalogue import Entry, entries
from gamaneh.models.fetch import SOURCES, cache_folder, find


@command
def list_models(cache: CacheFolder = None, as_json: JsonFlag = False) -> None:
    """List the models that `pull` and `--model` know by name."""
    paths = {entry.name: find(entry.name, cache=cache) for entry in entries()}
    if as_json:
        print_json(
            {"cache": str(cache_folder(cache)), "models": [_row(entry, paths[entry.name]) for entry in entries()]}
        )
        return
    table = Table(box=None)
    for heading in ("name", "size", "licence", "pulled"):
        table.add_column(heading, no_wrap=True)
    table.add_column("what for")
    for entry in entries():
        pulled = "yes" if paths[entry.name] else "no"
        table.add_row(entry.name, f"{entry.size / 1e6:.0f} MB", entry.licence, pulled, entry.summary)
    output().print(table)


def _row(entry: Entry, path: object) -> dict[str, Any]:
    return {
        "name": entry.name,
        "file": entry.file,
        "size": entry.size,
        "sha256": entry.sha256,
        "licence": entry.licence,
        "summary": entry.summary,
        "sources": list(SOURCES),
        "path": None if path is None else str(path),
    }
