"""Where time and memory went."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from gamaneh.bench.report.bars import Bar, bar_chart
from gamaneh.bench.report.chart import Series
from gamaneh.bench.report.entries import Entry, sides
from gamaneh.bench.report.figure import Figure, Table
from gamaneh.bench.report.language import Language
from gamaneh.bench.result import Figures, Memory, TimeSplit

_TIMES: Mapping[str, Callable[[TimeSplit], float | None]] = {
    "queue": lambda split: split.queue,
    "prefill": lambda split: split.prefill,
    "decode": lambda split: None if split.verify is not None else split.decode,
    "draft": lambda split: split.draft,
    "verify": lambda split: split.verify,
    "other": lambda split: split.other,
}
"""Parts in the order of time. Decoding is one part where its own parts are not known."""


def resource_figures(entries: Sequence[Entry], language: Language) -> Iterator[Figure]:
    """Seconds of an average request, and memory, where they are known."""
    times = [bar for entry in entries for bar in _time_bars(entry, language)]
    memory = [bar for entry in entries for bar in _memory_bars(entry, language)]
    if times:
        yield _figure("split", times, language, language.seconds)
    if memory:
        yield _figure("memory", memory, language, language.bytes)


def _time_bars(entry: Entry, language: Language) -> Iterator[Bar]:
    for one, (_, figures) in zip(entry.side_series(language), sides(entry.whole), strict=True):
        if figures.requests:
            yield Bar(one.label, _time_parts(figures, language))


def _time_parts(figures: Figures, language: Language) -> list[tuple[Series, float]]:
    known = ((name, choose(figures.split)) for name, choose in _TIMES.items())
    return [(_part(name, language), seconds / figures.requests) for name, seconds in known if seconds]


def _memory_bars(entry: Entry, language: Language) -> Iterator[Bar]:
    memory = entry.run.speculative_memory
    parts = [(_part(name, language), float(size)) for name, size in _memory_parts(memory) if size]
    if parts:
        yield Bar(entry.label, parts)


def _memory_parts(memory: Memory) -> Iterator[tuple[str, int]]:
    if memory.target is not None:
        yield "target_weights", memory.target - (memory.target_kv or 0)
    yield "target_kv", memory.target_kv or 0
    yield "proposers", sum(memory.proposers.values())


def _part(name: str, language: Language) -> Series:
    return Series(language.say(name), f"part-{name.replace('_', '-')}", 1)


def _figure(name: str, bars: Sequence[Bar], language: Language, show: Callable[[float], str]) -> Figure:
    title = language.say(f"{name}_title")
    parts = list(dict.fromkeys(one for bar in bars for one, _ in bar.parts))
    rows = [[bar.name, *(_amount(bar, one, show) for one in parts), show(bar.whole)] for bar in bars]
    table = Table([language.say("run"), *(one.label for one in parts), language.say("all")], rows)
    return Figure(title, language.say(f"{name}_text"), bar_chart(bars, language, title, show), parts, table)


def _amount(bar: Bar, one: Series, show: Callable[[float], str]) -> str:
    return next((show(value) for part, value in bar.parts if part == one), "")
