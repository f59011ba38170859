"""`python -m gamaneh.bench.load`: adaptive against plain decoding under load, as a table and one line of JSON.

Each cell is a kind of prompt at a concurrency. In it, plain and adaptive runs of the same requests
alternate, in an order that is reversed from pair to pair; the first pair is a warm-up and is dropped. With
`--arms bare` a service that was built without proposers takes its turns too, or instead: beside it, plain
shows what a service costs that can speculate while its requests ask for none.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from gamaneh.bench.http_client import HttpClient
from gamaneh.bench.load_cells import (
    ADAPTIVE_ARM,
    BARE_ARM,
    KINDS,
    PLAIN_ARM,
    QUICK,
    Arm,
    Arms,
    Cell,
    Effort,
    measure_cell,
)
from gamaneh.bench.load_table import describe, headline
from gamaneh.bench.machine import describe_machine
from gamaneh.bench.prompt_set import load_prompts
from gamaneh.bench.traffic import EngineClient
from gamaneh.core import AUTO
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.models.loading import DTYPES, load
from gamaneh.options import EngineOptions, SpeculationOptions

CONCURRENCIES = (1, 2, 4, 8, 16)

EXIT_ERROR = 2


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
    async with open_arms(options) as arms:
        for kind, concurrency in itertools.product(options.kinds, options.concurrency):
            cells.append(await measure_cell(arms, kind, prompts, concurrency, effort))
            print(headline(cells[-1]), file=sys.stderr, flush=True)
    return cells


@asynccontextmanager
async def open_arms(options: argparse.Namespace) -> AsyncIterator[Arms]:
    """Plain and the arms of `--arms`: the server at `--url`, or engines in this process.

    Raises:
        GamanehError: a model cannot be used.
        InvalidOption: a server is asked to be without proposers.
    """
    if options.url is None:
        with _engine_arms(options) as arms:
            yield arms
        return
    if BARE_ARM in options.arms:
        raise InvalidOption("--arms", f"must be {ADAPTIVE_ARM} with --url: a server always has proposers", BARE_ARM)
    async with HttpClient(options.url, options.key) as client:
        yield {PLAIN_ARM: Arm(client, False), ADAPTIVE_ARM: Arm(client, True)}


@contextmanager
def _engine_arms(options: argparse.Namespace) -> Iterator[Arms]:
    """Bare and plain, and plain and adaptive, stand side by side: what is compared runs in succession."""
    target = load(options.model, dtype=options.dtype)
    draft = None if options.draft_model is None else load(options.draft_model, dtype=options.dtype)
    speculation = SpeculationOptions(proposer=options.proposer)
    engines = {PLAIN_ARM: AsyncEngine(build_engine(target, draft, speculation, EngineOptions()))}
    if BARE_ARM in options.arms:
        engines[BARE_ARM] = AsyncEngine(
            build_engine(target, None, SpeculationOptions(), EngineOptions(), proposers=False)
        )
    with _running(list(engines.values())):
        clients = {name: EngineClient(engine, target.tokenizer, speculation) for name, engine in engines.items()}
        arms = {name: Arm(clients[name], False) for name in (BARE_ARM, PLAIN_ARM) if name in clients}
        yield arms | ({ADAPTIVE_ARM: Arm(clients[PLAIN_ARM], True)} if ADAPTIVE_ARM in options.arms else {})


@contextmanager
def _running(engines: Sequence[AsyncEngine]) -> Iterator[None]:
    for engine in engines:
        engine.start()
    try:
        yield
    finally:
        for engine in engines:
            engine.stop()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m gamaneh.bench.load", description=__doc__.split("\n")[0])
    add_target(parser)
    parser.add_argument(
        "--arms",
        nargs="+",
        choices=[ADAPTIVE_ARM, BARE_ARM],
        default=[ADAPTIVE_ARM],
        help="what runs beside plain (default adaptive); bare is a service built without proposers, not with --url",
    )
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


def _document(options: argparse.Namespace, cells: Sequence[Cell]) -> dict[str, Any]:
    return {
        "benchmark": "load",
        "target": {"url": options.url} if options.url else {"model": options.model, "draft_model": options.draft_model},
        "arms": [PLAIN_ARM, *options.arms],
        "effort": asdict(make_effort(options)),
        "cells": [asdict(cell) for cell in cells],
        "machine": asdict(describe_machine()),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    sys.exit(main())
