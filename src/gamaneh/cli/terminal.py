"""What comes from and goes to the terminal: results on standard output, everything else on standard error."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn
from rich.text import Text

from gamaneh.bench.time_limit import TimeLimit
from gamaneh.errors import InvalidRequest

Tick = Callable[[int, int], None]

WHOLE = 86400.0
"""Seconds; longer than anything that has a bar."""


def output(color: bool | None = None) -> Console:
    """Standard output; `color` None colours at a terminal only."""
    return Console(force_terminal=color, no_color=color is False, highlight=False, soft_wrap=True)


def notices() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


class LiveText:
    """A text that grows on standard output, with a line below it that says how it goes.

    Without a terminal the text is written as it comes, and there is no such line. Leaving, also by an error or Ctrl-C,
    writes the rest of the text, takes the line away and ends the last line of the text; an error before any text leaves
    standard output empty.

    Args:
        status: says how it goes; asked several times a second.
    """

    def __init__(self, console: Console, status: Callable[[], str]) -> None:
        self._console, self._status = console, status
        self._line = Text()  # the part of the text behind its last line break
        self._begun = False
        self._live: Live | None = None
        if sys.stdout.isatty() and console.is_terminal:
            self._live = Live(
                get_renderable=self._render,
                console=console,
                transient=True,
                refresh_per_second=8,
                redirect_stdout=False,
            )

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, trace: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()
        if kind is not None and not self._begun:
            return
        if self._live is not None:
            self._console.print(self._line)
        else:
            print(flush=True)

    def add(self, text: str | Text) -> None:
        """Write what comes next."""
        self._begun = True
        if self._live is None:
            if isinstance(text, Text):
                self._console.print(text, end="")
            else:
                print(text, end="", flush=True)
            return
        *whole, rest = (self._line + text).split("\n", allow_blank=True)
        for line in whole:
            self._console.print(line)
        self._line = rest

    def _render(self) -> Group:
        return Group(self._line, Text(self._status(), style="dim", no_wrap=True, overflow="ellipsis"))


def print_json(values: Mapping[str, Any]) -> None:
    """One JSON object on one line, whatever the width of the terminal."""
    print(json.dumps(values, ensure_ascii=False, allow_nan=False), flush=True)


def read_prompt(prompt: str) -> str:
    """The prompt, read from standard input when it is `-`.

    Raises:
        InvalidRequest: it is empty, or not UTF-8.
    """
    text = _standard_input() if prompt == "-" else prompt
    if not text:
        raise InvalidRequest("prompt", "must not be empty", text)
    return text


def _standard_input() -> str:
    data = sys.stdin.buffer.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise InvalidRequest("prompt", "must be UTF-8 text", data[error.start : error.end]) from error


class TimeLeft(ProgressColumn):
    """The time left of a whole run: what is estimated, and never more than its limit leaves."""

    def __init__(self, limit: TimeLimit) -> None:
        super().__init__()
        self.limit = limit

    def render(self, task: Task) -> Text:
        """Return minutes and seconds."""
        estimate = float("inf") if task.time_remaining is None else task.time_remaining
        seconds = min(estimate, self.limit.left)
        if seconds == float("inf"):
            return Text("-:-- left")
        return Text(f"{int(seconds) // 60}:{int(seconds) % 60:02d} left")


@contextmanager
def byte_bar(what: str) -> Iterator[Tick]:
    """A progress bar over bytes on standard error."""
    with _bar(what, DownloadColumn()) as tick:
        yield tick


@contextmanager
def count_bar(what: str, limit: TimeLimit | None = None) -> Iterator[Tick]:
    """A progress bar over a count of things on standard error; `limit` is that of the whole run."""
    with _bar(what, MofNCompleteColumn(), limit) as tick:
        yield tick


@contextmanager
def phases(limit: TimeLimit) -> Iterator[Callable[[str], None]]:
    """Lines on standard error that say what is measured, over the most time that is left of the whole run."""
    with Progress(TextColumn("at most"), TimeLeft(limit), console=notices(), transient=True) as progress:
        progress.add_task("", total=None)
        yield lambda what: progress.console.print(f"measuring: {what}", style="dim")


@contextmanager
def _bar(what: str, amount: DownloadColumn | MofNCompleteColumn, limit: TimeLimit | None = None) -> Iterator[Tick]:
    columns = (TextColumn("{task.description}"), BarColumn(), amount, TimeLeft(limit or TimeLimit()))
    # The time left is that of the whole: all steps so far tell it, not only the last few, which may be short ones.
    with Progress(*columns, console=notices(), speed_estimate_period=WHOLE) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
