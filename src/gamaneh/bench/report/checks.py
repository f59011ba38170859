"""What speaks for and against the figures: warnings, fairness, equality, failures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gamaneh.bench.report.entries import Entry
from gamaneh.bench.report.figure import Table, folded
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.markup import Markup, tag
from gamaneh.bench.result import Caution, Check, Run

MOST_DIFFERENCES = 50


def checks(entries: Sequence[Entry], language: Language) -> Markup:
    """One box per run, and what speaks against comparing the runs."""
    boxes = (_box(entry, language) for entry in entries)
    return tag("div", *_mixed(entries, language), tag("div", *boxes, class_="boxes"))


def _mixed(entries: Sequence[Entry], language: Language) -> Iterator[Markup]:
    if len({entry.run.plain.hardware for entry in entries}) > 1:
        yield tag("p", language.say("machines_differ"), class_="trouble")
    if len({entry.run.plain.target for entry in entries}) > 1:
        yield tag("p", language.say("targets_differ"), class_="trouble")


def _box(entry: Entry, language: Language) -> Markup:
    run = entry.run
    parts = [part for part in (_fairness(run, language), _differences(run, language), _failures(run, language)) if part]
    return tag(
        "article",
        tag("h3", entry.label, dir="auto"),
        _cautions(run, language),
        *parts,
        class_=f"card run {entry.series.tone}",
    )


def _cautions(run: Run, language: Language) -> Markup:
    if not run.cautions:
        return tag("p", language.say("no_cautions"), class_="fine")
    return tag("ul", *(_caution(caution, language) for caution in run.cautions), class_="cautions")


def _caution(caution: Caution, language: Language) -> Markup:
    """Its text is that of the run, in English."""
    title = tag("b", language.name(f"caution_{caution.code}"))
    return tag("li", title, tag("p", tag("bdi", caution.text)))


def _fairness(run: Run, language: Language) -> Markup | None:
    if not run.fairness:
        return None
    heads = [language.say(head) for head in ("condition", "plain", "speculative", "same")]
    rows = [
        (
            language.name(check.name),
            *(_value(side, language) for side in (check.plain, check.speculative)),
            _same(check, language),
        )
        for check in run.fairness
    ]
    return folded(language.say("fairness"), Table(heads, rows, frozenset(range(4))).html())


def _same(check: Check, language: Language) -> str:
    if check.equal is None:
        return language.say("unknown")
    return language.say("same" if check.equal else "differs")


def _value(value: Any, language: Language) -> str:
    return language.say("unknown") if value is None else str(value)


def _differences(run: Run, language: Language) -> Markup | None:
    equality = run.equality
    if equality is None or not equality.expected:
        return None
    if not equality.differences:
        return tag("p", language.say("differences_none"), class_="fine")
    heads = [language.say(head) for head in ("prompt", "position", "plain", "speculative", "gap", "tie")]
    rows = [
        (
            part.prompt,
            language.number(part.position, 0),
            part.plain,
            part.speculative,
            language.significant(part.gap),
            language.say("unknown" if part.tie is None else "yes" if part.tie else "no"),
        )
        for part in equality.differences[:MOST_DIFFERENCES]
    ]
    return folded(language.say("differences"), Table(heads, rows, frozenset({0, 2, 3, 5})).html())


def _failures(run: Run, language: Language) -> Markup | None:
    if not run.failures:
        return None
    heads = [language.say(head) for head in ("side", "prompt", "error")]
    rows = [(language.name(part.side), part.prompt, part.error) for part in run.failures[:MOST_DIFFERENCES]]
    title = language.say("failures", count=language.number(len(run.failures), 0))
    return folded(title, Table(heads, rows, frozenset({0, 1, 2})).html())
