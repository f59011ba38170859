"""From records to figures: counts are summed first and divided last, here and nowhere else.

Each formula stands as text beside the function that computes it; reports print these texts.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from statistics import fmean
from typing import Literal

import numpy as np

from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.record import (
    PLAIN_SIDE,
    SPECULATIVE_SIDE,
    Counts,
    Ending,
    Key,
    MeasuredLoad,
    Record,
    Stretch,
    sum_counts,
)
from gamaneh.bench.result import (
    ALL,
    Distribution,
    Goodput,
    Group,
    GroupKind,
    Interval,
    Point,
    Price,
    Saturation,
    SideFigures,
    Slo,
    Speculation,
    TimeSplit,
    TokenSource,
)
from gamaneh.metrics.percentiles import percentiles

_RESAMPLES = 2000
_SEED = 20250101

FORMULAS: dict[str, str] = {
    "ttft": "first delivery - request sent (open loads: - request due)",
    "itl": "gap between one delivery of tokens and the next; tokens that come together are one delivery",
    "tpot": "(last delivery - first delivery) / (tokens - 1), of one request",
    "e2e": "last delivery - request sent",
}
"""Name of a figure -> its formula. The four above are properties of `Record`; the others are added below."""


FORMULAS["speedup"] = (
    "plain TPOT / speculative TPOT of the same request; geometric mean over rounds, then over prompts, "
    "with a 95 % bootstrap interval over the prompts"
)
FORMULAS["e2e_speedup"] = "the same with E2E: prompt and queue included"


def geometric_mean(ratios: Sequence[float]) -> Interval:
    """Return the geometric mean of positive ratios, with a percentile bootstrap interval over the ratios.

    The resampling is seeded, so equal ratios give equal intervals. With a single ratio the
    interval has no width and says nothing.

    Raises:
        ValueError: there is no ratio, or one is not positive.
    """
    if not ratios or min(ratios) <= 0:
        raise ValueError(f"ratios must be positive and at least one, got {list(ratios)}")
    logs = np.log(np.asarray(ratios, dtype=np.float64))
    draws = np.random.default_rng(_SEED).integers(len(logs), size=(_RESAMPLES, len(logs)))
    low, high = np.quantile(logs[draws].mean(axis=1), [0.025, 0.975])
    return Interval(float(np.exp(logs.mean())), float(np.exp(low)), float(np.exp(high)))


def ratio_of_sums(plain: Sequence[float], speculative: Sequence[float]) -> Interval:
    """Return sum of plain seconds / sum of speculative seconds, paired; with one pair the interval has no width."""
    pairs = np.array([plain, speculative])
    draws = np.random.default_rng(_SEED).integers(len(plain), size=(_RESAMPLES, len(plain)))
    sums = pairs[:, draws].sum(axis=2)
    low, high = np.quantile(sums[0] / sums[1], [0.025, 0.975])
    return Interval(float(pairs[0].sum() / pairs[1].sum()), float(low), float(high))


def paired_ratio(ratios: Mapping[str, Sequence[float]]) -> Interval | None:
    """Return the geometric mean over prompts of each prompt's own geometric mean; None without ratios.

    Repeated measurements of one prompt are alike, and counting each as a prompt of its own would
    make the interval too narrow: only the prompts are resampled. Of a single prompt its
    repetitions are.

    Args:
        ratios: of each prompt, one for each time that it was measured.
    """
    known = [list(own) for own in ratios.values() if own]
    if not known:
        return None
    return geometric_mean(known[0] if len(known) == 1 else [geometric_mean(own).value for own in known])


Pair = tuple[Record, Record]


def speedup(pairs: Iterable[Pair], seconds: Callable[[Record], float | None]) -> Interval | None:
    """Return plain / speculative seconds, by prompt."""
    ratios: dict[str, list[float]] = defaultdict(list)
    for plain, speculative in pairs:
        one, other = seconds(plain), seconds(speculative)
        if one and other:
            ratios[plain.asked.id].append(one / other)
    return paired_ratio(ratios)


FORMULAS["throughput"] = (
    "tokens/s speculative / tokens/s plain of each turn, of the requests that both sides answered; "
    "geometric mean with a 95 % bootstrap interval"
)


def throughput_ratio(measured: MeasuredLoad, kept: AbstractSet[Key]) -> Interval | None:
    """Return the ratio by turn: both sides were given the same requests in it."""
    turns = zip(measured.stretches[PLAIN_SIDE], measured.stretches[SPECULATIVE_SIDE], strict=False)
    speeds = [(_speed(plain, kept), _speed(speculative, kept)) for plain, speculative in turns]
    ratios = [other / one for one, other in speeds if one > 0 and other > 0]
    return geometric_mean(ratios) if ratios else None


def _speed(stretch: Stretch, kept: AbstractSet[Key]) -> float:
    return sum(record.tokens for record in stretch.records if record.key in kept) / stretch.seconds


FORMULAS["tokens_per_second"] = "output tokens / sum of (last answer ended - first request sent) over the turns"
FORMULAS["requests_per_second"] = "answered requests / the same seconds"
FORMULAS["decode_tokens_per_second"] = "sum of (tokens - 1) / sum of (E2E - TTFT)"


def decode_speed(records: Iterable[Record]) -> float | None:
    """Return one request's speed after its first token."""
    decoded = [record for record in records if record.tpot is not None]
    return ratio(sum(record.tokens - 1 for record in decoded), sum(record.e2e - record.ttft for record in decoded))


