"""One trace span per request, where OpenTelemetry is installed; nothing at all where it is not."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from gamaneh.core import StepReport
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.options import SamplingParams


class TracedEngine(Protocol):
    """An engine that tells what it does to each request."""

    observers: list[Callable[[StepReport], None]]
    request_observers: list[Callable[[RequestTimeline], None]]


class Tracing(Protocol):
    """Turns what is told about requests into spans."""

    def attach(self, engine: TracedEngine) -> None:
        """Trace the requests that `engine` serves from now on."""
        ...

    def begin(
        self, request_id: str, operation: str, params: SamplingParams, *, stream: bool, headers: Mapping[str, str]
    ) -> None:
        """Say more about a request, before the engine gets it.

        Args:
            operation: `chat` or `text_completion`.
            headers: of the HTTP request; the caller's trace is continued when they name one.
        """
        ...

    def drop(self, request_id: str) -> None:
        """Forget what was said about a request that the engine has refused."""
        ...


class NoTracing:
    """Traces nothing and costs nothing."""

    def attach(self, engine: TracedEngine) -> None:
        """Leave the engine alone."""

    def begin(
        self, request_id: str, operation: str, params: SamplingParams, *, stream: bool, headers: Mapping[str, str]
    ) -> None:
        """Nothing to say it to."""

    def drop(self, request_id: str) -> None:
        """Nothing was said."""


def make_tracing(model: str) -> Tracing:
    """Tracing by OpenTelemetry's own settings, which are its environment variables.

    Spans go to `OTEL_EXPORTER_OTLP_ENDPOINT`, if that is set, else to the tracer provider that the
    program has set up. Nothing is traced where there is neither, nor without the extra `otel`.
    """
    try:
        from gamaneh.metrics.spans import SpanTracing, choose_provider
    except ImportError:
        return NoTracing()
    provider = choose_provider()
    return NoTracing() if provider is None else SpanTracing(model, provider)
