"""One card per run: what came of it, at a glance."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gamaneh.bench.report.entries import Entry, load_words, sides
from gamaneh.bench.report.language import Language
from gamaneh.bench.report.markup import Markup, pair, tag
from gamaneh.bench.result import Equality, Run, SideSetup
from gamaneh.bench.statistics import Interval

Fact = tuple[str, str]
"""What it is, and what is known of it."""


def overview(entries: Sequence[Entry], language: Language) -> Markup:
    """The cards of all runs."""
    return tag("div", *(_card(entry, language) for entry in entries), class_="cards")


def _card(entry: Entry, language: Language) -> Markup:
    ratio = entry.whole.speedup if entry.run.points else None
    facts = [pair(name, value) for name, value in _facts(entry, language)]
    return tag(
        "article",
        tag("h3", entry.label, dir="auto"),
        tag("p", _who(entry.run, language), class_="soft"),
        _headline(ratio, language),
        *_troubles(entry.run, language),
        tag("dl", *facts),
        class_=f"card run {entry.series.tone}",
    )


def _who(run: Run, language: Language) -> str:
    return f"{run.speculative.target} · {language.name(run.speculative.proposer or 'unknown')}"


def _headline(ratio: Interval | None, language: Language) -> Markup:
    if ratio is None:
        return tag("p", tag("strong", language.say("not_measured")), class_="headline open")
    verdict = _verdict(ratio)
    return tag(
        "p",
        tag("strong", language.times(ratio.value)),
        tag("span", language.say(verdict), class_="badge"),
        tag("small", language.say("interval", low=language.times(ratio.low), high=language.times(ratio.high))),
        class_=f"headline {verdict.replace('_', '-')}",
    )


def _verdict(ratio: Interval) -> str:
    if ratio.low > 1.0:
        return "faster"
    return "slower" if ratio.high < 1.0 else "no_difference"


def _troubles(run: Run, language: Language) -> Iterator[Markup]:
    """What is wrong with a run as a whole."""
    if not run.complete:
        yield tag("p", language.say("incomplete"), class_="trouble")
    if run.stopped:
        yield tag("p", language.say("stopped", reason=run.stopped), class_="trouble")
    if run.failures:
        count = language.number(len(run.failures), 0)
        yield tag("p", language.say("failures", count=count), class_="trouble")


def _facts(entry: Entry, language: Language) -> Iterator[Fact]:
    run = entry.run
    yield language.say("k"), _draft_length(run.speculative, language)
    if run.speculative.rule:
        yield language.say("rule"), _rule(run.speculative, language)
    if run.points:
        yield from _measured(entry, language)
    yield language.say("draft_memory"), language.bytes(sum(run.speculative_memory.proposers.values()) or None)
    if run.equality is not None:
        yield language.say("same_output"), _equality(run.equality, language)


def _draft_length(setup: SideSetup, language: Language) -> str:
    return language.say("adapts") if setup.k is None else language.digits(str(setup.k))


def _rule(setup: SideSetup, language: Language) -> str:
    if setup.exact is None:
        return str(setup.rule)
    return f"{setup.rule} ({language.say('exact' if setup.exact else 'approximate')})"


def _measured(entry: Entry, language: Language) -> Iterator[Fact]:
    whole = entry.whole
    yield language.say("load"), load_words(entry.point.load, language)
    yield language.say("prompts"), language.number(whole.prompts, 0)
    drafts = whole.speculative.speculation
    if drafts is not None:
        yield language.say("acceptance"), language.share(drafts.acceptance_rate)
        yield language.say("tokens_per_round"), language.significant(drafts.tokens_per_round)
    for name in ("tpot", "ttft"):
        spreads = [getattr(figures, name) for _, figures in sides(whole)]
        if None not in spreads:
            yield language.say(f"{name}_p95"), language.arrow.join(language.seconds(spread.p95) for spread in spreads)


def _equality(equality: Equality, language: Language) -> str:
    if not equality.expected:
        return language.say("same_not_promised")
    equal, compared, ties = (language.number(count, 0) for count in (equality.equal, equality.compared, equality.ties))
    told = language.say("equal_of", equal=equal, compared=compared)
    return f"{told} ({language.say('ties_of', ties=ties)})" if equality.ties else told
