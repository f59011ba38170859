"""`gamaneh report`: runs of the benchmark as one page to look at."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gamaneh.cli.command import command
from gamaneh.cli.terminal import output


@command
def report_runs(
    files: Annotated[list[Path], typer.Argument(help="JSON files of `gamaneh bench`, one run each.")],
    html: Annotated[Path, typer.Option(help="File to write; one that is there is replaced.")],
    language: Annotated[str, typer.Option(help="en or fa.")] = "en",
    title: Annotated[
        str | None, typer.Option(help="What stands at the top.", show_default="that of the language")
    ] = None,
) -> None:
    """Join runs into one page: HTML that loads nothing, light or dark as the reader likes it.

    Intervals, distributions, survival, load and time side by side, with the warnings of each run and where its
    figures come from.
    """
    from gamaneh.bench.report.render import check_language, write_page
    from gamaneh.bench.result import read_run

    check_language(language)  # before files are read
    write_page([read_run(file) for file in files], html, language, title)
    output().print(f"wrote {html} ({len(files)} {'run' if len(files) == 1 else 'runs'})")
