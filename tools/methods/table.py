"""The figures as Markdown, and their place in a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from gamaneh.bench.result import Interval, Machine
from gamaneh.errors import InvalidOption
from tools.methods.figures import Row, TargetFigures
from tools.methods.plan import Effort

BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
"""Lines of a page between which the figures stand."""

SHOWN = (1, 2, 4, 8)
"""Positions whose survival is shown."""


def tables(figures: Sequence[TargetFigures], effort: Effort, machine: Machine, date: str) -> str:
    """All targets, one after the other."""
    return "\n\n".join(part for one in figures for part in _target(one, effort, machine, date))


def put_into(page: Path, text: str) -> None:
    """Replace what stands between the two lines of a page.

    Raises:
        InvalidOption: the page cannot be read or written, or lacks one of the lines.
    """
    try:
        before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
        _old, end, after = rest.partition(END)
        if not end:
            raise InvalidOption("--markdown", f"must be a page with the lines {BEGIN} and {END}", str(page))
        page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
    except OSError as error:
        raise InvalidOption("--markdown", f"must be a page that can be written ({error})", str(page)) from error


def _target(figures: TargetFigures, effort: Effort, machine: Machine, date: str) -> Iterator[str]:
    mode = "shape-invariant" if figures.invariant else "free shapes"
    yield f"### {figures.target}"
    yield (
        f"{figures.dtype}, {mode}, {figures.threads} threads of {machine.processor}, torch {machine.torch}, {date}."
        f" Up to {effort.prompts} prompts of each category, {effort.tokens} tokens each; survival and costs at"
        f" {effort.draft_length} candidates, {effort.fixed_tokens} tokens each."
    )
    for temperature in dict.fromkeys(row.temperature for row in figures.rows):
        title = "Greedy" if temperature == 0 else f"Temperature {temperature:g}"
        yield f"{title}. Plain decoding makes {figures.plain_tokens_per_second[f'{temperature:g}']:.1f} tokens/s."
        yield "\n".join(_rows([row for row in figures.rows if row.temperature == temperature]))
    yield "\n".join(_memory(figures))
    if figures.left_out:
        yield "\n".join(["Left out:", "", *(f"- {name}: {why}" for name, why in figures.left_out.items())])


def _rows(rows: Sequence[Row]) -> Iterator[str]:
    survival = " | ".join(f"s{position}" for position in SHOWN)
    yield f"| method | category | {survival} | tokens / round | draft cost | verify cost | speed-up | differ |"
    yield "|" + "---|" * (7 + len(SHOWN))
    yield from map(_line, rows)


def _line(row: Row) -> str:
    survival = " | ".join(_number(row.survival[at - 1] if at <= len(row.survival) else None) for at in SHOWN)
    return (
        f"| {row.method} | {row.category} | {survival} | {row.tokens_per_round:.2f} | {_number(row.draft_cost)} |"
        f" {_number(row.verify_cost)} | {_interval(row.speedup)} | {row.differing} of {row.prompts} |"
    )


def _memory(figures: TargetFigures) -> Iterator[str]:
    yield "| method | memory added, MB |"
    yield "|---|---|"
    yield from (f"| {name} | {size / 1e6:.1f} |" for name, size in figures.memory_bytes.items())


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _interval(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"
