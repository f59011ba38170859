"""`python -m tools.speed.checkouts OLD NEW`: is decoding as fast as it was? Two checkouts, alternated.

They take turns request by request, each in an own process from its own `src`. Ratio above 1: the new one is faster.

    seconds per token   (seconds of the answer - seconds to the first token) / (tokens - 1)
    ratio               old / new seconds per token of the same request; geometric mean over rounds, then over
                        prompts, with a 95 % bootstrap interval over the prompts
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gamaneh.bench.prompt_set import read_prompts, select
from gamaneh.bench.result import Interval
from gamaneh.bench.stats import paired_ratio
from gamaneh.models.loading import resolve

WORKER = Path(__file__).with_name("checkout_worker.py")
WAYS = ("plain", "auto")
LEAST = 0.98
"""Ratio below which speed counts as lost."""

Answer = Callable[[str, str, str], dict[str, Any]]
"""Way, prompt, salt -> seconds per token (`tpot`) and `tokens`."""


@dataclass(frozen=True, slots=True)
class WayRatio:
    """One way of decoding, in both checkouts.

    Args:
        ratio: old / new seconds per token.
        old, new: tokens per second after the first token, all answers together.
        equal: answers whose tokens are the same, of `answers`.
    """

    way: str
    ratio: Interval
    old: float
    new: float
    equal: int
    answers: int


def alternate(old: Answer, new: Answer, prompts: Sequence[str], way: str, rounds: int) -> WayRatio:
    """Let both answer every prompt, the order swapped each time; the first answer of each is dropped."""
    sides = (old, new)
    for side in sides:
        side(way, prompts[0], "warm-up")
    ratios: dict[str, list[float]] = defaultdict(list)
    totals, equal, turn = [0.0, 0.0], 0, 0
    for number in range(rounds):
        for prompt in prompts:
            order = (0, 1) if turn % 2 == 0 else (1, 0)
            turn += 1
            found = {at: sides[at](way, prompt, str(number)) for at in order}
            ratios[prompt].append(found[0]["tpot"] / found[1]["tpot"])
            equal += found[0]["tokens"] == found[1]["tokens"]
            totals = [total + found[at]["tpot"] for at, total in enumerate(totals)]
    ratio = paired_ratio(ratios)
    if ratio is None:
        raise ValueError("rounds and prompts must be at least one")
    return WayRatio(way, ratio, turn / totals[0], turn / totals[1], equal, turn)


@contextmanager
def checkout(tree: Path, settings: dict[str, Any]) -> Iterator[Answer]:
    """Start a process that answers from the source of `tree`."""
    environment = {**os.environ, "PYTHONPATH": str(tree.resolve() / "src")}
    process = subprocess.Popen(
        [sys.executable, str(WORKER), json.dumps(settings)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    stdin, stdout = process.stdin, process.stdout

    def answer(way: str, prompt: str, salt: str) -> dict[str, Any]:
        print(json.dumps([way, prompt, salt]), file=stdin, flush=True)
        line = stdout.readline()
        if not line:
            raise SystemExit(f"the process of {tree} ended with exit code {process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    try:
        yield answer
    finally:
        stdin.close()
        process.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, print, and return 1 where a ratio is below 0.98."""
    options = _parser().parse_args(arguments)
    file = select(read_prompts("core"), (), (), options.prompts)
    settings = {
        "model": str(resolve(options.model)),
        "draft_model": None if options.draft_model is None else str(resolve(options.draft_model)),
        "dtype": options.dtype,
        "backend": options.backend,
        "tokens": options.tokens,
    }
    with ExitStack() as stack:
        old, new = (stack.enter_context(checkout(tree, settings)) for tree in (options.old, options.new))
        prompts = [prompt.prompt for prompt in file.prompts]
        found = [alternate(old, new, prompts, way, options.rounds) for way in options.ways]
    for one in found:
        ratio = one.ratio
        print(
            f"{one.way}: {ratio.value:.3f}x [{ratio.low:.3f}, {ratio.high:.3f}] of the old speed;"
            f" {one.old:.1f} and {one.new:.1f} tokens/s; {one.equal} of {one.answers} answers equal"
        )
    print(json.dumps({**settings, "rounds": options.rounds, "ways": [asdict(one) for one in found]}))
    return int(any(one.ratio.value < LEAST for one in found))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.speed.checkouts", description=__doc__)
    parser.add_argument("old", type=Path, help="folder of the old checkout")
    parser.add_argument("new", type=Path, help="folder of the new checkout")
    parser.add_argument("--model", required=True)
    parser.add_argument("--draft-model")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS)
    parser.add_argument("--dtype", help="of weights, arithmetic and cache; default: that of each checkout")
    parser.add_argument("--backend", help="of checkouts that have backends; default: that of each")
    parser.add_argument("--prompts", type=int, default=8, help="of the core set")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=2)
    return parser


if __name__ == "__main__":
    sys.exit(main())
