"""One run from beginning to end: connect, check, measure, explain, write down. What ends it early loses nothing."""

from __future__ import annotations

import asyncio
import csv
import io
import json
import shlex
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, date, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gamaneh.bench.answer import check_lengths, check_setups, compare_outputs, explain, find_cautions, refuse_unequal
from gamaneh.bench.engines import TARGET
from gamaneh.bench.machine import describe_machine
from gamaneh.bench.measure import Bench, BenchPlan, Tick
from gamaneh.bench.record import PLAIN_SIDE, SPECULATIVE_SIDE, Counters, MeasuredLoad, Ways
from gamaneh.bench.result import (
    FORMAT,
    VERSION,
    Check,
    Distribution,
    Equality,
    FailedRequest,
    Group,
    Memory,
    ModelMark,
    Point,
    Price,
    PromptMark,
    Run,
    RunProvenance,
    SideFigures,
)
from gamaneh.bench.stats import FORMULAS, make_point
from gamaneh.bench.time_limit import INTERRUPTED, TimeLimit
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.origin import git, installed_version

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "httpx")
SECRET_OPTIONS = ("--key",)
_UNKNOWN = Memory(None, None, None, None, {})

Connect = Callable[[], AbstractAsyncContextManager[Ways]]


def conduct(
    connect: Connect,
    plan: BenchPlan,
    name: str,
    models: Sequence[ModelMark],
    tick: Tick = lambda done, total: None,
    keep: Callable[[Run], None] = lambda run: None,
    *,
    allow_unequal: bool = False,
    afterwards: Callable[[Bench], Awaitable[None]] | None = None,
    limit: TimeLimit | None = None,
) -> Run:
    """Measure `plan`; an interrupt or the end of the time ends it with what there is.

    Args:
        name: what to call the run.
        models: those that took part.
        keep: given the run as far as it is, after each load.
        allow_unequal: go on where the sides differ in more than speculation.
        afterwards: asked when everything was measured, while the ways are still there.
        limit: of the whole run; None sets none.

    Raises:
        InvalidOption: they do, and must not.
        KeyboardInterrupt: before anything was measured.
    """
    begun: list[_Begun] = []

    async def go() -> None:
        async with connect() as ways:
            if not allow_unequal:
                refuse_unequal(check_setups(ways.plain.setup, ways.speculative.setup))
            bench = Bench(ways, plan, tick, lambda bench: keep(begun[0].document()), limit)
            begun.append(_Begun(bench, ways, name, models))
            await bench.run()
            await begun[0].finish()
            if afterwards is not None:
                await afterwards(bench)

    try:
        asyncio.run(go())
    except KeyboardInterrupt:
        if not begun or not any(measured.begun for measured in begun[0].bench.measured):
            raise
        begun[0].bench.stopped = INTERRUPTED
    return begun[0].document()


