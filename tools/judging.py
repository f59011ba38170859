"""What it takes to turn the rows of a step into tokens: rows together against row by row.

`python -m tools.judging`. Both ways judge the same drafts in turn, so that a busy machine slows both. On a CPU both
draw only the rows that a verdict reaches.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from gamaneh.bench.result import Interval
from gamaneh.bench.stats import geometric_mean
from gamaneh.core import Draft, Use, Verdict
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.sampling.rows import DraftRows, Trial, judge
from gamaneh.sampling.rules import RULES

SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "greedy": {},
    "temperature": {"temperature": 0.8},
    "top-k": {"temperature": 0.8, "top_k": 40},
    "top-p": {"temperature": 0.8, "top_p": 0.95},
    "penalty": {"frequency_penalty": 0.5},
}
STEEPNESS = 1.5
"""Logits fall with the logarithm of a token's rank, as those of language models do, this fast."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One setting.

    Args:
        reached: rows that the verdicts reach.
        row_by_row, at_once: medians, in milliseconds.
        ratio: row by row / at once.
    """

    setting: str
    batch: int
    draft_length: int
    rows: int
    reached: int
    row_by_row: float
    at_once: float
    ratio: Interval


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", type=int, default=151_936)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--lengths", type=int, nargs="+", default=[0, 7])
    parser.add_argument("--accuracy", type=float, default=0.8, help="share of candidates that are right")
    parser.add_argument("--repeats", type=int, default=20)
    chosen = parser.parse_args(arguments)
    results = []
    for name, batch, length in _cells(chosen):
        trials = make_trials(SETTINGS[name], batch, length, chosen.vocab, chosen.accuracy)
        results.append(measure(name, trials, chosen.vocab, chosen.repeats))
        print(_line(results[-1]), file=sys.stderr)
    print(json.dumps([asdict(result) for result in results]))


def make_trials(options: Mapping[str, Any], batch: int, length: int, vocab: int, accuracy: float) -> list[Trial]:
    """Chains of which each candidate is the target's own token with this probability; one stack of logits."""
    generator, chance = torch.Generator().manual_seed(0), random.Random(5)
    count = batch * (1 + length)
    ranks = torch.stack([torch.randperm(vocab, generator=generator) for _ in range(count)])
    logits = (1.0 + ranks).log() * -STEEPNESS
    rule = RULES["match"](SpeculationOptions())
    trials = []
    for request, own in enumerate(logits.view(batch, 1 + length, vocab)):
        tokens = [1, 2, 3]
        params = SamplingParams(seed=request, **options)
        sampler = RequestSampler(params, vocab_size=vocab, prompt=[1], tokens=tokens, eos_ids=(), seed=request)
        path: list[int] = []
        for row in own[:-1]:
            right = sampler.pick(sampler.scores(row, path), len(tokens) + len(path), Use.TARGET)
            path.append(right if chance.random() < accuracy else (right + 1) % vocab)
        trials.append(Trial(rule, Draft.chain(path), own, sampler, len(tokens)))
    return trials


def measure(setting: str, trials: Sequence[Trial], vocab: int, repeats: int) -> Measured:
    """Both ways in turn.

    Raises:
        AssertionError: the verdicts differ.
    """

    def row_by_row() -> list[Verdict | Exception]:
        rows = (DraftRows(trial.logits, trial.draft, trial.sampler, trial.position, vocab) for trial in trials)
        return [own.rule.judge(own.draft, target) for own, target in zip(trials, rows, strict=True)]

    def at_once() -> list[Verdict | Exception]:
        return judge(trials, vocab)

    verdicts = row_by_row()
    assert at_once() == verdicts
    times = [(_seconds(row_by_row), _seconds(at_once)) for _ in range(repeats)]
    reached = sum(len(verdict.tokens) for verdict in verdicts if isinstance(verdict, Verdict))
    slow, fast = (1e3 * median(column) for column in zip(*times, strict=True))
    ratio = geometric_mean([one / other for one, other in times])
    rows = sum(len(trial.logits) for trial in trials)
    return Measured(setting, len(trials), len(trials[0].draft), rows, reached, slow, fast, ratio)


def _cells(chosen: argparse.Namespace) -> Iterator[tuple[str, int, int]]:
    return ((name, batch, length) for name in SETTINGS for batch in chosen.batches for length in chosen.lengths)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _line(result: Measured) -> str:
    return (
        f"{result.setting:12} batch {result.batch:2}, draft length {result.draft_length}: {result.rows:3} rows,"
        f" {result.reached:3} reached; {result.row_by_row:7.2f} ms row by row, {result.at_once:7.2f} at once,"
        f" {result.ratio.value:.2f} [{result.ratio.low:.2f}, {result.ratio.high:.2f}] times as fast"
    )


if __name__ == "__main__":
    main()
