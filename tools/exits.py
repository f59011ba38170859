"""`python -m tools.exits MODEL`: what leaving a target early would be worth after each of some layers.

The answer to whether the proposer `early_exit` can pay without a trained exit: as text, then as one line of JSON.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from gamaneh.backends.choose import load
from gamaneh.bench.machine import describe_machine
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.models.loading import LoadedModel
from gamaneh.options import WEIGHTS, Precision
from gamaneh.proposers.exit_choice import ExitMeasure, best_exit, measure_exits

EXIT_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        loaded = load(options.model, precision=Precision(weights=options.weights))
        _check_layers(options.layers, loaded)
        measures = measure_exits(loaded, options.layers)
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return EXIT_ERROR
    for measure in measures:
        print(measure)
    print(f"best of {loaded.config.num_layers} layers: {best_exit(measures)}")
    print(json.dumps(_document(loaded, measures), ensure_ascii=False, allow_nan=False))
    return 0


def _check_layers(layers: Sequence[int], loaded: LoadedModel) -> None:
    for layer in layers:
        if not 1 <= layer <= loaded.config.num_layers:
            raise InvalidOption("--layers", f"must be from 1 to {loaded.config.num_layers}", layer)
    if not layers and loaded.config.num_layers < 2:
        raise InvalidOption("model", "must have at least 2 layers", loaded.config.num_layers)


def _document(loaded: LoadedModel, measures: Sequence[ExitMeasure]) -> dict[str, Any]:
    return {
        "model": loaded.name,
        "dtype": str(loaded.dtype),
        "exits": [{**asdict(one), "draft_length": one.best_length(), "speedup": _speedup(one)} for one in measures],
        "machine": asdict(describe_machine()),
    }


def _speedup(measure: ExitMeasure) -> float:
    return measure.speedup(measure.best_length())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.exits", description=__doc__)
    parser.add_argument("model", help="a folder, a GGUF file, or a name of the catalogue")
    parser.add_argument("--layers", nargs="+", type=int, default=[], help="default: some, spread over all")
    parser.add_argument("--weights", choices=WEIGHTS, default="auto")
    return parser


if __name__ == "__main__":
    sys.exit(main())
