"""What is audited, a target twice, plain and speculating; how it is asked; and the rules that only an audit has."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gamaneh.bench.audit.findings import Exposure
from gamaneh.core import ROOT, Draft, Request, Rule, StepOutput, StepReport, TargetRows, Verdict
from gamaneh.engine.engine import Engine
from gamaneh.errors import InvalidRequest
from gamaneh.metrics.collector import SpeculationStats
from gamaneh.options import SamplingParams
from gamaneh.sampling.rules import choose_rule

Judges = Callable[[int, Rule], Rule]
"""Number of a question and the rule that its request would have -> the rule that it gets."""


@dataclass(frozen=True, slots=True)
class Asked:
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
    questions: Sequence[Asked],
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


def refuse_failures(questions: Sequence[Asked], answers: Sequence[Answer]) -> None:
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


def _add(engine: Engine, number: int, question: Asked, judges: Judges) -> str:
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
    clock, moments = engine.clock, itertools.count()
    engine.clock = lambda: float(next(moments))
    try:
        yield
    finally:
        engine.clock = clock


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


Look = Callable[[TargetRows, int, int], float]
"""The target's rows, position in the output, dictated token -> what is to be remembered."""


class Careless:
    """The planted fault: as `rule`, but the candidate that is to be refused is kept, and one token follows it."""

    def __init__(self, rule: Rule) -> None:
        self.name, self.exact, self.trees = rule.name, False, rule.trees
        self.wants_probs, self.reads_probs = rule.wants_probs, rule.reads_probs
        self.kept = 0
        self._rule = rule

    def judge(self, draft: Draft, target: TargetRows) -> Verdict:
        verdict = self._rule.judge(draft, target)
        refused = draft.children(verdict.path[-1] if verdict.path else ROOT)
        if verdict.bonus or not refused:
            return verdict
        self.kept += 1
        node = refused[0]
        tokens = (*draft.path_tokens(node), target.pick(node))
        return Verdict(draft.path(node), tokens, bonus=not draft.children(node))


class Dictated:
    """Emits the tokens that it is told, whatever the target wants, and looks at the target's rows before each.

    Args:
        tokens: at least as many as the request may emit.
    """

    name = "dictated"
    exact = False
    wants_probs = False
    reads_probs = True
    trees = False

    def __init__(self, tokens: Sequence[int], look: Look) -> None:
        self.seen: list[float] = []
        self._tokens, self._look = tokens, look

    def judge(self, draft: Draft, target: TargetRows) -> Verdict:
        position = len(self.seen)
        token = self._tokens[position]
        self.seen.append(self._look(target, position, token))
        return Verdict((), (token,), bonus=True)


MOST_TOKENS = 64
"""Of a draft's distribution, so many most likely tokens are kept."""


@dataclass(frozen=True, slots=True)
class Guide:
    """The law of a draft's first candidates, as far as it does not depend on what was drawn.

    Args:
        tokens: `[num_tokens]` ids; none where the draft's own draw would be told.
        weights: `[num_tokens]` their probabilities.
    """

    tokens: Tensor
    weights: Tensor

    def favour(self, probs: Tensor) -> Tensor:
        """Target probabilities `[vocab]` -> how much likelier the draft finds each token `[vocab]`."""
        if len(self.tokens) == 0:
            return probs
        ratios = torch.zeros_like(probs)
        ratios[self.tokens] = self.weights / probs[self.tokens].clamp(min=torch.finfo(probs.dtype).tiny)
        return ratios


class Noting:
    """Judges as another rule does, and notes a guide for the first token of each round with a draft.

    Args:
        coupled: drafts are drawn with the target's own noise. Then what was drawn tells about the
            target's draw, and the guides are empty.
    """

    def __init__(self, rule: Rule, *, coupled: bool) -> None:
        self.name, self.exact, self.trees = rule.name, rule.exact, rule.trees
        self.wants_probs, self.reads_probs = rule.wants_probs, rule.reads_probs
        self.guides: dict[int, Guide] = {}
        self._rule, self._coupled, self._emitted = rule, coupled, 0

    def judge(self, draft: Draft, target: TargetRows) -> Verdict:
        if len(draft):
            self.guides[self._emitted] = _guide(draft, self._coupled)
        verdict = self._rule.judge(draft, target)
        self._emitted += len(verdict.tokens)
        return verdict


NO_GUIDES: Mapping[int, Guide] = {}


def _guide(draft: Draft, coupled: bool) -> Guide:
    if coupled:
        return Guide(torch.empty(0, dtype=torch.long), torch.empty(0, dtype=torch.float64))
    first = draft.children(ROOT)
    if draft.probs is None:
        return Guide(torch.tensor([draft.tokens[node] for node in first]), torch.ones(len(first), dtype=torch.float64))
    row = draft.probs[first[0]].double()
    top = row.topk(min(MOST_TOKENS, len(row)))
    return Guide(top.indices, top.values)


SEEDS = 1 << 63
"""Seeds are counted up from that of the audit, and begin again here."""


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt as token ids."""

    id: str
    prompt: Sequence[int]
    reference: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """Two engines over the same weights, and what to ask them.

    Args:
        plain: does not speculate.
        speculative: does, by its own `speculation`.
        seed: first of the seeds that are counted up.
        tick: called after each answer.
    """

    plain: Engine
    speculative: Engine
    cases: Sequence[Case]
    seed: int = 0
    tick: Callable[[], None] = lambda: None

    def rule(self, params: SamplingParams) -> Rule:
        """The rule that judges requests with these parameters."""
        speculation = self.speculative.speculation
        return choose_rule(speculation.rule, params, self.speculative.gives_probs(speculation), speculation)

    def questions(self, params: SamplingParams, *, draws: int = 1, first_seed: int | None = None) -> list[Asked]:
        """Each prompt `draws` times in a row, all with different seeds from `first_seed` on; None for no seed."""
        seeds = self._seeds(first_seed)
        return [
            Asked(case.id, case.prompt, replace(params, seed=next(seeds)), case.reference)
            for case in self.cases
            for _ in range(draws)
        ]

    def _seeds(self, first: int | None) -> Iterator[int | None]:
        number = 0
        while True:
            yield None if first is None else (self.seed + first + number) % SEEDS
            number += 1


class PlantedFault:
    """One careless rule per request, counted together."""

    def __init__(self) -> None:
        self._planted: list[Careless] = []

    @property
    def kept(self) -> int:
        """Candidates that were kept wrongly."""
        return sum(careless.kept for careless in self._planted)

    def plant(self, rule: Rule) -> Careless:
        """The same rule with the fault."""
        self._planted.append(Careless(rule))
        return self._planted[-1]
