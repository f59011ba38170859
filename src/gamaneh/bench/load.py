"""`python -m gamaneh.bench.load`: adaptive against plain decoding under load, as a table and one line of JSON.

Each cell is a kind of prompt at a concurrency. In it, plain and adaptive runs of the same requests
alternate, in an order that is swapped from pair to pair; the first pair is a warm-up and is dropped.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from gamaneh.bench.http_client import HttpClient
from gamaneh.bench.machine import describe_machine
from gamaneh.bench.prompt_set import Prompt, load_prompts
from gamaneh.bench.statistics import Interval, geometric_mean
from gamaneh.bench.traffic import Ask, Client, EngineClient, Traffic, closed_loop
from gamaneh.core import AUTO
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.metrics.percentiles import Percentiles, percentiles
from gamaneh.models.loading import DTYPES, load
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions

CONCURRENCIES = (1, 2, 4, 8, 16)
KINDS: Mapping[str, str] = {"copy-like": "editing", "code": "code", "prose": "chat", "persian": "persian"}
"""Kind of prompt -> its category in the prompt set."""

SAMPLED = frozenset({"prose"})
"""Kinds that are answered at temperature 1; the others are greedy."""

EXIT_ERROR = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    Args:
        tokens: emitted in each answer.
        waves: requests of a run, as a multiple of the concurrency.
        pairs: of runs that are compared, beside a first one that is dropped.
    """

    tokens: int = 64
    waves: int = 2
    pairs: int = 3


