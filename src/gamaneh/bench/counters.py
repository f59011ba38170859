"""What a server counts about itself, read from its `/metrics` before and after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from gamaneh.bench.counts import Counts
from gamaneh.bench.dialects import Series


class _Sample(NamedTuple):
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading.

    Args:
        counts: None where the server does not count drafts, or does not draft.
        cpu_seconds, resident, private, device: of its process; None where it does not say.
        models: bytes of weights and caches, by model; target_kv: those of the target's cache.
        kv_used: blocks of that cache in use; None where it does not say.
    """

    counts: Counts | None
    cpu_seconds: float | None
    resident: int | None
    device: int | None
    models: Mapping[str, int]
    target_kv: int | None = None
    kv_used: int | None = None
    private: int | None = None


def read_counters(text: str, series: Series) -> Counters | None:
    """The counters in a text of Prometheus; None when it is not one."""
    try:
        samples = _samples(text)
    except ValueError:
        return None
    resident, device = _sum(samples, series.resident), _sum(samples, series.device)
    return Counters(
        counts=_counts(samples, series),
        cpu_seconds=_sum(samples, series.cpu_seconds),
        resident=None if resident is None else int(resident),
        device=int(device) if device else None,
        kv_used=_whole(samples, series.kv_used),
        private=_whole(samples, series.private),
        models={sample.labels["model"]: int(sample.value) for sample in samples.get(series.models or "", [])},
    )


def difference(before: Counts | None, after: Counts | None) -> Counts | None:
    """What was counted between two readings; a server that had counted nothing before began at 0."""
    if after is None:
        return None
    before = before or Counts(0, 0, 0, 0, 0)
    return Counts(
        accepted=after.accepted - before.accepted,
        rounds=_minus(after.rounds, before.rounds),
        drafts=_minus(after.drafts, before.drafts),
        drafted=_minus(after.drafted, before.drafted),
        emitted=_minus(after.emitted, before.emitted),
        accepted_at=after.accepted_at - before.accepted_at,
        offered_at=after.offered_at - before.offered_at,
    )


def _minus(later: int | None, earlier: int | None) -> int | None:
    return None if later is None else later - (earlier or 0)


def _samples(text: str) -> dict[str, list[_Sample]]:
    samples: dict[str, list[_Sample]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append(_Sample(sample.labels, sample.value))
    return samples


def _sum(samples: Mapping[str, list[_Sample]], name: str | None) -> float | None:
    found = samples.get(name or "")
    return None if found is None else sum(sample.value for sample in found)


def _whole(samples: Mapping[str, list[_Sample]], name: str | None) -> int | None:
    value = _sum(samples, name)
    return None if value is None else int(value)


def _counts(samples: Mapping[str, list[_Sample]], series: Series) -> Counts | None:
    rounds, emitted = _whole(samples, series.rounds), _whole(samples, series.emitted)
    accepted = _whole(samples, series.accepted)
    if accepted is None and rounds is not None and emitted is not None:
        accepted = emitted - rounds
    if accepted is None:
        return None
    drafts = _whole(samples, series.drafts)
    accepted_at = _by_position(samples, series.accepted_at)
    return Counts(
        accepted=accepted,
        rounds=rounds,
        drafts=drafts,
        drafted=_whole(samples, series.drafted),
        emitted=emitted,
        accepted_at=accepted_at,
        offered_at=_by_position(samples, series.offered_at) or Counter(dict.fromkeys(accepted_at, drafts or 0)),
    )


def _by_position(samples: Mapping[str, list[_Sample]], name: str | None) -> Counter[int]:
    counter: Counter[int] = Counter()
    for sample in samples.get(name or "", []):
        counter[int(sample.labels["position"])] += int(sample.value)
    return counter