class _Begun:
    """A bench under way; makes its document as often as wanted."""

    def __init__(self, bench: Bench, ways: Ways, name: str, models: Sequence[ModelMark]) -> None:
        self.bench, self.ways, self.name, self.models = bench, ways, name, models
        self.memory = {PLAIN_SIDE: _UNKNOWN, SPECULATIVE_SIDE: _UNKNOWN}
        self._equality: Equality | None = None

    async def finish(self) -> None:
        """Look at memory, and ask about differences, which takes more requests."""
        for way in self.ways:
            self.memory[way.name] = _memory(await way.counters())
        equality = self._outputs()
        if equality is not None:
            self._equality = await explain(equality, self.bench.measured, self.bench.plan, self.ways.plain)

    def document(self) -> Run:
        """Return what there is so far."""
        plan, bench, ways = self.bench.plan, self.bench, self.ways
        approximate = ways.speculative.setup.exact is False
        points = tuple(
            make_point(measured, plan.slo, plan.price, approximate=approximate)
            for measured in bench.measured
            if measured.begun
        )
        failures = tuple(failure for measured in bench.measured for failure in _failures(measured))
        run = Run(
            format=FORMAT,
            version=VERSION,
            name=self.name,
            mode="offline" if ways.speculative.setup.server is None else "serving",
            provenance=describe_provenance(plan, self.models),
            plain=ways.plain.setup,
            speculative=ways.speculative.setup,
            fairness=_checks(ways, points),
            points=points,
            plain_memory=self.memory[PLAIN_SIDE],
            speculative_memory=self.memory[SPECULATIVE_SIDE],
            equality=self._equality or self._outputs(),
            cautions=(),
            failures=failures,
            slo=plan.slo,
            price=plan.price,
            formulas=dict(FORMULAS),
            complete=not failures and bench.stopped is None,
            stopped=bench.stopped,
        )
        reads_anew = all(way.reads_anew for way in ways)
        return replace(run, cautions=find_cautions(run, reads_anew=reads_anew, faults=ways.speculative.faults()))

    def _outputs(self) -> Equality | None:
        setup, plan = self.ways.speculative.setup, self.bench.plan
        expected = setup.rule == "match" or (plan.params.greedy and setup.exact is not False)
        return compare_outputs(self.bench.measured, plan, expected=expected)


def _checks(ways: Ways, points: Sequence[Point]) -> tuple[Check, ...]:
    lengths = (check_lengths(point.whole.plain, point.whole.speculative) for point in points)
    worst = sorted(lengths, key=lambda check: check.equal is True)
    return (*check_setups(ways.plain.setup, ways.speculative.setup), *worst[:1])


def _failures(measured: MeasuredLoad) -> Iterator[FailedRequest]:
    for side in (PLAIN_SIDE, SPECULATIVE_SIDE):
        for record in measured.records(side):
            if record.error is not None:
                yield FailedRequest(side, record.asked.id, record.error, record.reason or "error")


def _memory(counters: Counters | None) -> Memory:
    if counters is None:
        return _UNKNOWN
    models = dict(counters.models)
    return Memory(
        peak_resident=counters.resident,
        peak_device=counters.device,
        target=models.pop(TARGET, None),
        target_kv=counters.target_kv,
        proposers=models,
    )


def describe_provenance(plan: BenchPlan, models: Sequence[ModelMark]) -> RunProvenance:
    """Return everything that is needed to make the figures again."""
    return RunProvenance(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        command=command_line(sys.argv),
        version=version("gamaneh"),
        commit=_commit(),
        versions={name: found for name in PACKAGES if (found := installed_version(name)) is not None},
        machine=describe_machine(),
        models=tuple(models),
        prompts=PromptMark(
            source=plan.source,
            sha256=plan.prompts_sha256,
            count=len(plan.prompts),
            categories=tuple(sorted({prompt.category for prompt in plan.prompts})),
            languages=tuple(sorted({prompt.language for prompt in plan.prompts})),
        ),
        seeds={"arrivals": plan.seed, **({} if plan.params.seed is None else {"sampling": plan.params.seed})},
    )


def _commit() -> str | None:
    """Commit of the checkout that this package lies in; a plus sign where it was changed."""
    head = git("rev-parse", "--short=12", "HEAD")
    return None if head is None else head + ("+" if git("status", "--porcelain", "--untracked-files=no") else "")


def command_line(arguments: Sequence[str]) -> str:
    """Return the command as it can be given again, without folders before the program and without secrets."""
    program, *rest = arguments
    shown = [_masked(before, argument) for before, argument in zip(["", *rest], rest, strict=False)]
    return shlex.join([Path(program).name, *shown])


def _masked(before: str, argument: str) -> str:
    if before in SECRET_OPTIONS:
        return "***"
    name, given, _ = argument.partition("=")
    return f"{name}=***" if given and name in SECRET_OPTIONS else argument


