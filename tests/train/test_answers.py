from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_training import tiny_target

from gamaneh.engine.llm import LLM
from gamaneh.errors import ModelError
from gamaneh.options import EngineOptions, SamplingParams
from gamaneh.testing import EOS_ID
from gamaneh.train import answers
from gamaneh.train.answers import AnswerPlan, answer_questions, read_answers, repeats
from gamaneh.train.samples import Question

pytestmark = pytest.mark.usefixtures("one_thread")

PLAN = AnswerPlan(max_tokens=12, temperatures=(0.0, 1.0), seed=5, batch=3)
QUESTIONS = [Question(tuple(f"number {at}".encode()), "all") for at in range(7)]


def ignore(done: int, total: int) -> None:
    """Nobody watches."""


def test_answers_are_those_of_plain_decoding_in_the_order_of_the_prompts(tmp_path: Path) -> None:
    loaded = tiny_target()
    llm = LLM(loaded, options=EngineOptions(max_batch=1))

    pairs = answer_questions(loaded, QUESTIONS, PLAN, tmp_path / "a.jsonl", ignore)

    assert [question for question, _ in pairs] == QUESTIONS
    for at, (question, answer) in enumerate(pairs):
        params = SamplingParams(temperature=PLAN.temperatures[at % 2], seed=PLAN.seed + at, max_tokens=12)
        generation = llm.generate([list(question.tokens)], params)[0]
        ended = [EOS_ID] if generation.finish_reason == "stop" else []
        assert answer == [*generation.tokens, *ended]


def test_a_broken_run_goes_on_with_what_was_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded, file = tiny_target(), tmp_path / "a.jsonl"
    whole = answer_questions(loaded, QUESTIONS, PLAN, tmp_path / "whole.jsonl", ignore)
    written = answers.append_to

    def break_after_three(path: Path, content: bytes) -> None:
        if len(read_answers(file)) == 3:
            written(path, content[:7])
            raise KeyboardInterrupt
        written(path, content)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(answers, "append_to", break_after_three)
        answer_questions(loaded, QUESTIONS, PLAN, file, ignore)
    ticks: list[tuple[int, int]] = []
    pairs = answer_questions(loaded, QUESTIONS, PLAN, file, lambda done, total: ticks.append((done, total)))

    assert (ticks[0], pairs) == ((3, 7), whole)


def test_another_plan_makes_other_answers_in_the_same_file(tmp_path: Path) -> None:
    loaded, file = tiny_target(), tmp_path / "a.jsonl"

    answer_questions(loaded, QUESTIONS, PLAN, file, ignore)
    pairs = answer_questions(loaded, QUESTIONS, replace(PLAN, max_tokens=4), file, ignore)

    assert max(len(answer) for _, answer in pairs) == 4
    assert len(read_answers(file)) == 14


def test_prompts_without_time_or_room_are_left_out(tmp_path: Path) -> None:
    loaded = tiny_target()
    long = Question((65,) * 600, "all")

    in_time = answer_questions(loaded, [long, *QUESTIONS], PLAN, tmp_path / "a.jsonl", ignore)
    late = answer_questions(loaded, QUESTIONS, replace(PLAN, seconds=1e-9), tmp_path / "b.jsonl", ignore)

    assert ([question for question, _ in in_time], late) == (QUESTIONS, [])


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([7] * 33, True),
        ([7] * 31, False),
        ([1, 2, 3] * 12, True),
        (list(range(40)) * 2, False),
        (list(range(40)) * 3, True),
        (list(range(200)), False),
        ([*[7] * 40, 8], False),
    ],
)
def test_going_round_in_circles_is_noticed(tokens: list[int], expected: bool) -> None:
    assert repeats(tokens) is expected


def test_an_answer_in_circles_ends_early(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answers, "repeats", lambda tokens: len(tokens) >= 8)
    plan = replace(PLAN, max_tokens=30)

    pairs = answer_questions(tiny_target(), QUESTIONS, plan, tmp_path / "a.jsonl", ignore)

    assert max(len(answer) for _, answer in pairs) < 30


def test_a_full_disk_is_an_error_that_says_so(tmp_path: Path) -> None:
    full = Path("/dev/full")

    with pytest.raises(ModelError, match=r"/dev/full must be writable and its disk have room \(No space left"):
        answers.append_to(full, b"x" * 100_000)
