"""A run of `gamaneh bench` at the terminal: tables, then what to make of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.table import Table

if TYPE_CHECKING:
    from rich.console import Console

    from gamaneh.bench.result import (
        Difference,
        Distribution,
        Equality,
        Group,
        Interval,
        Load,
        Memory,
        Point,
        Run,
        SideFigures,
        SideSetup,
    )

SHOWN = 5
"""Differences and failures that are listed; the JSON has all of them."""

_UNITS = {
    "poisson": "requests a second, Poisson",
    "constant": "requests a second, evenly",
    "gamma": "requests a second",
}


_COUNTED = {"tokenizer": "by the tokenizer over the text", "deliveries": "as one for each delivery"}
"""How tokens were counted where whoever answered did not tell; stands beside the figures."""


def report(console: Console, run: Run) -> None:
    """Print a run."""
    for point in run.points:
        console.print(f"\n{_load(point.load)}", style="bold")
        console.print(_groups(point))
        console.print(_latencies(point.whole))
        for line in _notes(point):
            console.print(line, markup=False)
    if run.speculative.exact is False:
        console.print(f"~ approximate: rule {run.speculative.rule} gives other outputs than the target", markup=False)
    for line in _summary(run):
        console.print(line, markup=False)
    for caution in run.cautions:
        console.print(f"warning: {caution.text}", style="yellow", markup=False)
    console.print(
        "\n".join(["", "formulas", *(f"  {name}: {text}" for name, text in run.formulas.items())]), style="dim"
    )


def _load(load: Load) -> str:
    rounds = f"{load.requests} requests, measured {load.rounds} times on each side"
    if load.pattern == "closed":
        return f"{load.level:g} at once ({rounds})"
    return f"{load.level:.3g} {_UNITS.get(load.pattern, 'requests a second, as recorded')} ({rounds})"


def _table(*headers: str) -> Table:
    table = Table(*headers, box=None, padding=(0, 1, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    return table


def _groups(point: Point) -> Table:
    mark = sign(point.whole.speculative.approximate)
    ratios = (f"{mark}speed-up", "95 %", f"{mark}E2E", f"{mark}accepted", f"{mark}tok/round")
    table = _table("", "prompts", *ratios, "plain", f"{mark}spec. tok/s")
    for group in point.groups:
        speculation = group.speculative.speculation
        table.add_row(
            group.name,
            str(group.prompts),
            _times(group.speedup),
            _range(group.speedup),
            _times(group.e2e_speedup),
            percent(None if speculation is None else speculation.acceptance_rate),
            _number(None if speculation is None else speculation.tokens_per_round),
            _number(group.plain.decode_tokens_per_second, 1),
            _number(group.speculative.decode_tokens_per_second, 1),
        )
    return table


def _latencies(group: Group) -> Table:
    plain, speculative = group.plain, group.speculative
    table = _table("ms", "plain P50", "P95", "P99", f"{sign(speculative.approximate)}speculative P50", "P95", "P99")
    for name in ("ttft", "itl", "tpot", "e2e"):
        table.add_row(name.upper(), *_ranks(getattr(plain, name)), *_ranks(getattr(speculative, name)))
    return table


def _notes(point: Point) -> Iterator[str]:
    whole = point.whole
    mark = _mark(whole.speculative)
    yield f"throughput{mark}: {_times(point.throughput)} (95 % interval {_range(point.throughput)})"
    for name, figures in (("plain", whole.plain), ("speculative", whole.speculative)):
        yield from _side_notes(name, figures)
    speculation = whole.speculative.speculation
    if speculation is not None:
        yield (
            f"acceptance rate{mark}: pooled {percent(speculation.acceptance_rate)},"
            f" macro {percent(speculation.acceptance_rate_macro)}; accepted per draft"
            f" {_number(speculation.accepted_per_draft)}, per round {_number(speculation.mean_accepted_length)};"
            f" survival by position {' '.join(f'{share:.2f}' for share in speculation.survival) or '-'}"
        )
    if point.saturation is not None:
        yield (
            f"saturated: plain {_yes(point.saturation.plain)}, speculative {_yes(point.saturation.speculative)}"
            f" (requests piling up a second: {point.saturation.plain_growth:.2f},"
            f" {point.saturation.speculative_growth:.2f})"
        )


def _mark(figures: SideFigures) -> str:
    """Figures of an approximate rule say so wherever they stand."""
    return " (approximate)" if figures.approximate else ""


def sign(approximate: bool) -> str:
    """Return the same for heads of columns, which are narrow."""
    return "~" if approximate else ""


def _side_notes(name: str, figures: SideFigures) -> Iterator[str]:
    split, name = figures.split, f"{name}{_mark(figures)}"
    parts = {"queue": split.queue, "prefill": split.prefill, "draft": split.draft, "verify": split.verify}
    rest = {"other": split.other} if split.other is not None else {"decode": split.decode}
    known = ", ".join(f"{part} {seconds:.1f}" for part, seconds in {**parts, **rest}.items() if seconds is not None)
    yield (
        f"{name}: {_number(figures.tokens_per_second, 1)} tokens/s, {_number(figures.requests_per_second)} requests/s,"
        f" {_number(figures.tokens_per_character)} tokens a character, processors {percent(figures.utilisation)} busy"
    )
    yield f"{name}, seconds of all requests: {known}"
    if figures.left_out:
        told = ", ".join(f"{reason} {count}" for reason, count in figures.left_out.items())
        yield f"{name}, answers left out of the figures: {told}"
    if figures.tokens_from in _COUNTED:
        yield f"{name}, tokens were counted {_COUNTED[figures.tokens_from]}"
    if figures.goodput is not None:
        yield (
            f"{name} goodput: {figures.goodput.share:.0%} of requests met the objectives:"
            f" {figures.goodput.requests_per_second:.2f} requests/s, {figures.goodput.tokens_per_second:.1f} tokens/s"
        )


def _summary(run: Run) -> Iterator[str]:
    yield ""
    yield from _setup(run.plain, run.speculative)
    yield _memory(run.speculative_memory)
    yield from _costs(run)
    yield from _equality(run.equality)
    yield from _failures(run)


def _setup(plain: SideSetup, speculative: SideSetup) -> Iterator[str]:
    unknown = "not known"
    adapts = unknown if speculative.server else "adapts"
    yield (
        f"{speculative.target}, precision {speculative.precision or unknown}, {speculative.hardware};"
        f" proposer {speculative.proposer or unknown}, k {adapts if speculative.k is None else speculative.k},"
        f" rule {speculative.rule or unknown}"
    )
    if plain.server is not None:
        yield f"plain server: {plain.server} ({plain.dialect})"
        yield f"speculative server: {speculative.server} ({speculative.dialect})"


def _memory(memory: Memory) -> str:
    parts = {"peak resident": memory.peak_resident, "peak on device": memory.peak_device, "target": memory.target}
    parts |= {"of it KV cache": memory.target_kv, **memory.proposers}
    known = ", ".join(f"{name} {size / 1e6:.0f}" for name, size in parts.items() if size is not None)
    return f"memory of the speculative side, MB: {known or 'not known'}"


def _costs(run: Run) -> Iterator[str]:
    if run.price is None:
        return
    for point in run.points:
        costs = [figures.cost_per_million for figures in (point.whole.plain, point.whole.speculative)]
        plain, speculative = (_number(cost) for cost in costs)
        yield (
            f"a million output tokens at load {point.load.level:g}: {plain} plain, {speculative} speculative"
            f" ({run.price.currency}, {run.price.per_hour:g} an hour on {run.price.date})"
        )


def _equality(equality: Equality | None) -> Iterator[str]:
    if equality is None:
        yield "outputs: sampled without a seed, so that no two can be compared"
        return
    promise = "" if equality.expected else "; the rule does not promise equality"
    counts = f"{equality.equal} of {equality.compared} the same, {equality.ties} of the others differ at ties"
    yield f"outputs: {counts}{promise}"
    for difference in equality.differences[:SHOWN]:
        yield _difference(difference)


def _difference(difference: Difference) -> str:
    gap = "gap of the two likeliest tokens not known" if difference.gap is None else f"gap {difference.gap:.4f}"
    return (
        f"  {difference.prompt} differs from character {difference.position} on ({gap}):"
        f" {difference.plain!r} plain, {difference.speculative!r} speculative"
    )


def _failures(run: Run) -> Iterator[str]:
    for failure in run.failures[:SHOWN]:
        yield f"failed: {failure.prompt} ({failure.side}, {failure.reason}): {failure.error}"
    if len(run.failures) > SHOWN:
        yield f"failed: {len(run.failures) - SHOWN} more"
    if run.stopped is not None:
        points = run.points
        answered = sum(point.whole.speculative.requests for point in points)
        drafts = [point.whole.speculative.speculation for point in points]
        rounds = sum((each.rounds if each else None) or 0 for each in drafts)
        yield partial(run.stopped, answered, run.speculative.requests, rounds)


def partial(stopped: str, answered: int, planned: int, rounds: int) -> str:
    """Return what the figures of a run that stopped early rest on."""
    counted = f", {rounds} speculative rounds" if rounds else ""
    return f"partial: stopped early ({stopped}); rests on {answered} of {planned} requests on each side{counted}"


def times(value: float | None) -> str:
    """Return a ratio as it is printed everywhere."""
    return "-" if value is None else f"{value:.2f}x"


def _times(interval: Interval | None) -> str:
    return times(None if interval is None else interval.value)


def _range(interval: Interval | None) -> str:
    return "-" if interval is None or interval.low == interval.high else f"{interval.low:.2f}-{interval.high:.2f}"


def percent(value: float | None) -> str:
    """Return a share as it is printed everywhere."""
    return "-" if value is None else f"{value:.1%}"


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _ranks(spread: Distribution | None) -> tuple[str, str, str]:
    if spread is None:
        return "-", "-", "-"
    p50, p95, p99 = (f"{seconds * 1e3:.0f}" for seconds in (spread.p50, spread.p95, spread.p99))
    return p50, p95, p99


def _yes(value: bool) -> str:
    return "yes" if value else "no"
