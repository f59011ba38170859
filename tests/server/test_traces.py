"""Requests to the server as spans of a trace."""

from __future__ import annotations

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from served import MODEL, Running, engine_for

from gamaneh.metrics import spans

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def traced(start, exported: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch) -> Running:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exported))
    monkeypatch.setattr(spans, "choose_provider", lambda: provider)
    return start(engine_for())


def test_each_answer_is_a_span_of_the_callers_trace(traced: Running, exported: InMemorySpanExporter) -> None:
    body = {"prompt": "a", "n": 2, "max_tokens": 3, "ignore_eos": True}
    headers = {"traceparent": f"00-{TRACE_ID}-b7ad6b7169203331-01"}
    answer = traced.http.post("/v1/completions", json=body, headers=headers).json()
    made = exported.get_finished_spans()
    assert {span.name for span in made} == {f"text_completion {MODEL}"}
    assert {span.context.trace_id for span in made} == {int(TRACE_ID, 16)}
    assert {span.attributes["gen_ai.response.id"] for span in made} == {f"{answer['id']}-{n}" for n in range(2)}


def test_a_refused_request_leaves_nothing_behind(traced: Running, exported: InMemorySpanExporter) -> None:
    traced.refusal(prompt="a", speculation={"proposer": "nobody"})
    assert traced.service.tracing._records == {}
    assert exported.get_finished_spans() == ()
