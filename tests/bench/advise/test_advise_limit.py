"""Advice within a time limit, and what is left of it when it is interrupted."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from simulation import World, make_workload, simulated
from test_advise_verdicts import GOOD, QUESTION

from gamaneh.bench.advise import validate
from gamaneh.bench.advise.advice import Advice
from gamaneh.bench.advise.advisor import advise
from gamaneh.bench.advise.candidate import CandidateWorkshop
from gamaneh.bench.advise.verdict import Outcome
from gamaneh.bench.time_limit import TimeLimit
from gamaneh.options import EngineOptions


def within(minutes: float, world: World = GOOD, interrupt: str = "", count: int = 48) -> tuple[Advice, float]:
    """The advice and the minutes that it took; `interrupt` is the phase in which Ctrl-C is pressed."""

    def say(what: str) -> None:
        if interrupt and what.startswith(interrupt):
            raise KeyboardInterrupt

    question = replace(QUESTION, workload=make_workload(count))
    with simulated(world) as target:
        limit = TimeLimit(minutes, time.perf_counter)
        began = time.perf_counter()
        workshop = CandidateWorkshop(target, EngineOptions(max_batch=4, max_context=1024))
        advice = advise(workshop, question, say, limit=limit)
        return advice, (time.perf_counter() - began) / 60


def test_a_limit_shortens_the_whole_run_and_the_verdict_stays() -> None:
    whole, taken = within(0.0)
    assert whole.stopped is None
    short, shorter = within(taken / 2)
    assert shorter <= 0.55 * taken
    assert short.verdict.outcome is whole.verdict.outcome is Outcome.USE
    assert short.stopped == "out of time"
    assert 2 <= short.candidates[0].requests < whole.candidates[0].requests
    assert short.setting.requests == short.candidates[0].requests


def test_interrupted_before_the_real_run_it_gives_the_predictions() -> None:
    advice, _ = within(0.0, interrupt="validation")
    assert advice.stopped == "interrupted"
    assert advice.verdict.outcome is Outcome.NO_VERDICT
    assert [reason.key for reason in advice.verdict.reasons] == ["interrupted"]
    assert advice.candidates[0].rounds > 0


def test_interrupted_in_the_real_run_it_counts_the_units_that_all_ways_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answered, answer = [0], validate._Way.answer

    def interrupted(way: validate._Way, *rest: object) -> None:
        answered[0] += 1
        if answered[0] == 3 + 3 * 10 + 2:  # after the warm-up, ten units and one way of the next
            raise KeyboardInterrupt
        answer(way, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(validate._Way, "answer", interrupted)
    advice, _ = within(0.0)
    assert advice.validation is not None
    assert (advice.stopped, advice.validation.units) == ("interrupted", 10)
    assert advice.verdict.outcome is Outcome.USE


def test_interrupted_before_anything_was_measured_there_is_no_advice() -> None:
    with pytest.raises(KeyboardInterrupt):
        within(0.0, interrupt="drafts")
