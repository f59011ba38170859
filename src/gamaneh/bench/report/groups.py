"""Speed-up by category, language and length of the prompts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gamaneh.bench.report.entries import Entry, load_words
from gamaneh.bench.report.figure import Figure, Table
from gamaneh.bench.report.forest import Mark, Row, forest_chart
from gamaneh.bench.report.language import Language
from gamaneh.bench.result import Group, GroupKind

_TITLES: Mapping[GroupKind, str] = {
    "category": "speed_title",
    "language": "speed_language",
    "length": "speed_length",
}


def group_figures(entries: Sequence[Entry], language: Language) -> Iterator[Figure]:
    """One figure for each way to group the prompts, where there is more than one group."""
    for kind in _TITLES:
        rows = _rows(entries, kind, language)
        if len(rows) > 1:
            yield _figure(
                kind, [*rows, *_row("all", [(entry, entry.whole) for entry in entries], language)], entries, language
            )


def _rows(entries: Sequence[Entry], kind: GroupKind, language: Language) -> list[Row]:
    """One row per group that any run has, each with the ratios of the runs that have it."""
    groups = [(entry, group) for entry in entries for group in entry.point.by(kind)]
    names = dict.fromkeys(group.name for _, group in groups)
    return [row for name in names for row in _row(name, [pair for pair in groups if pair[1].name == name], language)]


def _row(name: str, groups: Sequence[tuple[Entry, Group]], language: Language) -> Iterator[Row]:
    """None where no answer was long enough to time."""
    marks = [Mark(entry.series, group.speedup) for entry, group in groups if group.speedup is not None]
    if marks:
        yield Row(language.name(name), marks)


def _figure(kind: GroupKind, rows: Sequence[Row], entries: Sequence[Entry], language: Language) -> Figure:
    title = language.say(_TITLES[kind])
    loads = dict.fromkeys(load_words(entry.point.load, language) for entry in entries)
    return Figure(
        title,
        f"{language.say('speed_text')} ({'; '.join(loads)})",
        forest_chart(rows, language, title),
        [entry.series for entry in entries],
        _table(kind, entries, language),
    )


def _table(kind: GroupKind, entries: Sequence[Entry], language: Language) -> Table:
    heads = (kind, "run", "prompts", "speedup", "e2e_speedup", "acceptance", "tokens_per_round")
    rows = [_table_row(entry, group, language) for entry in entries for group in (*entry.point.by(kind), entry.whole)]
    return Table([language.say(head) for head in heads], rows, frozenset({0, 1}))


def _table_row(entry: Entry, group: Group, language: Language) -> Sequence[str]:
    drafts = group.speculative.speculation
    return (
        language.name(group.name),
        entry.label,
        language.number(group.prompts, 0),
        language.interval(group.speedup),
        language.interval(group.e2e_speedup),
        language.share(None if drafts is None else drafts.acceptance_rate),
        language.significant(None if drafts is None else drafts.tokens_per_round),
    )
