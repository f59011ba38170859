"""From answers to figures: counts are summed first and divided last, here."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

import numpy as np

from gamaneh.bench.counts import Counts, ratio, total
from gamaneh.bench.result import Distribution, Figures, Goodput, Price, Slo, Speculation, TimeSplit
from gamaneh.bench.run.measure import Record, Stretch
from gamaneh.bench.traffic import Answer, Ending
from gamaneh.metrics.percentiles import percentiles

_QUANTILES = range(0, 101, 5)


def distribution(values: Iterable[float]) -> Distribution | None:
    """How values are spread, with straight lines between order statistics; None without values."""
    array = np.fromiter(values, dtype=np.float64)
    if array.size == 0:
        return None
    spread = percentiles(array)
    return Distribution(
        count=spread.count,
        mean=spread.mean,
        p50=spread.p50,
        p95=spread.p95,
        p99=spread.p99,
        largest=spread.largest,
        quantiles=tuple(np.percentile(array, _QUANTILES).tolist()),
    )


def side_figures(records: Sequence[Record]) -> Figures:
    """What one side did in some of its requests; failed ones are left out."""
    answers = [record.answer for record in records if record.whole]
    prompt_tokens = [answer.ending.prompt_tokens for answer in answers]
    tokens, letters = sum(answer.tokens for answer in answers), sum(len(answer.text) for answer in answers)
    return Figures(
        requests=len(answers),
        prompt_tokens=_known_sum(prompt_tokens),
        output_tokens=tokens,
        ttft=distribution(answer.ttft for answer in answers),
        itl=distribution(gap for answer in answers for gap in answer.gaps),
        tpot=distribution(answer.tpot for answer in answers if answer.tpot is not None),
        e2e=distribution(answer.e2e for answer in answers),
        output_length=distribution(answer.tokens for answer in answers),
        decode_tokens_per_second=_decode_speed(answers),
        tokens_per_character=ratio(tokens, letters),
        split=_split(answers),
        speculation=_told(answers),
    )


def _known_sum(values: Sequence[float | None]) -> int | None:
    known = _known(values)
    return None if known is None else int(sum(known))


def _known(values: Sequence[float | None]) -> list[float] | None:
    """The values, if all of them are known."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


def _decode_speed(answers: Sequence[Answer]) -> float | None:
    decoded = [answer for answer in answers if answer.tpot is not None]
    return ratio(sum(answer.tokens - 1 for answer in decoded), sum(answer.e2e - answer.ttft for answer in decoded))


def _split(answers: Sequence[Answer]) -> TimeSplit:
    def seconds(part: Callable[[Ending], float | None]) -> float | None:
        known = _known([part(answer.ending) for answer in answers])
        return None if known is None else sum(known)

    decode = sum(answer.e2e - answer.ttft for answer in answers)
    draft, verify = seconds(lambda ending: ending.draft), seconds(lambda ending: ending.verify)
    return TimeSplit(
        queue=seconds(lambda ending: ending.queue),
        prefill=seconds(lambda ending: ending.prefill),
        decode=decode,
        draft=draft,
        verify=verify,
        other=None if draft is None or verify is None else max(decode - draft - verify, 0.0),
    )


def whole_figures(stretches: Sequence[Stretch], slo: Slo | None, price: Price | None) -> Figures:
    """What one side did in all its requests under one load, throughput and cost included."""
    records = [record for stretch in stretches for record in stretch.records]
    figures, seconds = side_figures(records), sum(stretch.seconds for stretch in stretches)
    tokens_per_second = ratio(figures.output_tokens, seconds)
    return replace(
        figures,
        seconds=seconds,
        tokens_per_second=tokens_per_second,
        requests_per_second=ratio(figures.requests, seconds),
        utilisation=_utilisation(stretches, seconds),
        goodput=None if slo is None else _goodput(records, slo, seconds),
        cost_per_million=None if price is None else _cost(price, tokens_per_second),
        speculation=_completed(figures.speculation, stretches),
    )


def _told(answers: Sequence[Answer]) -> Speculation | None:
    """From what the requests told of themselves; None when one of them told nothing."""
    told = [answer.ending.counts for answer in answers if answer.ending.counts is not None]
    if not told or len(told) < len(answers):
        return None
    return replace(
        _speculation(total(told), "requests"),
        acceptance_rate_macro=_mean(each.acceptance_rate for each in told),
        tokens_per_round_macro=_mean(each.tokens_per_round for each in told),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _speculation(counts: Counts, source: Literal["requests", "server"]) -> Speculation:
    return Speculation(
        source=source,
        drafts=counts.drafts,
        drafted=counts.drafted,
        accepted=counts.accepted,
        acceptance_rate=counts.acceptance_rate,
        accepted_per_draft=ratio(counts.accepted, counts.drafts),
        rounds=counts.rounds,
        emitted=counts.emitted,
        tokens_per_round=counts.tokens_per_round,
        survival=counts.survival,
        offered=counts.offered,
    )


def _completed(told: Speculation | None, stretches: Sequence[Stretch]) -> Speculation | None:
    """The server's counters fill in what its requests do not tell."""
    counted = [stretch.counts for stretch in stretches if stretch.counts is not None]
    if not counted or len(counted) < len(stretches):
        return told
    by_server = _speculation(total(counted), "server")
    if told is None:
        return by_server
    return told if told.survival else replace(told, survival=by_server.survival, offered=by_server.offered)


def _utilisation(stretches: Sequence[Stretch], seconds: float) -> float | None:
    known = _known([stretch.cpu_seconds for stretch in stretches])
    return None if known is None else ratio(sum(known), seconds * (os.cpu_count() or 1))


def _goodput(records: Sequence[Record], slo: Slo, seconds: float) -> Goodput:
    """A failed request meets nothing."""
    good = [record.answer for record in records if record.whole and meets(record.answer, slo)]
    return Goodput(
        met=len(good),
        share=len(good) / len(records),
        requests_per_second=len(good) / seconds,
        tokens_per_second=sum(answer.tokens for answer in good) / seconds,
    )


def meets(answer: Answer, slo: Slo) -> bool:
    """Whether an answer met every objective; one without a time, such as the TPOT of a single token, meets it."""
    times = ((answer.ttft, slo.ttft), (answer.tpot, slo.tpot), (answer.e2e, slo.e2e))
    return all(limit is None or seconds is None or seconds <= limit for seconds, limit in times)


def _cost(price: Price, tokens_per_second: float | None) -> float | None:
    return ratio(price.per_hour / 3600 * 1e6, tokens_per_second)
