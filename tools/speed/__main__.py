"""`python -m tools.speed`: figures as text, then as one line of JSON; progress on standard error.

Each configuration runs in a process of its own, so that its peak of memory is its own and nothing
of it slows the next one down.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from gamaneh.bench.machine import describe_machine
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.models.loading import DTYPES, resolve
from tools.speed.configuration import QUICK, Configuration, Effort
from tools.speed.figures import Figures
from tools.speed.measure import measure
from tools.speed.report import describe

MODELS = ("smollm2-135m-instruct", "qwen2.5-coder-1.5b-instruct,qwen2.5-coder-0.5b-instruct")
PLAIN_DTYPES, PAIR_DTYPES = ("bfloat16", "float32"), ("bfloat16",)
EXIT_ERROR = 2

Measure = Callable[[Configuration, Effort], Figures]


def main(arguments: Sequence[str] | None = None, *, measure_one: Measure | None = None) -> int:
    """Measure what the arguments ask for; returns the exit code.

    Args:
        arguments: of the command line; None takes those of the process.
        measure_one: measures one configuration; None does it in a process of its own.
    """
    options = _parser().parse_args(arguments)
    try:
        effort = make_effort(options)
        configurations = make_configurations(options.models, options.weights)
        for configuration in configurations:
            _check_models(configuration)
        figures = [_show(configuration, effort, measure_one or in_own_process) for configuration in configurations]
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return EXIT_ERROR
    print(json.dumps(_document(figures, effort), ensure_ascii=False, allow_nan=False))
    return 0


def make_configurations(models: Sequence[str], dtypes: Sequence[str] | None) -> list[Configuration]:
    """`TARGET` or `TARGET,DRAFT` each, in every type; None takes the usual types.

    Raises:
        InvalidOption: an entry of `models` names more than two models, or none.
    """
    configurations: list[Configuration] = []
    for entry in models:
        target, _, draft = entry.partition(",")
        if not target or "," in draft:
            raise InvalidOption("--models", "must be TARGET or TARGET,DRAFT", entry)
        usual = PAIR_DTYPES if draft else PLAIN_DTYPES
        configurations += [Configuration(target, draft or None, dtype) for dtype in dtypes or usual]
    return configurations


def make_effort(options: argparse.Namespace) -> Effort:
    """The effort that the options ask for.

    Raises:
        InvalidOption: too few tokens or repeats.
    """
    usual = QUICK if options.quick else Effort()
    tokens = usual.tokens if options.tokens is None else options.tokens
    repeats = usual.repeats if options.repeats is None else options.repeats
    if tokens < 2:
        raise InvalidOption("--tokens", "must be at least 2: the first one is not timed", tokens)
    if repeats < 1:
        raise InvalidOption("--repeats", "must be at least 1", repeats)
    return Effort(tokens=tokens, repeats=repeats, prompts=usual.prompts, context=usual.context)


def in_own_process(configuration: Configuration, effort: Effort) -> Figures:
    """Measure in a fresh process."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(max_workers=1, mp_context=context) as pool:
        return pool.submit(measure, configuration, effort).result()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.speed", description="Measure speed on this machine.")
    parser.add_argument(
        "--models", nargs="+", default=list(MODELS), metavar="TARGET[,DRAFT]", help="paths or catalogue names"
    )
    parser.add_argument("--weights", nargs="+", choices=list(DTYPES), help="default: bfloat16, plain float32 too")
    parser.add_argument("--tokens", type=int, help=f"tokens of each answer (default {Effort().tokens})")
    parser.add_argument("--repeats", type=int, help=f"measured repeats (default {Effort().repeats})")
    parser.add_argument("--quick", action="store_true", help="few tokens, repeats and prompts, to see that it runs")
    return parser


def _check_models(configuration: Configuration) -> None:
    """Missing models must show before hours of measuring, not after."""
    for model in (configuration.model, configuration.draft_model):
        if model is not None:
            resolve(model)


def _show(configuration: Configuration, effort: Effort, measure_one: Measure) -> Figures:
    figures = measure_one(configuration, effort)
    print(describe(figures), flush=True)
    return figures


def _document(figures: Sequence[Figures], effort: Effort) -> dict[str, Any]:
    return {
        "configurations": [one.to_json() for one in figures],
        "effort": asdict(effort),
        "machine": asdict(describe_machine()),
        "versions": {name: version(name) for name in ("gamaneh", "torch", "transformers")},
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


if __name__ == "__main__":
    sys.exit(main())
