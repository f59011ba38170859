"""Request spans by OpenTelemetry's conventions for generative AI; the only file that knows OpenTelemetry.

Names of attributes: OpenTelemetry semantic conventions, "Generative AI", inference spans. What they do
not cover stands under `gamaneh.`. A span never holds text of a prompt, of an output or of a stop sequence.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.util.types import AttributeValue

from gamaneh.core import FinishReason, ReasonCode, StepReport
from gamaneh.metrics.collector import SpeculationStats
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.metrics.tracing import TracedEngine
from gamaneh.options import SamplingParams

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")

MOST_CHANGES = 64
"""Decisions that one span shows."""

Attributes = dict[str, AttributeValue]


def choose_provider() -> TracerProvider | None:
    """One that exports, where the environment says where to; else the program's own, if it has set one up."""
    if any(os.environ.get(name) for name in ENDPOINTS):
        resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", "gamaneh")})
        provider = TracerProvider(resource=resource)
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        return provider
    own = trace.get_tracer_provider()
    return own if isinstance(own, TracerProvider) else None


@dataclass(slots=True)
class _Record:
    """What is known about a request before it ends.

    Args:
        parent: the caller's trace.
        changes: rounds in which the reason for drafting, or not, became another one.
    """

    operation: str = "text_completion"
    parent: Context | None = None
    attributes: Attributes = field(default_factory=dict)
    stats: SpeculationStats = field(default_factory=SpeculationStats)
    changes: list[tuple[float, StepReport]] = field(default_factory=list)
    last_code: ReasonCode | None = None


class SpanTracing:
    """Makes one span when a request ends, with the times that the engine marked.

    Args:
        model: name of the target, for the spans.
        provider: makes the tracer.
    """

    def __init__(self, model: str, provider: TracerProvider) -> None:
        self.model, self.provider = model, provider
        self._tracer = provider.get_tracer("gamaneh")
        self._records: dict[str, _Record] = {}
        self._lock = threading.Lock()

    def attach(self, engine: TracedEngine) -> None:
        """Trace the requests that `engine` serves from now on."""
        engine.observers.append(self.observe_step)
        engine.request_observers.append(self.observe_request)

    def begin(
        self, request_id: str, operation: str, params: SamplingParams, *, stream: bool, headers: Mapping[str, str]
    ) -> None:
        """Say more about a request, before the engine gets it."""
        attributes = _of_params(params) | {"gen_ai.request.stream": stream}
        with self._lock:
            self._records[request_id] = _Record(operation, propagate.extract(headers), attributes)

    def drop(self, request_id: str) -> None:
        """Forget what was said about a request that the engine has refused."""
        with self._lock:
            self._records.pop(request_id, None)

    def observe_step(self, report: StepReport) -> None:
        """Note one round of a request."""
        with self._lock:
            record = self._records.setdefault(report.request_id, _Record())
        record.stats.add(report)
        if report.reason_code != record.last_code and len(record.changes) < MOST_CHANGES:
            record.last_code = report.reason_code
            record.changes.append((time.perf_counter(), report))

    def observe_request(self, timeline: RequestTimeline) -> None:
        """Make the span of a request that has ended."""
        with self._lock:
            record = self._records.pop(timeline.request_id, None) or _Record()
        clock = _WallClock()
        span = self._tracer.start_span(
            f"{record.operation} {self.model}",
            context=record.parent,
            kind=trace.SpanKind.INTERNAL,
            start_time=clock.nanoseconds(timeline.arrived),
            attributes=self._attributes(timeline, record),
        )
        for at, name, attributes in sorted(_events(timeline, record), key=lambda event: event[0]):
            span.add_event(name, attributes, clock.nanoseconds(at))
        if timeline.finish_reason is FinishReason.ERROR:
            span.set_attribute("error.type", "_OTHER")
            span.set_status(trace.StatusCode.ERROR)
        span.end(None if timeline.finished is None else clock.nanoseconds(timeline.finished))

    def _attributes(self, timeline: RequestTimeline, record: _Record) -> Attributes:
        return {
            "gen_ai.operation.name": record.operation,
            "gen_ai.provider.name": "gamaneh",
            "gen_ai.request.model": self.model,
            "gen_ai.response.model": self.model,
            **record.attributes,
            **_of_timeline(timeline),
            **_of_stats(timeline.proposer, record.stats),
        }


class _WallClock:
    """Turns readings of `time.perf_counter` into nanoseconds since 1970."""

    def __init__(self) -> None:
        self._offset = time.time() - time.perf_counter()

    def nanoseconds(self, reading: float) -> int:
        return int((reading + self._offset) * 1e9)


def _of_params(params: SamplingParams) -> Attributes:
    given: dict[str, AttributeValue | None] = {
        "gen_ai.request.temperature": params.temperature,
        "gen_ai.request.top_p": params.top_p,
        "gen_ai.request.top_k": params.top_k or None,
        "gen_ai.request.max_tokens": params.max_tokens,
        "gen_ai.request.seed": params.seed,
        "gen_ai.request.presence_penalty": params.presence_penalty or None,
        "gen_ai.request.frequency_penalty": params.frequency_penalty or None,
    }
    return _known(given)


def _of_timeline(timeline: RequestTimeline) -> Attributes:
    marks: dict[str, AttributeValue | None] = {
        "gen_ai.response.id": timeline.request_id,
        "gen_ai.response.finish_reasons": [timeline.finish_reason or ""],
        "gen_ai.usage.input_tokens": timeline.prompt_tokens,
        "gen_ai.usage.output_tokens": timeline.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": timeline.cached_tokens,
        "gen_ai.response.time_to_first_chunk": timeline.ttft,
        "gamaneh.queue_seconds": timeline.queue_seconds,
        "gamaneh.prefill_seconds": timeline.prefill_seconds,
        "gamaneh.time_per_output_token": timeline.tpot,
        "gamaneh.preemptions": len(timeline.preempted),
    }
    return _known(marks)


def _of_stats(proposer: str, stats: SpeculationStats) -> Attributes:
    return {
        "gamaneh.speculation.proposer": proposer,
        "gamaneh.speculation.rounds": stats.rounds,
        "gamaneh.speculation.drafts": stats.drafts,
        "gamaneh.speculation.draft_tokens": stats.drafted,
        "gamaneh.speculation.accepted_tokens": stats.accepted,
        "gamaneh.speculation.draft_seconds": stats.draft_seconds,
        "gamaneh.speculation.verify_seconds": stats.verify_seconds,
    }


def _known(values: Mapping[str, AttributeValue | None]) -> Attributes:
    return {name: value for name, value in values.items() if value is not None}


def _events(timeline: RequestTimeline, record: _Record) -> Iterator[tuple[float, str, Attributes]]:
    if timeline.scheduled is not None:
        yield timeline.scheduled, "gamaneh.scheduled", {"gamaneh.cached_tokens": timeline.cached_tokens}
    if timeline.first_token is not None:
        yield timeline.first_token, "gamaneh.first_token", {}
    for at in timeline.preempted:
        yield at, "gamaneh.preempted", {}
    for at, report in record.changes:
        yield at, "gamaneh.decision", _of_decision(report)


def _of_decision(report: StepReport) -> Attributes:
    return {
        "gamaneh.proposer": report.proposer,
        "gamaneh.reason": report.reason_code,
        "gamaneh.reason_in_words": report.reason,
        "gamaneh.draft_length": report.decision,
    }
