"""The same records give the same numbers, whatever the code between them looks like."""

from __future__ import annotations

import json
import random
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from fake_sides import answer, measured, stretch

from gamaneh.bench.conduct import rounded
from gamaneh.bench.record import Counts
from gamaneh.bench.result import Load, Point, Price, Slo
from gamaneh.bench.stats import make_point

RECORDED = Path(__file__).parent / "fixed_point.json"


def side(seed: int, pace: float, drafted: int) -> list:
    noise = random.Random(seed)
    stretches = []
    for number in range(3):
        answers = []
        for at in range(4):
            steps = [0.2 + 0.1 * at]
            for _ in range(5 + at):
                steps.append(steps[-1] + pace * (0.5 + noise.random()))
            counts = Counts(accepted=3 + at, rounds=5 + at, drafts=4, drafted=drafted + at, emitted=8 + 2 * at)
            told = {"queue": 0.01, "prefill": 0.15, "draft": 0.02, "verify": 0.3, "counts": counts, "prompt_tokens": 9}
            answers.append(answer(0.0, *steps, tokens=9 + at, text="x" * (20 + at), **told))
        stretches.append(stretch(answers, 4.0 + noise.random(), number, cpu_seconds=3.0))
    return stretches


@pytest.fixture(scope="module")
def point() -> Point:
    return make_point(
        measured(side(1, 0.1, 10), side(2, 0.07, 12), Load("poisson", 2.0, 4, 3)),
        Slo(ttft=0.45, tpot=0.06),
        Price(2.0, "EUR", "2026-11-29"),
    )


def test_the_same_records_give_the_recorded_numbers(point: Point) -> None:
    """Fields that came later are not in the recording."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    assert kept(rounded(asdict(point)), recorded) == recorded


def kept(value: Any, recorded: Any) -> Any:
    """As much of `value` as the recording has."""
    if isinstance(recorded, dict):
        return {key: kept(value[key], recorded[key]) for key in recorded}
    if isinstance(recorded, list) and len(value) == len(recorded):
        return [kept(one, other) for one, other in zip(value, recorded, strict=True)]
    return value
