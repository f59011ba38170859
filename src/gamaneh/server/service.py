"""What the routes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.metrics.prometheus import PrometheusMetrics
from gamaneh.metrics.tracing import make_tracing
from gamaneh.server.access import Client, Gate, KeyRing
from gamaneh.server.prepare import Preparation, Prepared, ServedTokenizer
from gamaneh.server.server_options import ServerOptions


class Service:
    """One engine and everything around it.

    Args:
        engine: not started yet.
        model: the name it was loaded by.
        keys: who is served.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        tokenizer: ServedTokenizer,
        model: str,
        options: ServerOptions | None = None,
        keys: KeyRing | None = None,
    ) -> None:
        self.engine = engine
        self.tokenizer = tokenizer
        self.options = options or ServerOptions()
        self.keys = keys or KeyRing(self.options.api_key)
        self.model = self.options.served_model_name or model
        self.preparation = Preparation(engine, tokenizer, self.model, self.options)
        self.metrics = _metrics(engine)
        self.tracing = make_tracing(self.model)
        self.tracing.attach(engine.engine)
        at_once = engine.engine.options.max_batch
        self.gate = Gate(at_once + self.options.max_waiting, at_once, self.options.max_per_key)
        self.draining = False

    @property
    def healthy(self) -> bool:
        """Whether the engine's thread runs and gets on with its work."""
        load = self.engine.load()
        busy = load.running + load.waiting > 0
        return self.engine.alive and not (busy and self.engine.seconds_since_turn > self.options.stall_seconds)


def _metrics(engine: AsyncEngine) -> PrometheusMetrics:
    metrics = PrometheusMetrics()
    metrics.attach(engine.engine)
    options = engine.engine.options
    metrics.set_limits(max_batch=options.max_batch, step_tokens=options.step_tokens)
    metrics.set_weights("target", engine.engine.backend.caps.weight_bytes)
    for name, proposer in engine.engine.proposers.items():
        metrics.set_weights(name, proposer.memory_bytes())
    return metrics


@dataclass(frozen=True, slots=True)
class ApiRoute:
    """One way to ask for answers.

    Args:
        prefix: of the ids of its responses.
        operation: what traces call it.
        prepare: reads a body.
        names: what the engine calls a field -> what the request calls it.
    """

    path: str
    prefix: str
    operation: str
    prepare: Callable[[bytes, Client], Prepared]
    names: dict[str, str]
