"""Metrics for Prometheus: the one place that an engine, or whoever runs it, reports to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gamaneh.core import BatchReport, StepReport
from gamaneh.metrics.series import (
    FailureCounts,
    FailureSeries,
    RequestSeries,
    SpeculationSeries,
    StateSeries,
    StepSeries,
)
from gamaneh.metrics.timeline import RequestTimeline


class Failures(Protocol):
    """Where an engine counts the failures of its proposers."""

    @property
    def counts(self) -> FailureCounts: ...


class CountedEngine(Protocol):
    """An engine that tells what it does."""

    observers: list[Callable[[StepReport], None]]
    batch_observers: list[Callable[[BatchReport], None]]
    request_observers: list[Callable[[RequestTimeline], None]]

    @property
    def quarantine(self) -> Failures: ...


class PrometheusMetrics:
    """All series of one engine, in one registry.

    Args:
        registry: where they are registered; None makes a registry of their own.
    """

    content_type = CONTENT_TYPE_PLAIN_0_0_4
    """Media type of what `render` returns."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry or CollectorRegistry()
        self._speculation = SpeculationSeries(self.registry)
        self._failures = FailureSeries(self.registry)
        self._steps = StepSeries(self.registry)
        self._requests = RequestSeries(self.registry)
        self._state = StateSeries(self.registry)

    def attach(self, engine: CountedEngine) -> None:
        """Observe everything that `engine` does from now on."""
        engine.observers.append(self.observe_step)
        engine.batch_observers.append(self.observe_batch)
        engine.request_observers.append(self.observe_request)
        self._failures.counts = engine.quarantine.counts

    def observe_step(self, report: StepReport) -> None:
        """Count one request's round."""
        self._speculation.add(report)

    def observe_batch(self, report: BatchReport) -> None:
        """Count one step of the engine."""
        self._steps.add(report)

    def observe_request(self, timeline: RequestTimeline) -> None:
        """Count a request that has ended."""
        self._requests.add(timeline)

    def observe_response(self, route: str, status: int) -> None:
        """Count an HTTP response; `route` is the pattern of the path, never the path itself."""
        self._requests.responses.labels(route, status).inc()

    def set_load(self, *, running: int, waiting: int, kv_used: int, kv_total: int) -> None:
        """Say how busy the engine is: requests, and blocks of the target's KV cache."""
        self._state.running.set(running)
        self._state.waiting.set(waiting)
        self._state.kv_used.set(kv_used)
        self._state.kv_total.set(kv_total)

    def set_limits(self, *, max_batch: int, step_tokens: int) -> None:
        """Say what a step can hold, the measure of how full it is."""
        self._state.max_requests.set(max_batch)
        self._state.max_rows.set(step_tokens)

    def set_weights(self, model: str, size: int) -> None:
        """Say how many bytes the weights and caches of the target or of a proposer take."""
        self._state.model_bytes.labels(model).set(size)

    def set_build(self, *, version: str, model: str, dtype: str, device: str) -> None:
        """Say what is running."""
        self._state.build.info({"version": version, "model": model, "dtype": dtype, "device": device})

    def render(self) -> bytes:
        """All series in Prometheus' text format."""
        return generate_latest(_WithoutCreated(self.registry))


class _WithoutCreated(Collector):
    """A registry without the `_created` series, which would double their number and which nobody reads."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.registry = registry

    def collect(self) -> Iterator[Metric]:
        for metric in self.registry.collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric
