"""Parity: the speculative tokens are those of plain decoding, one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from gamaneh.bench.audit.findings import AuditCheck, AuditOutcome, Departure, Exposure, Planted
from gamaneh.bench.audit.subject import Answer, Asked, Dictated, PlantedFault, Subject, ask, exposure, refuse_failures
from gamaneh.core import ROOT, TargetRows, Use
from gamaneh.engine.engine import Engine
from gamaneh.options import SamplingParams
from gamaneh.prefix import common_prefix
from gamaneh.sampling import noise

HEADROOM = 2.0
"""A tie is a margin within so many times the largest change that a batch was seen to make."""


def check_parity(name: str, subject: Subject, params: SamplingParams) -> AuditCheck:
    """Answer every prompt plain and alone, and speculatively both alone and all together, and compare.

    In shape-invariant execution a single difference fails. Without it, differences are looked at: where
    plain decoding's own choice was as close as rounding, they are ties and do not fail.

    Args:
        params: greedy, or with a temperature, in which case every prompt gets a seed.
    """
    questions = subject.questions(params, first_seed=None if params.greedy else 0)
    rule = subject.rule(questions[0].params).name
    plain = ask(subject.plain, questions, alone=True, tick=subject.tick)
    refuse_failures(questions, plain)
    ways = {
        "alone": ask(subject.speculative, questions, alone=True, tick=subject.tick),
        "together": ask(subject.speculative, questions, tick=subject.tick),
    }
    differing = [
        (way, question, ours, theirs)
        for way, answers in ways.items()
        for question, ours, theirs in zip(questions, plain, answers, strict=True)
        if ours.tokens != theirs.tokens or theirs.error
    ]
    rounding = None
    if differing and not subject.speculative.invariant:
        rounding = _rounding(subject.plain, questions, plain)
    differences = tuple(_difference(subject.plain, *parts, rounding) for parts in differing)
    planted = _plant(subject, questions, plain)
    seen = exposure([answer for answers in ways.values() for answer in answers])
    outcome, reason = _judge(seen, differences, planted)
    return AuditCheck(name, rule, outcome, reason, seen, differences, rounding, planted=planted)


def _judge(seen: Exposure, differences: Sequence[Departure], planted: Planted) -> tuple[AuditOutcome, str]:
    wrong = [difference for difference in differences if not difference.tie]
    if wrong:
        return AuditOutcome.FAIL, f"{len(wrong)} of {seen.outputs} outputs are not those of plain decoding"
    if not seen.drafted:
        return AuditOutcome.INCONCLUSIVE, "the proposer made no draft, so nothing was put to the test"
    if not planted.kept:
        return AuditOutcome.INCONCLUSIVE, "no candidate was refused, so a rule that keeps all of them would not show"
    if not planted.found:
        return AuditOutcome.INCONCLUSIVE, "the planted fault was not found"
    ties = f", {len(differences)} of them but for ties within rounding" if differences else ""
    return (
        AuditOutcome.PASS,
        f"all {seen.outputs} outputs are those of plain decoding{ties}; the planted fault was found",
    )


def _plant(subject: Subject, questions: Sequence[Asked], plain: Sequence[Answer]) -> Planted:
    """The same comparison with a faulty rule, one prompt after the other until it shows."""
    fault = PlantedFault()
    for question, expected in zip(questions, plain, strict=True):
        (answer,) = ask(subject.speculative, [question], judges=lambda at, own: fault.plant(own), tick=subject.tick)
        if answer.tokens != expected.tokens:
            return Planted(fault.kept, found=True)
    return Planted(fault.kept, found=False)


def _difference(
    engine: Engine, way: str, question: Asked, plain: Answer, speculative: Answer, rounding: float | None
) -> Departure:
    position = common_prefix(plain.tokens, speculative.tokens)
    margin = None if speculative.error else _margins(engine, question, plain.tokens[:position])[-1]
    return Departure(
        prompt=question.id,
        way=way,
        position=position,
        plain_token=_at(plain.tokens, position),
        speculative_token=_at(speculative.tokens, position),
        margin=margin if margin is not None and math.isfinite(margin) else None,
        tie=margin is not None and rounding is not None and margin <= HEADROOM * rounding,
        error=speculative.error,
    )


def _rounding(engine: Engine, questions: Sequence[Asked], answers: Sequence[Answer]) -> float:
    """Largest change of a margin of plain decoding when its requests run together instead of alone."""
    written = [answer.tokens[:-1] for answer in answers]
    alone = [_margins(engine, *pair) for pair in zip(questions, written, strict=True)]
    together = _dictate(engine, questions, written)
    pairs = zip(_joined(alone), _joined(together), strict=True)
    return max((abs(one - other) for one, other in pairs if math.isfinite(one - other)), default=0.0)


def _joined(lists: Sequence[Sequence[float]]) -> Iterator[float]:
    return (value for values in lists for value in values)


def _margins(engine: Engine, question: Asked, written: Sequence[int]) -> list[float]:
    return _dictate(engine, [question], [written])[0]


def _dictate(engine: Engine, questions: Sequence[Asked], written: Sequence[Sequence[int]]) -> list[list[float]]:
    """Margins of the target's choice after each beginning of what was written, the whole of it included."""
    judges = [Dictated([*tokens, 0], _margin_of(question)) for question, tokens in zip(questions, written, strict=True)]
    shortened = [
        replace(question, params=_ending(question.params, len(tokens) + 1))
        for question, tokens in zip(questions, written, strict=True)
    ]
    ask(engine, shortened, judges=lambda number, own: judges[number])
    return [judge.seen for judge in judges]


def _ending(params: SamplingParams, length: int) -> SamplingParams:
    """The same parameters, for an output of `length` tokens."""
    return replace(params, max_tokens=length, min_tokens=min(params.min_tokens, length))


def _margin_of(question: Asked) -> _Margin:
    return _Margin(question.params, len(question.prompt))


class _Margin:
    """By how much the target's choice beats its second best, the noise of a seeded request included."""

    def __init__(self, params: SamplingParams, prompt_len: int) -> None:
        self._params, self._prompt_len = params, prompt_len

    def __call__(self, target: TargetRows, position: int, token: int) -> float:
        scores = target.scores(ROOT).double()
        if self._params.seed is not None and not self._params.greedy:
            tokens = torch.arange(len(scores))
            scores = scores + noise.gumbel(self._params.seed, self._prompt_len + position, Use.TARGET, tokens)
        best, second = scores.topk(2).values.tolist()
        return float(best - second)


def _at(tokens: Sequence[int], position: int) -> int | None:
    return tokens[position] if position < len(tokens) else None
