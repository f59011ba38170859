"""The checklist: what one should know before one speculates, line by line, with figures."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any

from gamaneh.bench.advise.advise_checks import CacheState, Fallback
from gamaneh.bench.advise.advise_measure import Measured
from gamaneh.bench.advise.memory_cost import Footprint
from gamaneh.bench.advise.predict import SpeedPrediction
from gamaneh.bench.advise.recording import PlainRecording
from gamaneh.bench.advise.validate import FIXED_WAY, PLAIN_WAY, Validation
from gamaneh.bench.advise.workload import PERSIAN, Workload
from gamaneh.options import SamplingParams

LEAST_DECODE_SHARE = 0.5
"""Below it even drafts that cost nothing could not halve the latency."""

LEAST_ANSWER = 32
"""Tokens below which a median answer counts as short."""

LEAST_GAPS = 100
"""Gaps between deliveries that it takes to speak of a 99th percentile."""


class Status(StrEnum):
    """How a line of the checklist came out."""

    PASS = "pass"
    FAIL = "fail"
    NOT_MEASURED = "not_measured"


@dataclass(frozen=True, slots=True)
class Phrase:
    """Something to be said in any language: which sentence, and what goes into it."""

    key: str
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Line:
    """One line: `code` names its subject, `figure` says what was found."""

    code: str
    status: Status
    figure: Phrase


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """Everything that was measured about one pick.

    Args:
        batch: requests at once that the advice is for; `stated` by the user, or assumed.
        by_language: predicted speed-up of the pick in each language.
        invariant: the target's bits do not depend on what is computed beside a row.
    """

    workload: Workload
    params: SamplingParams
    plain: PlainRecording
    pick: Measured
    prediction: SpeedPrediction
    by_language: dict[str, float]
    validation: Validation
    memory: Footprint
    caches: CacheState
    fallback: Fallback
    batch: int
    stated: bool
    invariant: bool


def make_checklist(evidence: Evidence) -> tuple[Line, ...]:
    """All lines, in the order of the questions that one asks."""
    return tuple(make(evidence) for make in _LINES)


def _decode_share(evidence: Evidence) -> Line:
    share = evidence.plain.decode_share
    return _judged("decode_share", share >= LEAST_DECODE_SHARE, share=share)


def _answer_length(evidence: Evidence) -> Line:
    lengths = evidence.plain.lengths
    middle = median(lengths)
    return _judged("answer_length", middle >= LEAST_ANSWER, median=middle, longest=max(lengths), requests=len(lengths))


def _draft_faster(evidence: Evidence) -> Line:
    """A candidate has to cost less than its chance to be accepted (Leviathan et al. 2023, corollary 3.9)."""
    ratio, survival = evidence.pick.draft_step_ratio, evidence.pick.predictor.tally(evidence.prediction.k).survival
    first = survival[0] if survival else 0.0
    return _judged("draft_faster", ratio < first, ratio=ratio, first=first)


def _acceptance(evidence: Evidence) -> Line:
    found = evidence.prediction
    values: dict[str, Any] = {
        "rate": found.acceptance_rate,
        "k": found.k,
        "tokens": found.tokens_per_round,
        "break_even": found.break_even,
    }
    if not evidence.workload.own:
        return Line("acceptance", Status.NOT_MEASURED, Phrase("acceptance_elsewhere", values))
    return _judged("acceptance", found.tokens_per_round > found.break_even, **values)


def _persian(evidence: Evidence) -> Line:
    count = sum(request.language == PERSIAN for request in evidence.workload.requests)
    if not count:
        return Line("persian", Status.NOT_MEASURED, Phrase("persian_missing", {}))
    return _judged("persian", True, count=count, speedup=evidence.by_language[PERSIAN])


def _memory(evidence: Evidence) -> Line:
    memory = evidence.memory
    return _judged(
        "memory",
        memory.largest_batch >= evidence.batch,
        draft=_megabytes(memory.draft_weights),
        needed=_megabytes(memory.needed(evidence.batch)),
        limit=_megabytes(memory.limit),
        batch=evidence.batch,
        largest=memory.largest_batch,
        largest_plain=memory.largest_plain_batch,
    )


def _batch(evidence: Evidence) -> Line:
    status = Status.PASS if evidence.stated else Status.NOT_MEASURED
    key = "batch" if evidence.stated else "batch_assumed"
    return Line("batch", status, Phrase(key, {"batch": evidence.batch}))


def _sampling(evidence: Evidence) -> Line:
    params = evidence.params
    return _judged(
        "sampling", True, temperature=params.temperature, top_p=params.top_p, top_k=params.top_k, seed=params.seed
    )


def _lossless(evidence: Evidence) -> Line:
    differing = evidence.validation.differing + evidence.pick.recording.differing
    answers = evidence.validation.answers + len(evidence.pick.recording.traces)
    key = "lossless" if evidence.invariant or not differing else "lossless_rounding"
    return _judged("lossless", not differing, key=key, differing=differing, answers=answers)


def _tails(evidence: Evidence) -> Line:
    plain, fixed = (evidence.validation.latencies[way] for way in (PLAIN_WAY, FIXED_WAY))
    values = {
        "gaps": min(plain.itl.count, fixed.itl.count),
        "plain_p95": plain.itl.p95 * 1e3,
        "plain_p99": plain.itl.p99 * 1e3,
        "p95": fixed.itl.p95 * 1e3,
        "p99": fixed.itl.p99 * 1e3,
        "plain_e2e": plain.e2e.p95,
        "e2e": fixed.e2e.p95,
    }
    status = Status.PASS if values["gaps"] >= LEAST_GAPS else Status.NOT_MEASURED
    return Line("tails", status, Phrase("tails", values))


def _cache(evidence: Evidence) -> Line:
    caches = evidence.caches
    return _judged("cache", caches.clean, leaked=caches.leaked, blocks=caches.blocks)


def _fallback(evidence: Evidence) -> Line:
    fallback = evidence.fallback
    key = "fallback" if fallback.works else "fallback_broken"
    return _judged("fallback", fallback.works, key=key, failures=fallback.failures)


def _confirmed(evidence: Evidence) -> Line:
    outcome = evidence.validation
    return _judged(
        "confirmed",
        outcome.agrees and outcome.better.low > 1.0,
        predicted=outcome.predicted,
        value=outcome.measured.value,
        low=outcome.measured.low,
        high=outcome.measured.high,
        served=outcome.served.value,
    )


def not_measured() -> tuple[Line, ...]:
    """All lines, where there was nothing to measure."""
    return tuple(Line(code, Status.NOT_MEASURED, Phrase("nothing", {})) for code in CODES)


_LINES = (
    _decode_share,
    _answer_length,
    _draft_faster,
    _acceptance,
    _persian,
    _memory,
    _batch,
    _sampling,
    _lossless,
    _tails,
    _cache,
    _fallback,
    _confirmed,
)


CODES = tuple(make.__name__.removeprefix("_") for make in _LINES)
"""Names of the lines."""


def _judged(code: str, passed: bool, *, key: str | None = None, **values: Any) -> Line:
    return Line(code, Status.PASS if passed else Status.FAIL, Phrase(key or code, values))


def _megabytes(count: int) -> float:
    return count / 1e6
