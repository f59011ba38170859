"""Advice and scenarios at the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console
from rich.table import Table

from gamaneh.bench.advise.advice import Advice, Ranked
from gamaneh.bench.advise.language import Language
from gamaneh.bench.advise.predict import SpeedPrediction
from gamaneh.bench.advise.validate import FIXED_WAY, PLAIN_WAY, SERVED_WAY, Validation
from gamaneh.bench.advise.verdict import AdviceVerdict, Outcome
from gamaneh.bench.advise.whatif import Scenario
from gamaneh.bench.advise.words import SENTENCES, STATUS, TITLES, say
from gamaneh.bench.result import Interval

WIDTH = 160
"""Columns of tables that go to a file or another program."""


def show(console: Console, advice: Advice, language: Language) -> None:
    """Tables of what was measured and predicted, the checklist and the verdict."""
    console.print(_setting(advice))
    if advice.candidates:
        _print(console, _ranking(advice))
        _print(console, _burdens(advice.candidates))
        _print(console, _by_batch(advice.candidates))
        _print(console, _by_group(advice.candidates[0]))
    for one in advice.unusable:
        console.print(SENTENCES[language]["unusable"].format(title=one.title, reason=one.reason))
    if advice.validation is not None:
        _print(console, _validation(advice.validation))
    _print(console, _checklist(advice, language))
    console.print("\n".join(verdict_lines(advice, language)), style="bold")


def show_scenarios(console: Console, scenarios: Sequence[Scenario], batches: Sequence[int]) -> None:
    """Scenarios side by side."""
    table = Table("proposer", "k", "acceptance", "tokens / round", "break-even", "speed-up", box=None)
    for batch in batches:
        table.add_column(f"at {batch}")
    for one in scenarios:
        best = one.best
        by_batch = [_times(found.speedup) for found in one.by_batch]
        table.add_row(one.title, *_counts(best), _times(best.speedup), *by_batch)
    _print(console, table)
    for one in scenarios:
        rows = (f"{name} {_times(found.speedup)}" for name, found in one.by_category.items())
        console.print(f"{one.title} by category: {', '.join(rows)}")


def verdict_lines(advice: Advice, language: Language) -> list[str]:
    """The verdict in words, and the command that follows from it."""
    verdict, words = advice.verdict, SENTENCES[language]
    title = advice.candidates[0].title if advice.candidates else ""
    lines = [words[verdict.outcome].format(title=title), *(say(reason, language) for reason in verdict.reasons)]
    if verdict.outcome is Outcome.USE:
        lines += [_how(verdict, language), words["up_to"].format(largest=verdict.largest_batch)]
    lines += _grounds(advice, language)
    if verdict.command:
        lines += [words["command"], f"  {verdict.command_line}"]
    return lines


def _grounds(advice: Advice, language: Language) -> Iterator[str]:
    """What the figures rest on, and why that is not all that was asked for."""
    words, outcome = SENTENCES[language], advice.validation
    if advice.candidates:
        pick = advice.candidates[0]
        key, units = ("rests_on_prediction", 0) if outcome is None else ("rests_on", outcome.units * outcome.passes)
        yield words[key].format(requests=pick.requests, rounds=pick.rounds, title=pick.title, units=units)
    if advice.stopped is not None:
        yield words["stopped"].format(reason=advice.stopped)


def _print(console: Console, table: Table) -> None:
    if not console.is_terminal:
        console.width = WIDTH
    console.print(table)
    console.print()


def _how(verdict: AdviceVerdict, language: Language) -> str:
    words = SENTENCES[language]
    return words["adapts"] if verdict.fixed_k is None else words["fixed"].format(k=verdict.fixed_k)


def _setting(advice: Advice) -> str:
    setting, plain = advice.setting, advice.plain
    return (
        f"{setting.model}, {setting.dtype} on {setting.device}; {setting.requests} requests in "
        f"{', '.join(setting.languages)}: {', '.join(setting.categories)}\n"
        f"plain: {plain.step_seconds * 1e3:.1f} ms a round ({plain.overhead_seconds * 1e3:.1f} ms of them beside "
        f"the forward), {plain.median_prompt_tokens:g} tokens in, {plain.median_tokens:g} out (medians), "
        f"decoding {plain.decode_share:.0%} of the latency"
    )


def _ranking(advice: Advice) -> Table:
    title = f"speed-up at {advice.setting.batch}"
    table = Table("candidate", "k", "acceptance", "tokens / round", "break-even", title, box=None)
    for one in advice.candidates:
        table.add_row(one.title, *_counts(one.prediction), _between(one.prediction.speedup))
    return table


def _burdens(candidates: Sequence[Ranked]) -> Table:
    table = Table("candidate", "ms / token", "of a round", "MB", "largest batch", "tokenizer", box=None)
    for one in candidates:
        table.add_row(
            one.title,
            f"{one.draft_token_seconds * 1e3:.2f}",
            f"{one.draft_step_ratio:.2f}",
            f"{one.weight_bytes / 1e6:.0f}",
            str(one.largest_batch),
            one.tokenizer,
        )
    return table


def _counts(found: SpeedPrediction) -> Iterable[str]:
    yield str(found.k)
    yield f"{found.acceptance_rate:.0%}"
    yield f"{found.tokens_per_round:.2f}"
    yield f"{found.break_even:.2f}"


def _by_batch(candidates: Sequence[Ranked]) -> Table:
    """Predicted speed-up and best draft length by requests at once."""
    table = Table("at once", *(one.title for one in candidates), box=None)
    for at_once in zip(*(one.by_batch for one in candidates), strict=True):
        table.add_row(str(at_once[0].batch), *(f"{_between(found.speedup)} k={found.k}" for found in at_once))
    return table


def _by_group(pick: Ranked) -> Table:
    table = Table(f"{pick.title}, one at once", "predicted", "acceptance", "tokens / round", box=None)
    for name, found in {**pick.by_category, **pick.by_language}.items():
        counts = f"{found.acceptance_rate:.0%}", f"{found.tokens_per_round:.2f}"
        table.add_row(name, _between(found.speedup), *counts)
    return table


def _validation(outcome: Validation) -> Table:
    table = Table(
        f"real run, {outcome.batch} at once", "predicted", "measured", "E2E P50", "P95", "P99", "TTFT P50", box=None
    )
    measured = {FIXED_WAY: outcome.measured, SERVED_WAY: outcome.served}
    for way in (PLAIN_WAY, FIXED_WAY, SERVED_WAY):
        times = outcome.latencies[way]
        seconds = (times.e2e.p50, times.e2e.p95, times.e2e.p99, times.ttft.p50)
        table.add_row(
            way,
            f"{outcome.predicted:.2f}" if way == FIXED_WAY else "",
            _between(measured[way]) if way in measured else "",
            *(f"{value:.2f} s" for value in seconds),
        )
    return table


def _checklist(advice: Advice, language: Language) -> Table:
    table = Table(box=None, show_header=False)
    for line in advice.checklist:
        table.add_row(STATUS[language][line.status], TITLES[language][line.code], say(line.figure, language))
    return table


def _between(interval: Interval) -> str:
    return f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _times(interval: Interval) -> str:
    return f"{interval.value:.2f}x"
