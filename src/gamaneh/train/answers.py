"""The target answers prompts: in batches, written down one by one, so that a run that was broken off goes on."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gamaneh.core import FinishReason, Request, StepOutput
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.engine import Engine
from gamaneh.errors import GamanehError
from gamaneh.files import append_to
from gamaneh.models.loading import LoadedModel
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.train.runs import Tick
from gamaneh.train.samples import Question

LONGEST_PERIOD = 48
LEAST_REPEATED = 32
"""Tokens that must have come again before an answer counts as going round in circles."""

CHECK_EVERY = 8


@dataclass(frozen=True, slots=True)
class AnswerPlan:
    """How prompts are answered.

    Args:
        max_tokens: longest answer.
        temperatures: taken in turns, 0 is greedy.
        seed: what the sampled answers are drawn with.
        batch: how many are answered at once.
        seconds: when to stop; what is unfinished then is left out. None goes on to the end.
    """

    max_tokens: int
    temperatures: Sequence[float]
    seed: int
    batch: int
    seconds: float | None = None

    def params(self, index: int) -> SamplingParams:
        """Of the prompt with this number."""
        temperature = self.temperatures[index % len(self.temperatures)]
        return SamplingParams(temperature=temperature, seed=self.seed + index, max_tokens=self.max_tokens)


@dataclass(slots=True)
class _Task:
    """One prompt on its way; `key` tells it from all others, and from itself under another plan."""

    key: str
    question: Question
    params: SamplingParams
    answer: list[int] = field(default_factory=list)
    checked: int = 0


def answer_questions(
    loaded: LoadedModel, questions: Sequence[Question], plan: AnswerPlan, file: Path, tick: Tick
) -> list[tuple[Question, list[int]]]:
    """Every prompt with its answer, end token included, in the order of the prompts.

    Answers that stand in `file` are not made again. One that goes round in circles ends there. Prompts that do not
    fit into the model's context, and those that were not finished in time, are left out.

    Raises:
        ModelError: `file` cannot be written.
    """
    tasks = [_task(index, question, plan) for index, question in enumerate(questions)]
    known = read_answers(file)
    missing = [task for task in tasks if task.key not in known]
    tick(len(tasks) - len(missing), len(tasks))
    for done, task in enumerate(_finished(loaded, missing, plan), start=1 + len(tasks) - len(missing)):
        known[task.key] = task.answer
        append_to(file, f"{json.dumps({'key': task.key, 'answer': task.answer})}\n".encode())
        tick(done, len(tasks))
    return [(task.question, known[task.key]) for task in tasks if known.get(task.key)]


def read_answers(file: Path) -> dict[str, list[int]]:
    """Answers by key. A last line that was cut off is dropped from the file, so that more can be appended."""
    if not file.is_file():
        return {}
    content = file.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with file.open("r+b") as partial:
            partial.truncate(len(whole))
    rows = [json.loads(line) for line in whole.splitlines()]
    return {row["key"]: row["answer"] for row in rows}


def repeats(tokens: Sequence[int]) -> bool:
    """Whether the end says the same over and over: two or more copies, `LEAST_REPEATED` tokens at least."""
    for period in range(1, LONGEST_PERIOD + 1):
        run = max(2 * period, LEAST_REPEATED)
        if len(tokens) >= run + period and tokens[-run:] == tokens[-run - period : -period]:
            return True
    return False


def _task(index: int, question: Question, plan: AnswerPlan) -> _Task:
    params = plan.params(index)
    what = [question.tokens, params.temperature, params.seed, params.max_tokens]
    return _Task(hashlib.sha256(json.dumps(what).encode()).hexdigest()[:24], question, params)


def _finished(loaded: LoadedModel, tasks: Sequence[_Task], plan: AnswerPlan) -> Iterator[_Task]:
    """The tasks in the order in which they end; there are always enough of them in the engine to fill its batch."""
    # Bits that depend on the batch are good enough to learn from, and fixed tiles cost time.
    options = EngineOptions(max_batch=plan.batch, step_tokens=max(512, plan.batch), invariant=False)
    engine = build_engine(loaded, None, SpeculationOptions(), options)
    waiting = iter([task for task in tasks if len(task.question.tokens) < engine.max_context])
    running: dict[str, _Task] = {}
    deadline = time.monotonic() + (plan.seconds or float("inf"))
    while _fill(engine, waiting, running, plan.batch) and time.monotonic() < deadline:
        for output in engine.step():
            if _take(engine, running[output.request_id], output, loaded.tokenizer.eos_ids):
                yield running.pop(output.request_id)


def _fill(engine: Engine, waiting: Iterator[_Task], running: dict[str, _Task], batch: int) -> bool:
    while len(running) < batch and (task := next(waiting, None)) is not None:
        engine.add(Request(task.question.tokens, task.params, id=task.key))
        running[task.key] = task
    return bool(running)


def _take(engine: Engine, task: _Task, output: StepOutput, eos_ids: Sequence[int]) -> bool:
    """Add what a step brought; true when the answer has ended."""
    task.answer += output.tokens
    if output.finish_reason is FinishReason.ERROR:
        raise GamanehError(f"answer to a prompt of {len(task.question.tokens)} tokens failed: {output.error}")
    if output.finish_reason is not None:
        task.answer += eos_ids[:1] if output.finish_reason is FinishReason.STOP else ()
        return True
    if len(task.answer) - task.checked < CHECK_EVERY:
        return False
    task.checked = len(task.answer)
    return repeats(task.answer) and engine.abort(output.request_id) is not None
