"""The routes, put together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route as HttpRoute

from gamaneh import __version__
from gamaneh.engine.engine import Engine
from gamaneh.errors import EngineStopped
from gamaneh.server.access import Client
from gamaneh.server.api_errors import ApiError, answer_api_error, answer_http_error, from_engine_stopped
from gamaneh.server.exchange import exchange
from gamaneh.server.playground import routes as page_routes
from gamaneh.server.schemas import shown_value
from gamaneh.server.service import ApiRoute, Service
from gamaneh.server.tokenizing import Tokenizing
from gamaneh.server.watch import REQUEST_ID, Watch, hosts_of


def build_app(service: Service) -> Starlette:
    """The application that serves `service`, whose engine somebody else starts and stops."""
    routes = [*_answering(service), *_telling(service), *Tokenizing(service).routes(), *page_routes()]
    options = service.options
    watch = Middleware(
        Watch,
        metrics=service.metrics,
        routes=[route.path for route in routes],
        hosts=hosts_of(options.host, options.allow_host),
        origins=options.allow_origin,
    )
    return Starlette(
        routes=routes,
        middleware=[*_origins(options.allow_origin), watch],
        exception_handlers={ApiError: answer_api_error, HTTPException: answer_http_error},
    )


def _origins(allowed: Sequence[str]) -> Iterator[Middleware]:
    """What browsers ask before they let a page of another origin ask; without such pages, nothing allows them."""
    if allowed:
        yield Middleware(
            CORSMiddleware,
            allow_origins=list(allowed),
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID, "Retry-After", "x-should-retry"],
        )


def _answering(service: Service) -> Iterator[HttpRoute]:
    preparation = service.preparation
    chat = ApiRoute("/v1/chat/completions", "chatcmpl", "chat", preparation.chat, {"prompt": "messages", **_NAMES})
    completion = ApiRoute("/v1/completions", "cmpl", "text_completion", preparation.completion, _NAMES)
    for route in (chat, completion):
        yield HttpRoute(route.path, partial(exchange, service, route), methods=["POST"])


def _telling(service: Service) -> Iterator[HttpRoute]:
    state = _State(service)
    yield HttpRoute("/v1/models", state.models)
    yield HttpRoute("/v1/models/{model:path}", state.model)
    yield HttpRoute("/v1/speculation", state.speculation)
    yield HttpRoute("/version", state.version)
    yield HttpRoute("/health", state.health)
    yield HttpRoute("/ready", state.ready)
    yield HttpRoute("/metrics", state.metrics)


_NAMES = {"proposer": "speculation.proposer", "reference": "prediction"}
"""What the engine calls a field -> what requests call it."""


class _State:
    """The endpoints that say what there is and how it is."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.created = int(time.time())

    async def models(self, request: Request) -> Response:
        self._identify(request)
        return JSONResponse({"object": "list", "data": [self._model()]})

    async def model(self, request: Request) -> Response:
        self._identify(request)
        name = request.path_params["model"]
        if name != self.service.model:
            message = f"model must be {self.service.model}, got {shown_value(name)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return JSONResponse(self._model())

    async def version(self, request: Request) -> Response:
        """What serves here."""
        return JSONResponse({"version": __version__})

    async def health(self, request: Request) -> Response:
        """Whether the engine lives; asking costs it nothing."""
        engine = self.service.engine
        failure = None if engine.failure is None else f"{type(engine.failure).__name__}: {engine.failure}"
        healthy = self.service.healthy
        body = {"status": "ok" if healthy else "unhealthy", "failure": failure}
        return JSONResponse(body, 200 if healthy else 503)

    async def ready(self, request: Request) -> Response:
        """Whether new requests are taken."""
        ready = self.service.healthy and not self.service.draining
        load = self.service.engine.load()
        body = {"status": "ready" if ready else "not ready", "running": load.running, "waiting": load.waiting}
        return JSONResponse(body, 200 if ready else 503)

    async def metrics(self, request: Request) -> Response:
        """Everything for Prometheus. No key is asked for: nothing of what was said is in it."""
        metrics, load = self.service.metrics, self.service.engine.load()
        metrics.set_load(running=load.running, waiting=load.waiting, kv_used=load.kv_used, kv_total=load.kv_total)
        text = await asyncio.to_thread(metrics.render)
        return Response(text, media_type=metrics.content_type)

    async def speculation(self, request: Request) -> Response:
        """What router and controller do now, between two steps of the engine."""
        client = self._identify(request)
        engine = self.service.engine
        try:
            state = await asyncio.wrap_future(engine.call(lambda: speculation_state(engine.engine, client)))
        except EngineStopped as error:
            raise from_engine_stopped(error) from error
        return JSONResponse(state)

    def _identify(self, request: Request) -> Client:
        return self.service.keys.identify(request.headers)

    def _model(self) -> dict[str, Any]:
        engine = self.service.engine.engine
        return {
            "id": self.service.model,
            "object": "model",
            "created": self.created,
            "owned_by": "gamaneh",
            "max_model_len": engine.max_context,
            "proposers": list(engine.proposers),
        }


def speculation_state(engine: Engine, client: Client) -> dict[str, Any]:
    """How requests speculate that do not say otherwise, and what each proposer and the client's requests are doing."""
    options, salts = engine.speculation, engine.salts()
    state = asdict(engine.snapshot())
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
