"""Names and labels of everything that a server exports, and of what a query asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.metrics_core import Metric

from gamaneh.core import BatchReport, FinishReason, Origin, ReasonCode, StepReport
from gamaneh.metrics.prometheus import PrometheusMetrics
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.testing import BYTE_VOCAB, ByteTokenizer, ScriptedRunner, hashed, scripted_engine

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

SCRAPED = frozenset({"instance", "job", "le"})
"""Labels that a scrape and a histogram bring along."""

_SUFFIXES: Mapping[str, tuple[str, ...]] = {
    "counter": ("_total",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
    "gauge": ("",),
}


@dataclass(frozen=True)
class Series:
    """One family: its name as it is documented, the names that can be queried, and its labels."""

    name: str
    kind: str
    queried: frozenset[str]
    labels: frozenset[str]


def exported() -> list[Series]:
    """Every family of a server that was told everything once, so that every label is there."""
    engine = scripted_engine(ScriptedRunner(hashed(BYTE_VOCAB), BYTE_VOCAB), ByteTokenizer())
    engine.quarantine.report("lookup", "words")
    metrics = PrometheusMetrics()
    metrics.attach(engine)
    metrics.observe_step(
        StepReport("r", "lookup", "match", 2, 2, 1, 2, 1, 9, 0.1, 0.1, 2, "words", ReasonCode.PAYS),
    )
    metrics.observe_batch(BatchReport(1, 0, 2, 3, 0, {Origin.ACCEPTED: 1}, {"lookup": 0.1}, 0.1, 0.2, 0.3))
    metrics.observe_request(
        RequestTimeline("r", 9, "lookup", 0.0, 1.0, 0, [2.0], [], 3.0, FinishReason.STOP),
    )
    metrics.observe_response("/v1/completions", 200)
    metrics.set_load(running=1, waiting=0, kv_used=1, kv_total=2)
    metrics.set_limits(max_batch=1, step_tokens=1)
    metrics.set_weights("target", 1)
    metrics.set_build(version="1", model="tiny", dtype="float32", device="cpu")
    return [_series(metric) for metric in metrics.registry.collect()]


def _series(metric: Metric) -> Series:
    names = [metric.name + suffix for suffix in _SUFFIXES[metric.type]]
    labels = {label for sample in metric.samples for label in sample.labels}
    name = metric.name if metric.type == "histogram" else names[0]
    return Series(name, metric.type, frozenset(names), frozenset(labels - SCRAPED))


def names_in(query: str) -> set[str]:
    """Names of ours that a query reads."""
    return set(re.findall(r"\bgamaneh_\w+", query))


def labels_in(query: str) -> set[str]:
    """Labels that a query groups by or selects."""
    grouped = (name.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for name in group.split(","))
    selected = re.findall(r"[{,]\s*(\w+)\s*(?:=|!=|=~|!~)\"", query)
    return {*grouped, *selected}


def unknown(queries: Iterable[str]) -> set[str]:
    """Names and labels that queries use and no server exports."""
    series = exported()
    queried = {name for one in series for name in one.queried}
    found = set()
    for query in queries:
        labels = {label for one in series if one.queried & names_in(query) for label in one.labels}
        found |= (names_in(query) - queried) | (labels_in(query) - labels - SCRAPED)
    return found
