"""Spans of requests, as an exporter gets them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from gamaneh.core import FinishReason, ReasonCode, Request, StepReport
from gamaneh.metrics import spans
from gamaneh.metrics.spans import MOST_CHANGES, SpanTracing
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.metrics.tracing import NoTracing, make_tracing
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.testing import BYTE_VOCAB, ByteTokenizer, ScriptedProposer, ScriptedRunner, hashed, scripted_engine

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
PARAMS = SamplingParams(temperature=0.5, seed=7, max_tokens=12, stop=("my secret",), ignore_eos=True)


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exported: InMemorySpanExporter) -> Iterator[SpanTracing]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    yield SpanTracing("tiny", provider)
    provider.shutdown()


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in spans.ENDPOINTS:
        monkeypatch.delenv(name, raising=False)


def report(code: ReasonCode, drafted: int = 4, accepted: int = 2) -> StepReport:
    return StepReport("r", "lookup", "match", drafted, drafted, accepted, accepted + 1, 1, 9, 0.1, 0.2, 4, "why", code)


def timeline(**changes: object) -> RequestTimeline:
    marks: dict[str, object] = {
        "arrived": 1.0,
        "scheduled": 1.5,
        "token_times": [2.0, 2.5, 2.5],
        "finished": 3.0,
        "cached_tokens": 16,
        "finish_reason": FinishReason.STOP,
    }
    return RequestTimeline("r", 20, "lookup", **(marks | changes))  # type: ignore[arg-type]


def span_of(exported: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exported.get_finished_spans()
    return span


def test_a_span_lasts_from_arrival_to_end(tracing: SpanTracing, exported: InMemorySpanExporter) -> None:
    now = time.perf_counter()
    tracing.observe_request(timeline(arrived=now - 2.0, finished=now))
    span = span_of(exported)
    assert span.end_time - span.start_time == pytest.approx(2e9, abs=1e6)
    assert span.end_time == pytest.approx(time.time_ns(), abs=5e9)


def test_names_follow_the_conventions(tracing: SpanTracing, exported: InMemorySpanExporter) -> None:
    tracing.begin("r", "chat", PARAMS, stream=True, headers={})
    tracing.observe_request(timeline())
    span = span_of(exported)
    assert span.name == "chat tiny"
    expected = {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "gamaneh",
        "gen_ai.request.model": "tiny",
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.seed": 7,
        "gen_ai.request.max_tokens": 12,
        "gen_ai.request.stream": True,
        "gen_ai.response.id": "r",
        "gen_ai.response.finish_reasons": ("stop",),
        "gen_ai.usage.input_tokens": 20,
        "gen_ai.usage.output_tokens": 3,
        "gen_ai.usage.cache_read.input_tokens": 16,
        "gen_ai.response.time_to_first_chunk": 1.0,
    }
    assert expected.items() <= dict(span.attributes or {}).items()


def test_what_became_of_the_drafts_is_told(tracing: SpanTracing, exported: InMemorySpanExporter) -> None:
    for accepted in (2, 4):
        tracing.observe_step(report(ReasonCode.PAYS, accepted=accepted))
    tracing.observe_request(timeline())
    attributes = span_of(exported).attributes or {}
    assert attributes["gamaneh.speculation.draft_tokens"] == 8
    assert attributes["gamaneh.speculation.accepted_tokens"] == 6
    assert attributes["gamaneh.speculation.verify_seconds"] == pytest.approx(0.4)


def test_events_stand_in_the_order_of_time(tracing: SpanTracing, exported: InMemorySpanExporter) -> None:
    tracing.observe_request(timeline(preempted=[1.75]))
    assert [event.name for event in span_of(exported).events] == [
        "gamaneh.scheduled",
        "gamaneh.preempted",
        "gamaneh.first_token",
    ]


def test_a_decision_is_an_event_when_its_reason_changes(tracing: SpanTracing, exported: InMemorySpanExporter) -> None:
    for code in (ReasonCode.PAYS, ReasonCode.PAYS, ReasonCode.NO_GAIN, ReasonCode.PAYS):
        tracing.observe_step(report(code))
    tracing.observe_request(timeline())
    reasons = [(event.attributes or {}).get("gamaneh.reason") for event in span_of(exported).events]
    assert [reason for reason in reasons if reason] == ["pays", "no_gain", "pays"]


def test_a_long_request_shows_a_bounded_number_of_decisions(
    tracing: SpanTracing, exported: InMemorySpanExporter
) -> None:
    for at in range(4 * MOST_CHANGES):
        tracing.observe_step(report(ReasonCode.PROBE if at % 2 else ReasonCode.PAYS))
    tracing.observe_request(timeline(scheduled=None, token_times=[]))
    assert len(span_of(exported).events) == MOST_CHANGES


def test_the_callers_trace_goes_on(tracing: SpanTracing, exported: InMemorySpanExporter) -> None:
    headers = {"traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01"}
    tracing.begin("r", "chat", PARAMS, stream=False, headers=headers)
    tracing.observe_request(timeline())
    span = span_of(exported)
    assert (span.context.trace_id, span.parent.span_id) == (int(TRACE_ID, 16), int(PARENT_ID, 16))


def test_an_error_is_an_error(tracing: SpanTracing, exported: InMemorySpanExporter) -> None:
    tracing.observe_request(timeline(finish_reason=FinishReason.ERROR))
    assert span_of(exported).status.status_code is StatusCode.ERROR


def test_no_text_of_the_request_is_in_a_span(tracing: SpanTracing, exported: InMemorySpanExporter) -> None:
    tracing.begin("r", "chat", PARAMS, stream=False, headers={"authorization": "my secret"})
    tracing.observe_request(timeline())
    assert "my secret" not in span_of(exported).to_json()


def test_nothing_is_kept_of_requests_that_ended_or_were_refused(tracing: SpanTracing) -> None:
    for name in ("r", "refused"):
        tracing.begin(name, "chat", PARAMS, stream=False, headers={})
    tracing.observe_step(report(ReasonCode.PAYS))
    tracing.observe_request(timeline())
    tracing.drop("refused")
    assert tracing._records == {}


def test_an_engine_makes_one_span_per_request(tracing: SpanTracing, exported: InMemorySpanExporter) -> None:
    script = hashed(BYTE_VOCAB)
    engine = scripted_engine(
        ScriptedRunner(script, BYTE_VOCAB),
        ByteTokenizer(),
        proposer=ScriptedProposer(script, BYTE_VOCAB),
        speculation=SpeculationOptions(proposer="scripted", draft_length=3),
    )
    tracing.attach(engine)
    for name in "ab":
        engine.add(Request([1, 2, 3], SamplingParams(max_tokens=12, ignore_eos=True), id=name))
    while engine.has_work:
        engine.step()
    found = {span.attributes["gen_ai.response.id"]: span for span in exported.get_finished_spans() if span.attributes}
    assert found.keys() == {"a", "b"}
    assert all(span.attributes["gamaneh.speculation.rounds"] == 3 for span in found.values() if span.attributes)


class TestChoice:
    def test_nothing_is_traced_when_nobody_listens(self, no_settings: None) -> None:
        assert isinstance(make_tracing("tiny"), NoTracing)

    def test_nothing_is_traced_without_the_library(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delitem(sys.modules, "gamaneh.metrics.spans")
        monkeypatch.setitem(sys.modules, "opentelemetry", None)
        assert isinstance(make_tracing("tiny"), NoTracing)

    def test_the_environment_says_where_spans_go(self, no_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
        tracing = make_tracing("tiny")
        assert isinstance(tracing, SpanTracing)
        tracing.provider.shutdown()

    def test_no_tracing_leaves_the_engine_alone(self) -> None:
        engine = scripted_engine(ScriptedRunner(hashed(300), 300), ByteTokenizer())
        tracing = NoTracing()
        tracing.attach(engine)
        tracing.begin("r", "chat", PARAMS, stream=False, headers={})
        tracing.drop("r")
        assert (engine.observers, engine.request_observers) == ([], [])
