"""The whole advisor in simulated time, where the right answer is known."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest
from simulation import World, make_workload, simulated

from gamaneh.bench.advise import advise_measure as measure
from gamaneh.bench.advise import validate
from gamaneh.bench.advise.advice import Advice
from gamaneh.bench.advise.advise_measure import Effort, timed_depths
from gamaneh.bench.advise.advisor import AdviceQuestion, advise
from gamaneh.bench.advise.candidate import CandidateWorkshop
from gamaneh.bench.advise.checklist import CODES, Status
from gamaneh.bench.advise.verdict import Outcome
from gamaneh.bench.advise.workload import Workload
from gamaneh.bench.result import Interval
from gamaneh.options import EngineOptions, SamplingParams

QUESTION = AdviceQuestion(
    workload=make_workload(),
    params=SamplingParams(seed=0, ignore_eos=True),
    batch=1,
    stated=True,
    batches=(1, 4),
    parts=(),
    only=(),
    memory_limit=10**12,
    serve=("gamaneh", "serve", "--model", "tiny"),
    effort=Effort(largest_k=6, repeats=1, depths=(1, 4, 6)),
)

GOOD = World(accuracy=0.85, candidate=0.02)
BAD = World(accuracy=0.05, candidate=0.4)
BUSY = World(step=lambda rows, context: max(1.0, rows / 4), accuracy=0.5, candidate=0.02)


@cache
def ask(world: World, workload: Workload | None = None, batch: int = 1, **more: object) -> Advice:
    question = replace(QUESTION, batch=batch, **more)  # type: ignore[arg-type]
    if workload is not None:
        question = replace(question, workload=workload)
    with simulated(world) as target:
        return advise(CandidateWorkshop(target, EngineOptions(max_batch=4, max_context=1024)), question)


def statuses(advice: Advice) -> dict[str, Status]:
    return {line.code: line.status for line in advice.checklist}


def test_cheap_good_drafts_are_advised() -> None:
    advice = ask(GOOD)
    assert advice.verdict.outcome is Outcome.USE
    assert advice.verdict.gain is not None and advice.verdict.gain.value > 1.5
    assert advice.verdict.command[:4] == ("gamaneh", "serve", "--model", "tiny")
    assert set(statuses(advice).values()) == {Status.PASS}


@pytest.mark.parametrize(
    ("world", "batch"),
    [
        (GOOD, 1),
        (GOOD, 4),
        (BAD, 1),
        (World(accuracy=0.8, candidate=0.1, read=0.05), 4),
        (World(step=lambda rows, context: 0.5 + rows / 8 + context / 1000), 1),
        (World(step=lambda rows, context: 1.0 + rows / 30, branches=2), 1),
    ],
)
def test_what_is_predicted_is_what_is_measured(world: World, batch: int) -> None:
    outcome = ask(world, batch=batch).validation
    assert outcome is not None
    assert outcome.deviation < 0.05


def test_a_bad_draft_is_not_advised() -> None:
    advice = ask(BAD)
    assert advice.verdict.outcome is Outcome.DO_NOT
    assert [reason.key for reason in advice.verdict.reasons] == ["no_gain", "too_few"]
    assert advice.verdict.command[-1] == "--plain"
    assert statuses(advice)["draft_faster"] is Status.FAIL
    assert statuses(advice)["confirmed"] is Status.FAIL


def test_what_other_proposers_gain_in_service_does_not_speak_for_a_bad_draft(monkeypatch: pytest.MonkeyPatch) -> None:
    real = validate._outcome
    served = Interval(1.5, 1.3, 1.8)
    monkeypatch.setattr(validate, "_outcome", lambda *arguments: replace(real(*arguments), served=served))
    verdict = ask.__wrapped__(BAD).verdict
    assert verdict.outcome is Outcome.DO_NOT
    assert [reason.key for reason in verdict.reasons] == ["others", "too_few"]
    assert verdict.command == QUESTION.serve


def test_a_draft_slower_than_the_target_is_measured_all_the_same() -> None:
    """An engine in service would leave it out after a few rounds, and nobody would know by how much it is too slow."""
    advice = ask(World(accuracy=0.3, candidate=5.0), make_workload(count=4, tokens=40))
    assert advice.unusable == ()
    assert advice.candidates[0].draft_step_ratio == pytest.approx(5.0, rel=0.05)
    assert advice.validation is not None and advice.validation.measured.value < 0.5
    assert advice.validation.served.value > 0.8
    assert advice.verdict.outcome is Outcome.DO_NOT


def test_very_short_answers_to_long_prompts_are_not_worth_it() -> None:
    reading = World(step=lambda rows, context: max(1.0, rows / 4), candidate=0.3)
    advice = ask(reading, make_workload(tokens=3, prompt=400))
    assert advice.verdict.outcome is Outcome.DO_NOT
    assert "short" in [reason.key for reason in advice.verdict.reasons]
    assert (statuses(advice)["decode_share"], statuses(advice)["answer_length"]) == (Status.FAIL, Status.FAIL)


def test_where_many_requests_fill_the_machine_it_is_said_that_fewer_would_gain() -> None:
    alone, together = ask(BUSY), ask(BUSY, batch=4)
    assert alone.verdict.outcome is Outcome.USE
    assert together.verdict.outcome is Outcome.DO_NOT
    assert "load" in [reason.key for reason in together.verdict.reasons]


def test_the_largest_batch_with_a_gain_is_named() -> None:
    assert ask(BUSY).verdict.largest_batch < 4
    assert ask(GOOD).verdict.largest_batch == 4


def test_no_memory_for_the_batch_decides_against_it() -> None:
    advice = ask(GOOD, memory_limit=1)
    assert advice.verdict.outcome is Outcome.DO_NOT
    assert advice.verdict.reasons[0].key == "no_memory"
    assert statuses(advice)["memory"] is Status.FAIL


def test_what_was_not_measured_is_not_passed() -> None:
    bare = make_workload(count=4, own=False)
    requests = tuple(replace(request, language="en") for request in bare.requests)
    advice = ask(World(), replace(bare, requests=requests), stated=False)
    for code in ("acceptance", "persian", "batch"):
        assert statuses(advice)[code] is Status.NOT_MEASURED


def test_without_a_candidate_nothing_is_measured_and_nothing_judged() -> None:
    with simulated(World(accuracy=float("nan"))) as target:
        workshop = CandidateWorkshop(target, EngineOptions(max_batch=4))
        workshop.candidates = lambda parts, only: iter(())  # type: ignore[assignment,method-assign]
        advice = advise(workshop, QUESTION)
    assert advice.verdict.outcome is Outcome.NO_VERDICT
    assert statuses(advice) == dict.fromkeys(CODES, Status.NOT_MEASURED)


def test_a_gain_that_few_requests_do_not_show_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    real = validate.ratio_of_sums
    monkeypatch.setattr(validate, "ratio_of_sums", lambda *seconds: replace(real(*seconds), low=0.9))
    advice = ask.__wrapped__(GOOD)
    assert advice.verdict.outcome is Outcome.NO_VERDICT
    assert advice.verdict.reasons[0].key == "uncertain"


def test_rounds_are_timed_up_to_the_largest_tree() -> None:
    with simulated(World(branches=2)) as target:
        candidates = list(CandidateWorkshop(target, EngineOptions(max_batch=4)).candidates(()))
    assert timed_depths(candidates, QUESTION.effort) == (1, 4, 6, 13, 18)
    assert timed_depths([], QUESTION.effort) == (1, 4, 6)


def test_a_candidate_that_fails_is_told_and_the_others_are_measured() -> None:
    def fail() -> None:
        raise RuntimeError("out of ideas")

    advice = ask(World(accuracy=0.85, candidate=0.02, fault=fail))
    assert [one.title for one in advice.candidates] == ["scripted"]
    assert [(one.title, one.reason) for one in advice.unusable] == [("broken", "RuntimeError: out of ideas")]
    assert advice.verdict.outcome is Outcome.USE


def test_predictions_that_do_not_hold_give_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    real = measure.time_steps
    monkeypatch.setattr(
        measure,
        "time_steps",
        lambda engine, requests, batches, depths, *rest: real(engine, requests, batches, (1,), *rest),
    )
    steep = World(step=lambda rows, context: 1.0 if rows < 3 else 3.0, accuracy=0.9, candidate=0.0)
    advice = ask(steep)
    assert advice.verdict.outcome is Outcome.NO_VERDICT
    assert advice.verdict.reasons[0].key == "disagreement"
