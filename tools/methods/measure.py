"""Measures the methods of one target.

Every prompt is answered plain, then by each method, then plain again; the order of the methods turns from prompt
to prompt. No engine answers a prompt twice, so that nothing that remembers answers knows them already.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch

from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.stats import geometric_mean
from gamaneh.core import PLAIN, StepReport
from gamaneh.engine.llm import LLM, Generation
from gamaneh.errors import GamanehError, InvalidRequest
from gamaneh.metrics.collector import SpeculationStats
from gamaneh.options import SamplingParams
from tools.cases import Case
from tools.methods.figures import ALL, Row, TargetFigures
from tools.methods.plan import Effort, Method, Parts, choose, choose_cases, methods_of

Say = Callable[[str], None]

WARM_UP = "Count from one to ten in words."
WARM_UP_TOKENS = 8

PLAIN_METHOD = Method("plain", PLAIN)


@dataclass(frozen=True, slots=True)
class _Answered:
    """One prompt, answered plain before and after, and by a method in both ways."""

    category: str
    plain: tuple[Generation, Generation]
    adaptive: Generation
    fixed: Generation

    @property
    def ratio(self) -> float | None:
        """Plain seconds per token / the method's."""
        if len(self.adaptive.tokens) < 2:
            return None
        plain = statistics.mean(map(_seconds_per_token, self.plain))
        return plain / _seconds_per_token(self.adaptive)

    @property
    def differs(self) -> bool:
        expected = self.plain[0].tokens
        return any(answer.tokens != expected[: len(answer.tokens)] for answer in (self.adaptive, self.fixed))


@dataclass(slots=True)
class _Contestant:
    """A method with its engines, and its answers so far."""

    method: Method
    adaptive: LLM
    fixed: LLM
    answered: list[_Answered] = field(default_factory=list)

    @property
    def memory_bytes(self) -> int:
        return sum(proposer.memory_bytes() for proposer in self.adaptive.engine.proposers.values())


class MethodsBench:
    """The measurements of one target.

    Args:
        say: told what comes next.
    """

    def __init__(self, parts: Parts, prompts: Sequence[Prompt], effort: Effort, say: Say) -> None:
        self.parts, self.prompts, self.effort, self.say = parts, prompts, effort, say
        self._left_out: dict[str, str] = {}
        self._memory: dict[str, int] = {}
        self._plain_speed: dict[str, float] = {}

    def run(self, names: Sequence[str] | None = None) -> TargetFigures:
        """Measure the methods of these names; None takes all.

        Raises:
            InvalidOption: a name is unknown, or a category has no prompt.
            InvalidRequest: a prompt cannot be answered.
        """
        methods = choose(methods_of(self.parts), names)
        rows = [row for temperature in self.effort.temperatures for row in self._rows(methods, temperature)]
        target = self.parts.target
        return TargetFigures(
            target=target.name,
            drafts=list(self.parts.drafts),
            dtype=str(target.dtype).removeprefix("torch."),
            invariant=PLAIN_METHOD.open(self.parts, None).engine.invariant,
            threads=torch.get_num_threads(),
            rows=rows,
            memory_bytes=self._memory,
            left_out=self._left_out,
            plain_tokens_per_second=self._plain_speed,
        )

    def _rows(self, methods: Sequence[Method], temperature: float) -> list[Row]:
        self.say(f"temperature {temperature:g}: opening {len(methods)} methods")
        plain = PLAIN_METHOD.open(self.parts, None)
        contestants = [contestant for method in methods if (contestant := self._open(method)) is not None]
        self._warm_up(plain, contestants, temperature)
        cases = choose_cases(plain, self.prompts, self.effort)
        for number, case in enumerate(cases):
            self.say(f"temperature {temperature:g}: prompt {number + 1} of {len(cases)}, {case.id}")
            self._answer(plain, _turned(contestants, number), case, temperature)
        if contestants:
            self._plain_speed[f"{temperature:g}"] = _tokens_per_second(contestants[0].answered)
        self._memory |= {contestant.method.name: contestant.memory_bytes for contestant in contestants}
        return [row for contestant in contestants for row in _rows_of(contestant, self.effort.categories, temperature)]

    def _open(self, method: Method) -> _Contestant | None:
        try:
            fixed = method.open(self.parts, self.effort.draft_length)
            return _Contestant(method, method.open(self.parts, None), fixed)
        except GamanehError as error:
            self._left_out[method.name] = str(error)
            return None

    def _warm_up(self, plain: LLM, contestants: Sequence[_Contestant], temperature: float) -> None:
        case = Case("warm-up", "", plain.tokenizer.encode(WARM_UP))
        params = self.effort.params(temperature, WARM_UP_TOKENS)
        for llm in (plain, *(llm for each in contestants for llm in (each.adaptive, each.fixed))):
            _ask(llm, case, params)

    def _answer(self, plain: LLM, contestants: Sequence[_Contestant], case: Case, temperature: float) -> None:
        params = self.effort.params(temperature, self.effort.tokens)
        few = self.effort.params(temperature, self.effort.fixed_tokens)
        before = _ask(plain, case, params)
        answers = [(_ask(each.adaptive, case, params), _ask(each.fixed, case, few)) for each in contestants]
        after = _ask(plain, case, params)
        for contestant, (adaptive, fixed) in zip(contestants, answers, strict=True):
            contestant.answered.append(_Answered(case.category, (before, after), adaptive, fixed))


