"""Where the figures come from, and how they were computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gamaneh.bench.machine import Machine
from gamaneh.bench.report.entries import Entry
from gamaneh.bench.report.figure import folded
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.markup import Markup, pair, tag
from gamaneh.bench.result import ModelMark, Provenance

_SHORT_HASH = 12


def provenance(entries: Sequence[Entry], language: Language) -> Markup:
    """One box per run, and the formulas of all of them."""
    boxes = (_box(entry, language) for entry in entries)
    formulas = {name: formula for entry in entries for name, formula in entry.run.formulas.items()}
    listed = tag(
        "dl", *(pair(language.name(name), formula, foreign=True) for name, formula in formulas.items()), class_="long"
    )
    written = tag("div", folded(language.say("formulas"), listed), class_="card")
    return tag("div", tag("div", *boxes, class_="boxes"), written if formulas else None)


def machine_words(machine: Machine, language: Language) -> str:
    """A machine in one line."""
    cores = language.say("cores", count=language.number(machine.cores, 0))
    return language.listed((language.isolated(machine.processor), cores, language.bytes(machine.memory_bytes)))


def _box(entry: Entry, language: Language) -> Markup:
    source = entry.run.provenance
    told = (pair(language.say(name), value) for name, value in _told(source, language))
    copied = (pair(language.say(name), value, foreign=True) for name, value in _copied(source, language))
    facts = tag("dl", *told, *copied, class_="long")
    return tag("article", tag("h3", tag("bdi", entry.label)), facts, class_=f"card run {entry.series.tone}")


def _told(source: Provenance, language: Language) -> Iterator[tuple[str, str]]:
    yield "date", language.moment(source.date)
    yield "machine", machine_words(source.machine, language)
    yield "models", language.listed(_model(mark, language) for mark in source.models)


def _copied(source: Provenance, language: Language) -> Iterator[tuple[str, str]]:
    """What stands in the run as it does here."""
    prompts = source.prompts
    yield "command", source.command
    yield "commit", source.commit or language.say("unknown")
    yield "versions", ", ".join(f"{name} {version}" for name, version in source.versions.items())
    yield "prompt_set", f"{prompts.source} ({prompts.count}), {prompts.sha256[:_SHORT_HASH]}"
    yield "seeds", ", ".join(f"{name} {seed}" for name, seed in source.seeds.items())


def _model(mark: ModelMark, language: Language) -> str:
    known = (mark.dtype, None if mark.sha256 is None else mark.sha256[:_SHORT_HASH])
    told = ", ".join(part for part in known if part)
    return f"{language.name(mark.role)} " + language.isolated(mark.name + (f" ({told})" if told else ""))
