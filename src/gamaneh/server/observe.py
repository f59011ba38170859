"""What the server tells about itself: metrics, and what speculation does now."""

from __future__ import annotations

import asyncio
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gamaneh.engine.engine import Engine
from gamaneh.errors import EngineStopped
from gamaneh.metrics.prometheus import PrometheusMetrics
from gamaneh.server.auth import Client
from gamaneh.server.errors import from_engine_stopped
from gamaneh.server.service import Service

OTHER = "other"
"""Stands for all paths that are none of ours, so that nobody can make series without end."""


class CountResponses:
    """Counts responses by route and status."""

    def __init__(self, app: ASGIApp, metrics: PrometheusMetrics, routes: frozenset[str]) -> None:
        self.app, self.metrics, self.routes = app, metrics, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        route = scope["path"] if scope["path"] in self.routes else OTHER

        async def counting(message: Message) -> None:
            if message["type"] == "http.response.start":
                self.metrics.observe_response(route, message["status"])
            await send(message)

        await self.app(scope, receive, counting)


class Observation:
    """The endpoints that tell."""

    def __init__(self, service: Service) -> None:
        self.service = service

    async def metrics(self, request: Request) -> Response:
        """Everything for Prometheus. No key is asked for: nothing of what was said is in it."""
        metrics, load = self.service.metrics, self.service.engine.load()
        metrics.set_load(running=load.running, waiting=load.waiting, kv_used=load.kv_used, kv_total=load.kv_total)
        text = await asyncio.to_thread(metrics.render)
        return Response(text, media_type=metrics.content_type)

    async def speculation(self, request: Request) -> Response:
        """What router and controller do now, between two steps of the engine."""
        client = self.service.keys.identify(request.headers.get("authorization"))
        engine = self.service.engine
        try:
            state = await asyncio.wrap_future(engine.call(lambda: speculation_state(engine.engine, client)))
        except EngineStopped as error:
            raise from_engine_stopped(error) from error
        return JSONResponse(state)


def speculation_state(engine: Engine, client: Client) -> dict[str, Any]:
    """How requests speculate that do not say otherwise, and what each proposer and the client's requests are doing."""
    options, salts = engine.speculation, engine.salts()
    state = asdict(engine.steering.snapshot())
    own = {name: doing for name, doing in state["requests"].items() if client.owns(salts.get(name, ""))}
    return {
        "default": {
            "proposer": options.proposer,
            "draft_length": options.draft_length,
            "max_draft_length": options.max_draft_length,
            "rule": options.rule,
        },
        **state,
        "requests": own,
        "invariant": engine.invariant,
    }
