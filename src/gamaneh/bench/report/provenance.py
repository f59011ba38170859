"""Where the figures come from, and how they were computed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

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
    written = tag("div", folded(language.say("formulas"), _listed(formulas.items())), class_="card")
    return tag("div", tag("div", *boxes, class_="boxes"), written if formulas else None)


def machine_words(machine: Machine, language: Language) -> str:
    """A machine in one line."""
    cores = language.say("cores", count=language.number(machine.cores, 0))
    return language.listed((machine.processor, cores, language.bytes(machine.memory_bytes)))


def _box(entry: Entry, language: Language) -> Markup:
    known = _facts(entry.run.provenance, language)
    return tag("article", tag("h3", entry.label, dir="auto"), _listed(known), class_=f"card run {entry.series.tone}")


def _listed(pairs: Iterable[tuple[str, str]]) -> Markup:
    return tag("dl", *(pair(name, value, foreign=True) for name, value in pairs), class_="long")


def _facts(source: Provenance, language: Language) -> Iterator[tuple[str, str]]:
    yield language.say("date"), language.digits(source.date)
    yield language.say("command"), source.command
    yield language.say("commit"), source.commit or language.say("unknown")
    yield language.say("machine"), machine_words(source.machine, language)
    yield language.say("versions"), ", ".join(f"{name} {version}" for name, version in source.versions.items())
    yield language.say("models"), "; ".join(_model(mark, language) for mark in source.models)
    prompts = source.prompts
    yield language.say("prompt_set"), f"{prompts.source} ({prompts.count}), {prompts.sha256[:_SHORT_HASH]}"
    yield language.say("seeds"), ", ".join(f"{name} {seed}" for name, seed in source.seeds.items())


def _model(mark: ModelMark, language: Language) -> str:
    known = (mark.dtype, None if mark.sha256 is None else mark.sha256[:_SHORT_HASH])
    told = ", ".join(part for part in known if part)
    return f"{language.name(mark.role)} {mark.name}" + (f" ({told})" if told else "")
