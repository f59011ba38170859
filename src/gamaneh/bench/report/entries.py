"""The runs of a report, each with a name of its own and a colour."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from gamaneh.bench.report.chart import PLAIN, Series, series
from gamaneh.bench.report.language import Language
from gamaneh.bench.result import Figures, Group, Load, Point, Run


@dataclass(frozen=True, slots=True)
class Entry:
    """One run in the report.

    Args:
        label: its name, with a number where several have the same.
        number: its place, which decides the colour.
        alone: there is no other run to tell it from.
    """

    run: Run
    label: str
    number: int
    alone: bool = False

    @property
    def series(self) -> Series:
        return series(self.label, self.number)

    def side_series(self, language: Language) -> tuple[Series, Series]:
        """Its plain and its speculative side, both in its colour."""
        plain = language.say("plain") if self.alone else language.say("plain_of", run=self.label)
        speculative = language.say("speculative") if self.alone else self.label
        tone = self.series.tone
        return Series(plain, f"{tone} {PLAIN}", self.number), Series(speculative, tone, self.number)

    @property
    def point(self) -> Point:
        """The first load: the one that groups, latencies and survival are shown of."""
        return self.run.points[0]

    @property
    def whole(self) -> Group:
        """All prompts under that load."""
        return self.point.whole


def entries_of(runs: Sequence[Run]) -> list[Entry]:
    """One entry per run, in their order."""
    repeated = {name for name, count in Counter(run.name for run in runs).items() if count > 1}
    seen: Counter[str] = Counter()
    entries = []
    for number, run in enumerate(runs):
        seen[run.name] += 1
        label = f"{run.name} ({seen[run.name]})" if run.name in repeated else run.name
        entries.append(Entry(run, label, number, alone=len(runs) == 1))
    return entries


def measured(entries: Sequence[Entry]) -> list[Entry]:
    """Those with at least one load to show."""
    return [entry for entry in entries if entry.run.points]


def sides(group: Group) -> tuple[tuple[str, Figures], ...]:
    """Both sides of a group with the keys of their words, plain first."""
    return ("plain", group.plain), ("speculative", group.speculative)


def load_words(load: Load, language: Language) -> str:
    """How requests arrived, in words."""
    return language.say(load.pattern, level=language.significant(load.level))
