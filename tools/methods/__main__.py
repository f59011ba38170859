"""`python -m tools.methods`: tables as Markdown, JSON beside them; progress on standard error."""

from __future__ import annotations

import argparse
import gc
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gamaneh.bench.machine import describe_machine
from gamaneh.bench.prompt_set import Prompt, load_prompts, load_set
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.options import WEIGHTS
from tools.methods.entry import Entry, parse_entry
from tools.methods.figures import TargetFigures
from tools.methods.measure import MethodsBench
from tools.methods.plan import CATEGORIES, Effort
from tools.methods.table import put_into, tables

TARGETS = (
    "smollm2-135m-instruct",
    "qwen2.5-coder-1.5b-instruct,qwen2.5-coder-0.5b-instruct,smollm2-135m-instruct",
)
PROMPT_SET = "full"
QUICK = Effort(prompts=1, tokens=8, fixed_tokens=8)
EXIT_ERROR = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure what the arguments ask for; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        effort = make_effort(options)
        prompts = load_set(PROMPT_SET) if options.prompt_file is None else load_prompts(options.prompt_file)
        entries = [parse_entry(text) for text in options.targets]  # all of them, before anything takes its time
        figures: list[TargetFigures] = []
        for entry in entries:
            figures.append(_measure(entry, prompts, effort, options))
            _keep(figures, effort, options)
        print(_text(figures, effort))
    except GamanehError as error:
        print(f"gamaneh: {error}", file=sys.stderr)
        return EXIT_ERROR
    return 0


def make_effort(options: argparse.Namespace) -> Effort:
    """The effort that the options ask for.

    Raises:
        InvalidOption: a number is too small, or a category unknown.
    """
    usual = QUICK if options.quick else Effort()
    numbers = {name: getattr(options, name) for name in ("prompts", "tokens", "fixed_tokens", "draft_length")}
    given = {name: value for name, value in numbers.items() if value is not None}
    for name, value in given.items():
        least = 1 if name in ("prompts", "draft_length") else 2
        if value < least:
            raise InvalidOption(f"--{name.replace('_', '-')}", f"must be at least {least}", value)
    for category in options.categories:
        if category not in CATEGORIES:
            raise InvalidOption("--categories", f"must be among {', '.join(CATEGORIES)}", category)
    fields = {**asdict(usual), **given}
    return Effort(**{**fields, "temperatures": tuple(options.temperatures), "categories": tuple(options.categories)})


def _measure(entry: Entry, prompts: Sequence[Prompt], effort: Effort, options: argparse.Namespace) -> TargetFigures:
    def say(what: str) -> None:
        print(f"{entry.target}: {what}", file=sys.stderr, flush=True)

    gc.collect()  # engines of the target before may lie in reference cycles
    say("loading")
    return MethodsBench(entry.open(options.weights), prompts, effort, say).run(options.methods)


def _keep(figures: Sequence[TargetFigures], effort: Effort, options: argparse.Namespace) -> None:
    """Write down what there is so far: the targets that follow may take hours."""
    if options.markdown is not None:
        put_into(options.markdown, _text(figures, effort))
    if options.json is not None:
        text = json.dumps(_document(figures, effort), ensure_ascii=False, indent=1, allow_nan=False)
        options.json.write_text(f"{text}\n", encoding="utf-8")


def _text(figures: Sequence[TargetFigures], effort: Effort) -> str:
    return tables(figures, effort, describe_machine(), _today())


def _document(figures: Sequence[TargetFigures], effort: Effort) -> dict[str, Any]:
    return {
        "format": "gamaneh.methods",
        "version": 1,
        "targets": [one.to_json() for one in figures],
        "effort": asdict(effort),
        "machine": asdict(describe_machine()),
        "versions": {name: version(name) for name in ("gamaneh", "torch", "transformers")},
        "date": _today(),
    }


def _today() -> str:
    return datetime.now(UTC).date().isoformat()


def _parser() -> argparse.ArgumentParser:
    usual = Effort()
    parser = argparse.ArgumentParser(
        prog="python -m tools.methods", description="Measure every drafting method on this machine."
    )
    add = parser.add_argument
    add(
        "--targets",
        nargs="+",
        default=list(TARGETS),
        metavar="TARGET[,DRAFT|HEADS...]",
        help="models by path or catalogue name, each with draft models and trained heads beside those that come along",
    )
    add("--methods", nargs="+", metavar="NAME", help="only these (default: all that the target has)")
    add("--categories", nargs="+", default=list(CATEGORIES), metavar="NAME", help=f"of {', '.join(CATEGORIES)}")
    add("--temperatures", nargs="+", type=float, default=list(usual.temperatures), help="0 is greedy")
    add("--weights", choices=WEIGHTS, default="auto", help="type of the weights")
    add("--prompts", type=int, help=f"prompts of each category (default {usual.prompts})")
    add("--prompt-file", type=Path, help="JSON Lines file of prompts")
    add("--tokens", type=int, help=f"tokens of each answer (default {usual.tokens})")
    add("--fixed-tokens", type=int, help=f"the same where survival is measured (default {usual.fixed_tokens})")
    add("--draft-length", type=int, help=f"candidates where survival is measured (default {usual.draft_length})")
    add("--quick", action="store_true", help="one prompt and few tokens, to see that it runs")
    add("--markdown", type=Path, help="page whose figures are replaced")
    add("--json", type=Path, help="file for the figures as data")
    return parser


if __name__ == "__main__":
    sys.exit(main())
