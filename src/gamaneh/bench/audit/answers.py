"""Questions to an engine, answered alone or together, with the request's own rule or with another in its place."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from gamaneh.bench.audit.findings import Exposure
from gamaneh.core import Request, Rule, StepOutput, StepReport
from gamaneh.engine.engine import Engine
from gamaneh.errors import InvalidRequest
from gamaneh.metrics.collector import SpeculationStats
from gamaneh.options import SamplingParams

Judges = Callable[[int, Rule], Rule]
"""Number of a question and the rule that its request would have -> the rule that it gets."""


@dataclass(frozen=True, slots=True)
class Question:
    """One prompt with everything that decides about its output."""

    id: str
    prompt: Sequence[int]
    params: SamplingParams
    reference: Sequence[int] = ()


@dataclass(slots=True)
class Answer:
    """What came back."""

    tokens: list[int] = field(default_factory=list)
    reports: list[StepReport] = field(default_factory=list)
    error: str | None = None

    def take(self, output: StepOutput) -> None:
        """Add what one step brought."""
        self.tokens += output.tokens
        self.error = output.error or self.error


def own_rule(number: int, rule: Rule) -> Rule:
    """Every request keeps its rule."""
    return rule


def ask(
    engine: Engine,
    questions: Sequence[Question],
    *,
    alone: bool = False,
    judges: Judges = own_rule,
    tick: Callable[[], None] = lambda: None,
) -> list[Answer]:
    """Answer all questions, one after the other or as many at once as the engine takes.

    Raises:
        InvalidRequest: a question breaks a rule of the engine.
    """
    answers = [Answer() for _ in questions]
    size = 1 if alone else max(len(questions), 1)
    for start in range(0, len(questions), size):
        numbers = range(start, min(start + size, len(questions)))
        with _steady(engine):
            added = {_add(engine, number, questions[number], judges): answers[number] for number in numbers}
            _run(engine, added, tick)
    return answers


def refuse_failures(questions: Sequence[Question], answers: Sequence[Answer]) -> None:
    """
    Raises:
        InvalidRequest: a question was not answered; it and its error are named.
    """
    for question, answer in zip(questions, answers, strict=True):
        if answer.error is not None:
            raise InvalidRequest(f"prompt {question.id}", "must be one the model can answer", answer.error)


def exposure(answers: Iterable[Answer]) -> Exposure:
    """What the rounds of these answers put to the test."""
    answers, stats = list(answers), SpeculationStats()
    for report in (report for answer in answers for report in answer.reports):
        stats.add(report)
    tokens = sum(len(answer.tokens) for answer in answers)
    return Exposure(len(answers), tokens, stats.rounds, stats.drafted, stats.accepted)


def _add(engine: Engine, number: int, question: Question, judges: Judges) -> str:
    # The rule of a sampled question is the judge's. A steady clock keeps its seed, which no rule but `match` promises.
    speculation = engine.speculation if question.params.greedy else replace(engine.speculation, rule="match")
    request_id = engine.add(
        Request(question.prompt, question.params, reference=question.reference, drafting=speculation)
    )
    sequence = next(one for one in engine.scheduler if one.request_id == request_id)
    sequence.rule = judges(number, sequence.rule)
    return request_id


@contextmanager
def _steady(engine: Engine) -> Iterator[None]:
    """Let every duration be the same, so that no proposer is left out for being slow and seeds decide everything.

    The engine learns these durations: its choices of draft lengths mean nothing afterwards.
    """
    clocks = engine.clock, engine.drafting.clock
    moments = itertools.count()
    engine.clock = engine.drafting.clock = lambda: float(next(moments))
    try:
        yield
    finally:
        engine.clock, engine.drafting.clock = clocks


def _run(engine: Engine, answers: Mapping[str, Answer], tick: Callable[[], None]) -> None:
    def note(report: StepReport) -> None:
        answers[report.request_id].reports.append(report)

    engine.observers.append(note)
    try:
        while engine.has_work:
            for output in engine.step():
                answers[output.request_id].take(output)
                if output.finish_reason is not None:
                    tick()
    finally:
        engine.observers.remove(note)
        for request_id in answers:
            engine.abort(request_id)