def ratio(part: float | None, whole: float | None) -> float | None:
    """Return part / whole; None where one is not known, or the whole is 0."""
    return None if part is None or not whole else part / whole


FORMULAS["percentiles"] = (
    "P50, P95, P99 with straight lines between order statistics (Hyndman and Fan 1996, definition 7)"
)
_QUANTILES = range(0, 101, 5)


def distribution(values: Iterable[float]) -> Distribution | None:
    """Return how values are spread; None without values."""
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


FORMULAS["split"] = (
    "queue = first in the batch - sent; prefill = first token - first in the batch; decode = E2E - TTFT; "
    "draft, verify = whole seconds of the rounds that a request had a part in; other = decode - draft - verify"
)


def time_split(records: Sequence[Record]) -> TimeSplit:
    """Return where the seconds of these records went."""

    def seconds(part: Callable[[Ending], float | None]) -> float | None:
        known = _known([part(record.ending) for record in records])
        return None if known is None else sum(known)

    decode = sum(record.e2e - record.ttft for record in records)
    draft, verify = seconds(lambda ending: ending.draft), seconds(lambda ending: ending.verify)
    return TimeSplit(
        queue=seconds(lambda ending: ending.queue),
        prefill=seconds(lambda ending: ending.prefill),
        decode=decode,
        draft=draft,
        verify=verify,
        other=None if draft is None or verify is None else max(decode - draft - verify, 0.0),
    )


def _known(values: Sequence[float | None]) -> list[float] | None:
    """Return the values, if all of them are known."""
    known = [value for value in values if value is not None]
    return known if len(known) == len(values) else None


FORMULAS["acceptance_rate"] = "accepted / drafted; pooled over all requests. It falls as k grows: print k beside it"
FORMULAS["acceptance_rate_macro"] = "mean over the requests of accepted / drafted"
FORMULAS["tokens_per_round"] = (
    "emitted / rounds, where tokens are emitted up to the end of an output, end tokens included; 1 is plain decoding"
)
FORMULAS["tokens_per_round_macro"] = "mean over the requests of emitted / rounds"
FORMULAS["mean_accepted_length"] = "accepted / rounds, rounds without a draft included"
FORMULAS["accepted_per_draft"] = "accepted / drafts"
FORMULAS["survival"] = (
    "s_i = drafts whose first i candidates were all accepted / drafts with at least i candidates; later "
    "ones count longer drafts only, those that promised more, so that s_i may rise with i"
)


def speculation(counts: Counts, source: Literal["requests", "server"]) -> Speculation:
    """Return what the drafts of these counts came to."""
    offered = tuple(counts.offered_at[at] for at in range(max(counts.offered_at, default=-1) + 1))
    return Speculation(
        source=source,
        drafts=counts.drafts,
        drafted=counts.drafted,
        accepted=counts.accepted,
        acceptance_rate=ratio(counts.accepted, counts.drafted),
        accepted_per_draft=ratio(counts.accepted, counts.drafts),
        rounds=counts.rounds,
        emitted=counts.emitted,
        tokens_per_round=ratio(counts.emitted, counts.rounds),
        survival=tuple(ratio(counts.accepted_at[at], count) or 0.0 for at, count in enumerate(offered)),
        offered=offered,
        mean_accepted_length=ratio(counts.accepted, counts.rounds),
    )