QUICK = Effort(tokens=12, waves=1, pairs=1)
"""Shows that everything runs; the figures mean little."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one way of decoding did in a cell, all its runs together; times in seconds."""

    tokens_per_second: float
    ttft: Percentiles
    itl: Percentiles
    e2e: Percentiles


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of prompt at one concurrency.

    Args:
        ratio: throughput of adaptive / throughput of plain, geometric mean over the pairs.
        differences: answers whose text was not that of plain decoding.
    """

    kind: str
    concurrency: int
    requests: int
    plain: Side
    adaptive: Side
    ratio: Interval
    differences: int


async def measure_cell(client: Client, kind: str, prompts: Sequence[Prompt], concurrency: int, effort: Effort) -> Cell:
    """Run plain and adaptive in turns."""
    runs: dict[bool, list[Traffic]] = {False: [], True: []}
    for pair in range(1 + effort.pairs):
        for speculate in (False, True) if pair % 2 else (True, False):
            asks = make_asks(
                kind, prompts, concurrency * effort.waves, effort.tokens, speculate=speculate, salt=uuid.uuid4().hex
            )
            runs[speculate].append(await closed_loop(client, asks, concurrency))
    plain, adaptive = runs[False][1:], runs[True][1:]
    ratios = [two.tokens_per_second / one.tokens_per_second for one, two in zip(plain, adaptive, strict=True)]
    texts = [[answer.text for run in side for answer in run.answers] for side in (plain, adaptive)]
    return Cell(
        kind=kind,
        concurrency=concurrency,
        requests=len(texts[0]),
        plain=_side(plain),
        adaptive=_side(adaptive),
        ratio=geometric_mean(ratios),
        differences=sum(one != two for one, two in zip(*texts, strict=True)),
    )


def make_asks(
    kind: str, prompts: Sequence[Prompt], count: int, tokens: int, *, speculate: bool, salt: str = ""
) -> list[Ask]:
    """`count` requests of this kind, each of exactly `tokens` tokens; the same ones whether they speculate or not.

    Args:
        salt: of a run. The same requests come back in the next one, which must not know them by heart.

    Raises:
        InvalidOption: no prompt is of this kind.
    """
    texts = [prompt.prompt for prompt in prompts if prompt.category == KINDS[kind]]
    if not texts:
        raise InvalidOption("prompts", f"must hold one of category {KINDS[kind]}", len(prompts))
    temperature = 1.0 if kind in SAMPLED else 0.0
    return [
        Ask(text, SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=temperature, seed=at), speculate, salt)
        for at, text in enumerate(itertools.islice(itertools.cycle(texts), count))
    ]


def describe(cells: Sequence[Cell]) -> str:
    """The cells as a table: throughput, and medians and tails of the times in milliseconds."""
    header = (
        f"{'kind':10} {'conc.':>5} {'plain tok/s':>11} {'adaptive':>9} {'ratio':>6} {'95 % interval':>14}"
        f"  {'TTFT P50/P95/P99':>23} {'ITL P50/P95/P99':>20} {'E2E P50/P95/P99':>23} {'differ':>6}"
    )
    return "\n".join([header, *(line for cell in cells for line in _lines(cell))])


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        cells = asyncio.run(_measure(options))
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return EXIT_ERROR
    print(describe(cells))
    print(json.dumps(_document(options, cells), ensure_ascii=False, allow_nan=False))
    return 0


def make_effort(options: argparse.Namespace) -> Effort:
    """The effort that the options ask for.

    Raises:
        InvalidOption: a number is too small.
    """
    usual = QUICK if options.quick else Effort()
    chosen = {name: getattr(options, name) for name in ("tokens", "waves", "pairs")}
    for name, value in chosen.items():
        if value is not None and value < 1:
            raise InvalidOption(f"--{name}", "must be at least 1", value)
    return Effort(**{name: getattr(usual, name) if value is None else value for name, value in chosen.items()})


async def _measure(options: argparse.Namespace) -> list[Cell]:
    effort, prompts = make_effort(options), load_prompts()
    cells = []
    async with open_client(options) as client:
        for kind, concurrency in itertools.product(options.kinds, options.concurrency):
            cells.append(await measure_cell(client, kind, prompts, concurrency, effort))
            print(f"{kind}, {concurrency} at once: ratio {cells[-1].ratio.value:.2f}", file=sys.stderr, flush=True)
    return cells


@asynccontextmanager
async def open_client(options: argparse.Namespace) -> AsyncIterator[Client]:
    """The server at `--url`, or an engine in this process.

    Raises:
        GamanehError: a model cannot be used.
    """
    if options.url is not None:
        async with HttpClient(options.url, options.key) as client:
            yield client
        return
    target = load(options.model, dtype=options.dtype)
    draft = None if options.draft_model is None else load(options.draft_model, dtype=options.dtype)
    speculation = SpeculationOptions(proposer=options.proposer)
    engine = AsyncEngine(build_engine(target, draft, speculation, EngineOptions()))
    engine.start()
    try:
        yield EngineClient(engine, target.tokenizer, speculation)
    finally:
        engine.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gamaneh.bench.load", description=__doc__.split("\n")[0])
    add_target(parser)
    parser.add_argument("--concurrency", nargs="+", type=int, default=list(CONCURRENCIES), metavar="N")
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--tokens", type=int, help=f"tokens of each answer (default {Effort().tokens})")
    parser.add_argument("--waves", type=int, help=f"requests per concurrent caller (default {Effort().waves})")
    parser.add_argument("--pairs", type=int, help=f"measured pairs of runs (default {Effort().pairs})")
    parser.add_argument("--quick", action="store_true", help="as little as shows that it runs")
    return parser


def add_target(parser: argparse.ArgumentParser) -> None:
    """Options that say what is put under load."""
    parser.add_argument("--url", help="a running server; its own settings decide how it speculates")
    parser.add_argument("--key", help="API key for --url")
    parser.add_argument("--model", default="smollm2-135m-instruct", help="path or catalogue name, without --url")
    parser.add_argument("--draft-model", help="path or catalogue name, without --url")
    parser.add_argument("--dtype", choices=["auto", *DTYPES], default="auto", help="without --url")
    parser.add_argument("--proposer", default=AUTO, help="without --url (default auto)")


def _side(runs: Sequence[Traffic]) -> Side:
    answers = [answer for run in runs for answer in run.answers]
    return Side(
        tokens_per_second=sum(answer.tokens for answer in answers) / sum(run.seconds for run in runs),
        ttft=percentiles(answer.ttft for answer in answers),
        itl=percentiles(gap for answer in answers for gap in answer.gaps),
        e2e=percentiles(answer.e2e for answer in answers),
    )


def _lines(cell: Cell) -> list[str]:
    ratio = f"{cell.ratio.value:6.2f} {cell.ratio.low:6.2f} to {cell.ratio.high:4.2f}"
    speed = f"{cell.plain.tokens_per_second:11.1f} {cell.adaptive.tokens_per_second:9.1f}"
    return [
        f"{cell.kind:10} {cell.concurrency:5} {speed} {ratio}  {_times(cell.adaptive)} {cell.differences:6}",
        f"{'':10} {'':5} {'':11} {'plain':>9} {'':21}  {_times(cell.plain)}",
    ]


def _times(side: Side) -> str:
    return f"{_ms(side.ttft):>23} {_ms(side.itl):>20} {_ms(side.e2e):>23}"


def _ms(values: Percentiles) -> str:
    return "/".join(f"{seconds * 1e3:.0f}" for seconds in (values.p50, values.p95, values.p99))


def _document(options: argparse.Namespace, cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "benchmark": "load",
        "target": {"url": options.url} if options.url else {"model": options.model, "draft_model": options.draft_model},
        "effort": asdict(make_effort(options)),
        "cells": [asdict(cell) for cell in cells],
        "machine": asdict(describe_machine()),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    sys.exit(main())
