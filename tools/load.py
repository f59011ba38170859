"""`python -m tools.load`: what speculation brings, and what it costs where it is switched off, under load.

Three ways answer the same requests in turns: `plain` is a service that can speculate and is told not to,
`adaptive` the same left to itself, `bare` one that was built without proposers. As a table and one line of JSON.

Formulas
    adaptive / plain, plain / bare   throughput of the turns: geometric mean with a 95 % bootstrap interval
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from gamaneh.backends.choose import load
from gamaneh.bench.answer import differs
from gamaneh.bench.engines import Contestant, EngineClient, describe_engine
from gamaneh.bench.machine import describe_machine
from gamaneh.bench.measure import Bench, BenchPlan, closed_loads
from gamaneh.bench.prompt_set import Prompt, load_prompts
from gamaneh.bench.record import MeasuredLoad, Way
from gamaneh.bench.result import Interval
from gamaneh.bench.stats import geometric_mean
from gamaneh.core import AUTO
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.models.loading import LoadedModel
from gamaneh.options import WEIGHTS, EngineOptions, Precision, SamplingParams, SpeculationOptions

EXIT_ERROR = 2
CONCURRENCIES = (1, 2, 4, 8, 16)
SAMPLED = ("chat",)
"""Categories that are answered at temperature 1; the others are greedy."""


@dataclass(frozen=True, slots=True)
class LoadCell:
    """One category of prompts at one concurrency.

    Args:
        adaptive: throughput of adaptive / of plain; off: of plain / of bare.
        differences: answers of the other ways that are not those of plain.
    """

    category: str
    concurrency: int
    requests: int
    adaptive: Interval | None
    off: Interval | None
    differences: int


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        for name in ("tokens", "rounds"):
            if getattr(options, name) < 1:
                raise InvalidOption(f"--{name}", "must be at least 1", getattr(options, name))
        target = load(options.model, precision=Precision(weights=options.weights))
        cells = list(measure_cells(target, load_prompts(), options))
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return EXIT_ERROR
    document = {"cells": [asdict(cell) for cell in cells], "machine": asdict(describe_machine())}
    print(json.dumps(document, ensure_ascii=False, allow_nan=False))
    return 0


def measure_cells(target: LoadedModel, prompts: Sequence[Prompt], options: argparse.Namespace) -> Iterator[LoadCell]:
    """Yield the cells, each printed as soon as it is known."""
    print(f"{'category':12} {'at once':>7} {'adaptive / plain':>22} {'plain / bare':>22} {'differ':>6}")
    for category, concurrency in itertools.product(options.categories, options.concurrency):
        chosen = [prompt for prompt in prompts if prompt.category == category]
        temperature = 1.0 if category in SAMPLED else 0.0
        params = SamplingParams(max_tokens=options.tokens, ignore_eos=True, temperature=temperature, seed=0)
        loads = closed_loads([concurrency], 2 * concurrency, options.rounds)
        plan = BenchPlan(source="core", prompts=chosen, params=params, loads=loads)
        with _open_ways(target, options.proposer, plan) as ways:
            bench = Bench(ways, plan)
            asyncio.run(bench.run())
        cell = _cell(category, concurrency, bench.measured[0])
        ratios = " ".join(f"{_told(ratio):>22}" for ratio in (cell.adaptive, cell.off))
        print(f"{category:12} {concurrency:7} {ratios} {cell.differences:6}", flush=True)
        yield cell


@contextmanager
def _open_ways(target: LoadedModel, proposer: str, plan: BenchPlan) -> Iterator[list[Way]]:
    speculation, usual = SpeculationOptions(proposer=proposer), SpeculationOptions()
    able = build_engine(target, None, speculation, EngineOptions())
    bare = build_engine(target, None, usual, EngineOptions(), proposers=False)
    engines = {"bare": AsyncEngine(bare), "plain": AsyncEngine(able)}
    engines["adaptive"] = engines["plain"]
    for engine in {id(engine): engine for engine in engines.values()}.values():
        engine.start()
    try:
        yield [
            Way(
                name=name,
                client=EngineClient(engine, target.tokenizer, speculation),
                speculate=name == "adaptive",
                setup=describe_engine(Contestant(target, engine.engine, usual), plan, None),
            )
            for name, engine in engines.items()
        ]
    finally:
        engines["bare"].stop()
        engines["plain"].stop()


def _cell(category: str, concurrency: int, measured: MeasuredLoad) -> LoadCell:
    plain = measured.records("plain")
    others = [measured.records(name) for name in measured.stretches if name != "plain"]
    return LoadCell(
        category=category,
        concurrency=concurrency,
        requests=len(plain),
        adaptive=_ratio(measured, "adaptive", "plain"),
        off=_ratio(measured, "plain", "bare"),
        differences=sum(differs(*pair) for own in others for pair in zip(plain, own, strict=True)),
    )


def _ratio(measured: MeasuredLoad, upper: str, lower: str) -> Interval | None:
    turns = zip(measured.stretches[upper], measured.stretches[lower], strict=True)
    ratios = [
        (sum(each.tokens for each in one.records) / one.seconds)
        / (sum(each.tokens for each in two.records) / two.seconds)
        for one, two in turns
        if all(each.whole for each in (*one.records, *two.records))
    ]
    return geometric_mean(ratios) if ratios else None


def _told(ratio: Interval | None) -> str:
    return "-" if ratio is None else f"{ratio.value:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.load", description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="smollm2-135m-instruct", help="path or catalogue name")
    parser.add_argument("--weights", choices=WEIGHTS, default="auto")
    parser.add_argument("--proposer", default=AUTO, help="default auto")
    parser.add_argument("--concurrency", nargs="+", type=int, default=list(CONCURRENCIES), metavar="N")
    parser.add_argument("--categories", nargs="+", default=["editing", "code", "chat", "persian"])
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer (default 64)")
    parser.add_argument("--rounds", type=int, default=4, help="measured rounds of each way (default 4)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
