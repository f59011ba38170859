"""Answers the workload once plain and once with each proposer at its largest draft length, and keeps what happened."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median

from gamaneh.bench.advise.costs import Cell
from gamaneh.bench.advise.timing import RecordedSteps
from gamaneh.bench.advise.trace import Round, Trace
from gamaneh.bench.advise.workload import WorkloadRequest
from gamaneh.bench.time_limit import TimeLimit
from gamaneh.core import StepReport
from gamaneh.engine.llm import LLM, Generation
from gamaneh.errors import InvalidRequest
from gamaneh.options import SamplingParams, SpeculationOptions

FEWEST_ANSWERS = 2
"""Requests that are answered however little time there is."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A request with its answer."""

    request: WorkloadRequest
    answer: Generation

    @property
    def decode_seconds(self) -> float:
        return self.answer.seconds - self.answer.first_token_seconds


@dataclass(frozen=True, slots=True)
class PlainRecording:
    """The plain answers, and the prefills at the pace at which rounds were timed."""

    answers: tuple[Answered, ...]
    prefill_seconds: dict[str, float]

    @property
    def decode_share(self) -> float:
        """Seconds after the first token / all seconds, of the answers one at a time."""
        whole = sum(one.answer.seconds for one in self.answers)
        return sum(one.decode_seconds for one in self.answers) / whole

    @property
    def lengths(self) -> list[int]:
        """Tokens of each answer."""
        return [len(one.answer.tokens) for one in self.answers]

    @property
    def context_lengths(self) -> list[int]:
        """Tokens of each prompt and its answer."""
        return [len(one.request.prompt) + len(one.answer.tokens) for one in self.answers]


@dataclass(frozen=True, slots=True)
class Recording:
    """What one proposer did.

    Args:
        draft_seconds: by requests and depth, at the pace at which rounds were timed.
        reading_seconds: of one token of a prompt.
        differing: answers that are not the plain ones.
    """

    traces: tuple[Trace, ...]
    draft_seconds: dict[Cell, list[float]]
    reading_seconds: float
    differing: int


def record_plain(
    llm: LLM,
    requests: Sequence[WorkloadRequest],
    params: SamplingParams,
    steps: RecordedSteps,
    limit: TimeLimit,
    passes: int,
) -> PlainRecording:
    """Answer requests, one at a time: all of them, or the first ones where the time does not suffice for all.

    Args:
        passes: how often each request will be answered again before the limit.

    Raises:
        InvalidRequest: a request cannot be answered; the message names it.
    """
    answers: list[Answered] = []
    for one in _answers(llm, requests, params, SpeculationOptions()):
        answers.append(one)
        mean = sum(each.answer.seconds for each in answers) / len(answers)
        if len(answers) >= FEWEST_ANSWERS and mean * (1 + passes * (len(answers) + 1)) > limit.left:
            break
    plain_step = steps.whole.seconds(1, 0)
    measured = _seconds_per_token(answers)
    pace = plain_step / measured if measured else 1.0
    prefills = {one.request.id: one.answer.first_token_seconds * pace for one in answers}
    return PlainRecording(tuple(answers), prefills)


def record(
    llm: LLM,
    speculation: SpeculationOptions,
    plain: PlainRecording,
    params: SamplingParams,
    steps: RecordedSteps,
    limit: TimeLimit,
) -> Recording:
    """Answer all requests with drafts of the largest length, or the first ones that the time suffices for.

    Raises:
        InvalidRequest: a request cannot be answered; the message names it.
    """
    requests = [one.request for one in plain.answers]
    answers: list[Answered] = []
    for answered in _answers(llm, requests, params, speculation):
        answers.append(answered)
        if limit.over and len(answers) >= FEWEST_ANSWERS:
            break
    largest = speculation.draft_length or 0
    pairs = zip(answers, plain.answers, strict=False)
    drafts = _draft_seconds(answers, steps)
    return Recording(
        traces=tuple(_trace(one, largest, plain.prefill_seconds[one.request.id]) for one in answers),
        draft_seconds=drafts,
        reading_seconds=_reading_seconds(answers, drafts, steps),
        differing=sum(one.answer.tokens != other.answer.tokens for one, other in pairs),
    )


def limited(params: SamplingParams, request: WorkloadRequest) -> SamplingParams:
    """The parameters with the request's own length."""
    return replace(params, max_tokens=request.max_tokens, min_tokens=min(params.min_tokens, request.max_tokens))


def _answers(
    llm: LLM, requests: Sequence[WorkloadRequest], params: SamplingParams, speculation: SpeculationOptions
) -> Iterable[Answered]:
    for request in requests:
        answer = llm.generate(
            [request.prompt], limited(params, request), references=[request.reference], speculation=speculation
        )[0]
        if answer.error is not None:
            raise InvalidRequest(f"prompt {request.id}", "must be one the model can answer", answer.error)
        yield Answered(request, answer)


def _seconds_per_token(answers: Sequence[Answered]) -> float:
    tokens = sum(max(len(one.answer.tokens) - 1, 0) for one in answers)
    return sum(one.decode_seconds for one in answers) / tokens if tokens else 0.0


def _trace(one: Answered, largest: int, prefill_seconds: float) -> Trace:
    return Trace(
        id=one.request.id,
        category=one.request.category,
        language=one.request.language,
        prompt_tokens=len(one.request.prompt),
        largest=largest,
        rounds=tuple(_rounds(one.answer)),
        prefill_seconds=prefill_seconds,
    )


def _rounds(answer: Generation) -> Iterable[Round]:
    """What a last draft holds beyond the end of the answer is of no use."""
    for report in answer.reports:
        yield Round(report.depth, report.drafted, min(report.accepted, report.emitted), report.emitted)


def _draft_seconds(answers: Sequence[Answered], steps: RecordedSteps) -> dict[Cell, list[float]]:
    """Of all rounds but the first of each answer, in which the proposer reads the prompt."""
    seconds: dict[Cell, list[float]] = defaultdict(list)
    for one in answers:
        for report in one.answer.reports[1:]:
            seconds[1, report.depth].append(_paced(report, steps))
    return seconds


def _reading_seconds(answers: Sequence[Answered], drafts: dict[Cell, list[float]], steps: RecordedSteps) -> float:
    firsts = [
        (_paced(one.answer.reports[0], steps) - median(drafts[1, one.answer.reports[0].depth]))
        / len(one.request.prompt)
        for one in answers
        if one.answer.reports and (1, one.answer.reports[0].depth) in drafts
    ]
    return max(median(firsts), 0.0) if firsts else 0.0


def _paced(report: StepReport, steps: RecordedSteps) -> float:
    return steps.at_pace(report.draft_seconds, report.verify_seconds, 1, report.drafted)