def _ask(llm: LLM, case: Case, params: SamplingParams) -> Generation:
    answer = llm.generate([case.prompt], params, references=[case.reference])[0]
    if answer.error is not None:
        raise InvalidRequest(f"prompt {case.id}", "must be one the model can answer", answer.error)
    return answer


def _turned(contestants: Sequence[_Contestant], number: int) -> list[_Contestant]:
    first = number % max(len(contestants), 1)
    return [*contestants[first:], *contestants[:first]]


def _rows_of(contestant: _Contestant, categories: Sequence[str], temperature: float) -> Iterator[Row]:
    for category in (*categories, ALL):
        answered = [one for one in contestant.answered if category in (one.category, ALL)]
        yield _row(contestant.method.name, category, temperature, answered)


def _row(method: str, category: str, temperature: float, answered: Sequence[_Answered]) -> Row:
    ratios = [ratio for one in answered if (ratio := one.ratio) is not None]
    adaptive, fixed = _stats(one.adaptive for one in answered), _stats(one.fixed for one in answered)
    drafted = [report for one in answered for report in one.fixed.reports if report.depth]
    plain = _median_verify(report for one in answered for answer in one.plain for report in answer.reports)
    return Row(
        method=method,
        category=category,
        temperature=temperature,
        prompts=len(answered),
        speedup=geometric_mean(ratios) if ratios else None,
        tokens_per_round=adaptive.tokens_per_round,
        survival=tuple(fixed.survival()),
        draft_cost=statistics.median(report.draft_seconds for report in drafted) / plain if drafted else None,
        verify_cost=_median_verify(drafted) / plain if drafted else None,
        differing=sum(one.differs for one in answered),
    )


def _stats(answers: Iterator[Generation]) -> SpeculationStats:
    stats = SpeculationStats()
    for answer in answers:
        for report in answer.reports:
            stats.add(report)
    return stats


def _median_verify(reports: Sequence[StepReport] | Iterator[StepReport]) -> float:
    return statistics.median(report.verify_seconds for report in reports)


def _seconds_per_token(answer: Generation) -> float:
    return (answer.seconds - answer.first_token_seconds) / (len(answer.tokens) - 1)


def _tokens_per_second(answered: Sequence[_Answered]) -> float:
    return 1.0 / statistics.median(_seconds_per_token(answer) for one in answered for answer in one.plain)