def _told(records: Sequence[Record]) -> Speculation | None:
    """From what the requests told of themselves; None when one of them told nothing."""
    told = [record.ending.counts for record in records if record.ending.counts is not None]
    if not told or len(told) < len(records):
        return None
    return replace(
        speculation(sum_counts(told), "requests"),
        acceptance_rate_macro=_mean(ratio(each.accepted, each.drafted) for each in told),
        tokens_per_round_macro=_mean(ratio(each.emitted, each.rounds) for each in told),
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _completed(told: Speculation | None, stretches: Sequence[Stretch]) -> Speculation | None:
    """The server's counters fill in what its requests do not tell."""
    counted = [stretch.counts for stretch in stretches if stretch.counts is not None]
    if not counted or len(counted) < len(stretches):
        return told
    by_server = speculation(sum_counts(counted), "server")
    if told is None:
        return by_server
    return told if told.survival else replace(told, survival=by_server.survival, offered=by_server.offered)


FORMULAS["tokens_per_character"] = "output tokens / characters of the output"
_RELIABILITY: Sequence[TokenSource] = ("engine", "usage", "tokenizer", "deliveries")


def side_figures(records: Sequence[Record], *, approximate: bool = False) -> SideFigures:
    """Return what one side did in these requests, which must be whole."""
    prompt_tokens = _known([record.ending.prompt_tokens for record in records])
    tokens, letters = sum(record.tokens for record in records), sum(len(record.text) for record in records)
    sources = [record.ending.tokens_from for record in records if record.ending.tokens_from is not None]
    return SideFigures(
        requests=len(records),
        prompt_tokens=None if prompt_tokens is None else int(sum(prompt_tokens)),
        output_tokens=tokens,
        ttft=distribution(record.ttft for record in records),
        itl=distribution(gap for record in records for gap in record.gaps),
        tpot=distribution(record.tpot for record in records if record.tpot is not None),
        e2e=distribution(record.e2e for record in records),
        output_length=distribution(record.tokens for record in records),
        decode_tokens_per_second=decode_speed(records),
        tokens_per_character=ratio(tokens, letters),
        split=time_split(records),
        speculation=_told(records),
        tokens_from=max(sources, key=_RELIABILITY.index, default=None),
        approximate=approximate,
    )


FORMULAS["utilisation"] = "processor seconds / (seconds * cores)"
FORMULAS["goodput"] = "requests (tokens) of those that met every objective / seconds; failed requests meet none"
FORMULAS["cost_per_million"] = "price per hour / 3600 * 1,000,000 / tokens per second"
FORMULAS["requests_left_out"] = (
    "requests that are in no figure but goodput, by reason: refused, broken, malformed, empty and error are failures "
    "of this side; other side was answered here and not by the other side, so that both sides' figures are of the "
    "same requests"
)
OTHER_SIDE = "other_side"


def whole_figures(
    stretches: Sequence[Stretch],
    slo: Slo | None,
    price: Price | None,
    kept: AbstractSet[Key] | None = None,
    *,
    approximate: bool = False,
) -> SideFigures:
    """Return what one side did in its requests under one load, throughput and cost included.

    Args:
        kept: requests that both sides answered; None keeps all that this side answered.
    """
    records = [record for stretch in stretches for record in stretch.records]
    chosen = [record for record in records if record.whole and (kept is None or record.key in kept)]
    keys = {record.key for record in chosen}
    # A turn that leaves no request in the figures leaves no seconds either.
    used = [stretch for stretch in stretches if any(record.key in keys for record in stretch.records)]
    figures, seconds = side_figures(chosen, approximate=approximate), sum(stretch.seconds for stretch in used)
    tokens_per_second = ratio(figures.output_tokens, seconds)
    return replace(
        figures,
        seconds=seconds,
        tokens_per_second=tokens_per_second,
        requests_per_second=ratio(figures.requests, seconds),
        utilisation=_utilisation(used, seconds),
        goodput=None if slo is None else _goodput(records, slo, sum(stretch.seconds for stretch in stretches)),
        cost_per_million=None if price is None else ratio(price.per_hour / 3600 * 1e6, tokens_per_second),
        speculation=_completed(figures.speculation, used),
        left_out=left_out(records, keys),
    )


def left_out(records: Iterable[Record], kept: AbstractSet[Key]) -> dict[str, int]:
    """Return reason -> records that are not among those kept."""
    reasons = Counter(record.reason or OTHER_SIDE for record in records if record.key not in kept)
    return dict(sorted(reasons.items()))


def _utilisation(stretches: Sequence[Stretch], seconds: float) -> float | None:
    known = _known([stretch.cpu_seconds for stretch in stretches])
    return None if known is None else ratio(sum(known), seconds * (os.cpu_count() or 1))


def _goodput(records: Sequence[Record], slo: Slo, seconds: float) -> Goodput:
    good = [record for record in records if record.whole and meets(record, slo)]
    return Goodput(
        met=len(good),
        share=len(good) / len(records),
        requests_per_second=len(good) / seconds,
        tokens_per_second=sum(record.tokens for record in good) / seconds,
    )


def meets(record: Record, slo: Slo) -> bool:
    """Whether an answer met every objective; one without a time, such as the TPOT of a single token, meets it."""
    times = ((record.ttft, slo.ttft), (record.tpot, slo.tpot), (record.e2e, slo.e2e))
    return all(limit is None or seconds is None or seconds <= limit for seconds, limit in times)


_KINDS: Mapping[GroupKind, Callable[[Prompt], str]] = {
    "category": lambda prompt: prompt.category,
    "language": lambda prompt: prompt.language,
    "length": lambda prompt: prompt.length,
}


def make_point(measured: MeasuredLoad, slo: Slo | None, price: Price | None, *, approximate: bool = False) -> Point:
    """Return the figures of one load. A kind of group that holds all prompts in one is left out.

    Args:
        approximate: the speculative side's rule does not keep the target's distribution.
    """
    pairs = list(measured.pairs())
    kept = {record.key for record, _ in pairs}
    plain = whole_figures(measured.stretches[PLAIN_SIDE], slo, price, kept)
    speculative = whole_figures(measured.stretches[SPECULATIVE_SIDE], slo, price, kept, approximate=approximate)
    return Point(
        load=measured.load,
        throughput=throughput_ratio(measured, kept),
        groups=(_group("all", ALL, pairs, plain, speculative), *_parts(pairs, approximate)),
        saturation=None if measured.load.pattern == "closed" else _saturation(measured),
    )


def _parts(pairs: Sequence[Pair], approximate: bool) -> Iterator[Group]:
    for kind, name_of in _KINDS.items():
        names = {name_of(record.asked) for record, _ in pairs}
        if len(names) < 2:
            continue
        for name in sorted(names):
            own = [pair for pair in pairs if name_of(pair[0].asked) == name]
            plain = side_figures([record for record, _ in own])
            yield _group(kind, name, own, plain, side_figures([record for _, record in own], approximate=approximate))


def _group(kind: GroupKind, name: str, pairs: Sequence[Pair], plain: SideFigures, speculative: SideFigures) -> Group:
    return Group(
        kind=kind,
        name=name,
        prompts=len({record.asked.id for record, _ in pairs}),
        speedup=speedup(pairs, lambda record: record.tpot),
        e2e_speedup=speedup(pairs, lambda record: record.e2e),
        plain=plain,
        speculative=speculative,
    )


FORMULAS["saturation"] = (
    "more than a tenth of the arriving requests pile up: slope of a straight line through the requests "
    "under way at the later half of the arrivals"
)
LEAST_GROWTH = 0.1
"""Share of the arriving requests that pile up, from which on a server counts as saturated."""

LEAST_REQUESTS = 10
"""Fewer do not show a trend."""

Stay = tuple[float, float]
"""When one request arrived and left, in seconds of one clock."""


def stays(records: Sequence[Record]) -> list[Stay]:
    """Return when the requests of the last round arrived and left."""
    whole = [record for record in records if record.whole]
    return [(one.sent, one.deliveries[-1]) for one in whole if one.key.round == whole[-1].key.round]


def growth(stays: Sequence[Stay]) -> float:
    """Return how many requests pile up per second while requests arrive: the slope of a line through their number.

    The number is taken at each arrival in the second half of the arrivals, the newcomer left out: at
    the start any server fills up.
    """
    arrivals = sorted(arrived for arrived, _ in stays)
    late = np.array(arrivals[len(arrivals) // 2 :])
    if len(stays) < LEAST_REQUESTS or late[-1] <= late[0]:
        return 0.0
    under_way = [sum(arrived < at < left for arrived, left in stays) for at in late]
    return float(np.polyfit(late - late[0], under_way, 1)[0])


def is_saturated(stays: Sequence[Stay]) -> bool:
    """Whether more than a tenth of the arriving requests pile up instead of leaving."""
    arrivals = [arrived for arrived, _ in stays]
    span = max(arrivals, default=0.0) - min(arrivals, default=0.0)
    return span > 0 and growth(stays) > LEAST_GROWTH * (len(stays) - 1) / span


def _saturation(measured: MeasuredLoad) -> Saturation | None:
    plain, speculative = (stays(measured.records(side)) for side in (PLAIN_SIDE, SPECULATIVE_SIDE))
    if not plain or not speculative:
        return None
    return Saturation(
        plain=is_saturated(plain),
        speculative=is_saturated(speculative),
        plain_growth=growth(plain),
        speculative_growth=growth(speculative),
    )


FORMULAS["equality"] = (
    "outputs of both sides for the same request; a tie is a difference where the target's two most likely "
    "tokens are as close as rounding of its type"
)