def make_price(per_hour: float, currency: str, day: str | None) -> Price:
    """
    Raises:
        InvalidOption: the price is not above 0, or its date is missing or none.
    """
    if not 0 < per_hour < float("inf"):
        raise InvalidOption("price", "must be a number above 0", per_hour)
    try:
        date.fromisoformat(day or "")
    except ValueError as error:
        raise InvalidOption("price_date", "must be the day of the price, as YYYY-MM-DD", day) from error
    return Price(per_hour, currency, str(day))


class CannotWrite(GamanehError):
    """A file cannot be written."""


def write_json(run: Run, path: Path) -> None:
    """
    Raises:
        CannotWrite: the disk is full, the folder is not there, or it must not be written to.
    """
    _write(path, to_text(run) + "\n")


def write_csv(run: Run, path: Path) -> None:
    """Write one row for each load, group of prompts and side; what is not known is empty.

    Raises:
        CannotWrite: as above.
    """
    rows = [
        rounded({**_where(run, point, group, name), **_columns(figures)})
        for point in run.points
        for group in point.groups
        for name, figures in ((PLAIN_SIDE, group.plain), (SPECULATIVE_SIDE, group.speculative))
    ]
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(rows[0]) if rows else ["load"], lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    _write(path, text.getvalue())


def check_folder(path: Path) -> None:
    """Find out before measuring, not after.

    Raises:
        CannotWrite: the file's folder is not there.
    """
    if not path.absolute().parent.is_dir():
        raise CannotWrite(f"{path} cannot be written: its folder is not there")


def to_text(run: Run) -> str:
    """Return JSON on one line."""
    return json.dumps(rounded(run.to_json()), ensure_ascii=False, allow_nan=False)


def rounded(value: Any) -> Any:
    """Return plain data with its numbers cut to six significant digits, more than any measurement has."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: rounded(each) for key, each in value.items()}
    return [rounded(each) for each in value] if isinstance(value, list | tuple) else value


def _write(path: Path, text: str) -> None:
    """Beside the file first, so that a full disk leaves the old one."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise CannotWrite(f"{path} cannot be written: {error.strerror}") from error


def _where(run: Run, point: Point, group: Group, side: str) -> dict[str, Any]:
    speedup = group.speedup if side == SPECULATIVE_SIDE else None
    return {
        "run": run.name,
        "load": point.load.pattern,
        "level": point.load.level,
        "group": group.kind,
        "name": group.name,
        "side": side,
        "prompts": group.prompts,
        "speedup": None if speedup is None else speedup.value,
        "speedup_low": None if speedup is None else speedup.low,
        "speedup_high": None if speedup is None else speedup.high,
    }


_NUMBERS = (
    *("requests", "prompt_tokens", "output_tokens", "tokens_from", "approximate", "seconds", "tokens_per_second"),
    *("requests_per_second", "decode_tokens_per_second", "tokens_per_character", "utilisation", "cost_per_million"),
)
_TIMES = ("ttft", "itl", "tpot", "e2e")
_PARTS = ("queue", "prefill", "decode", "draft", "verify")
_SPECULATION = ("acceptance_rate", "acceptance_rate_macro", "mean_accepted_length", "tokens_per_round")
_GOODPUT = ("requests_per_second", "tokens_per_second")


def _columns(figures: SideFigures) -> dict[str, Any]:
    return {
        **{name: getattr(figures, name) for name in _NUMBERS},
        "left_out": sum(figures.left_out.values()),
        **{column: value for name in _TIMES for column, value in _ranks(name, getattr(figures, name))},
        **{f"{part}_seconds": getattr(figures.split, part) for part in _PARTS},
        **{name: getattr(figures.speculation, name, None) for name in _SPECULATION},
        **{f"goodput_{name}": getattr(figures.goodput, name, None) for name in _GOODPUT},
    }


def _ranks(name: str, spread: Distribution | None) -> Iterator[tuple[str, float | None]]:
    for rank in ("mean", "p50", "p95", "p99"):
        yield f"{name}_{rank}", getattr(spread, rank, None)
