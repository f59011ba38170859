"""The life of one request for answers, from its first byte to its last."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from gamaneh.errors import InvalidRequest
from gamaneh.server.auth import Client
from gamaneh.server.errors import NO_RETRY, ApiError, from_invalid_request
from gamaneh.server.events import Answers
from gamaneh.server.limits import Ticket, read_body
from gamaneh.server.logs import log
from gamaneh.server.prepare import Prepared
from gamaneh.server.service import Route, Service
from gamaneh.server.sse import EventStream, until_disconnect
from gamaneh.server.writer import Writer

BODY_SECONDS = 30.0
"""How long a body may take to arrive. Its request holds a place meanwhile."""

CLIENT_GONE = 499
"""Status that is logged when nobody was there any more to read one."""


async def exchange(service: Service, route: Route, request: Request) -> Response:
    """Answer one request.

    Raises:
        ApiError: it is refused, or failed before anything was sent.
    """
    client = service.keys.identify(request.headers.get("authorization"))
    ticket = service.gate.enter(client)
    life = Exchange(service, route, client, ticket)
    try:
        return await life.respond(request)
    except BaseException as error:
        life.close(error)
        if isinstance(error, ClientDisconnect):
            return Response(status_code=CLIENT_GONE)
        raise


class Exchange:
    """One request on its way; `close` must be called once, whatever happens."""

    def __init__(self, service: Service, route: Route, client: Client, ticket: Ticket) -> None:
        self.service, self.route, self.client, self.ticket = service, route, client, ticket
        self.name = f"{route.prefix}-{uuid.uuid4().hex}"
        self.started = time.monotonic()
        self.prepared: Prepared | None = None
        self.answers: Answers | None = None
        self.writer: Writer | None = None

    async def respond(self, request: Request) -> Response:
        """The response, complete or about to be streamed; a stream closes the exchange at its end."""
        prepared = await self._prepare(request)
        writer = await self._start(prepared, request.headers)
        if prepared.request.stream:
            options = prepared.request.stream_options
            chunks = writer.chunks(usage=options is not None and options.include_usage)
            return EventStream(chunks, self.close)
        whole = await until_disconnect(request.receive, writer.whole())
        self.close(None)
        return JSONResponse(whole)

    def close(self, error: BaseException | None) -> None:
        """Stop what still runs, give back what was taken, and log what happened."""
        if self.answers is not None:
            self.answers.close()
        seconds = time.monotonic() - self.started
        self.ticket.release(seconds if self.answers is not None else None)
        log("request", _level(error), **self._summary(error, seconds))

    async def _prepare(self, request: Request) -> Prepared:
        """Read, parse and tokenise; the last two in a thread, since they may take long."""
        limit = self.service.options.max_body_bytes
        try:
            async with asyncio.timeout(BODY_SECONDS):
                body = await read_body(request.stream(), request.headers.get("content-length"), limit)
        except TimeoutError as error:
            message = f"the body must arrive within {BODY_SECONDS:g} seconds"
            raise ApiError(408, message, code="request_timeout", headers=NO_RETRY) from error
        prepared = await asyncio.to_thread(self.route.prepare, body, self.client)
        self.ticket.grow(len(prepared.jobs) - 1)
        self.prepared = prepared
        return prepared

    async def _start(self, prepared: Prepared, headers: Mapping[str, str]) -> Writer:
        deadline = asyncio.get_running_loop().time() + self.service.options.request_seconds
        self.answers = Answers(self.service.engine, prepared.jobs, self.name, deadline)
        try:
            with self._traced(self.answers, headers, stream=bool(prepared.request.stream)):
                await self.answers.start()
        except InvalidRequest as error:
            raise from_invalid_request(error, self.route.names) from error
        self.writer = Writer(
            self.answers,
            prepared.style,
            self.service.tokenizer,
            name=self.name,
            model=self.service.model,
            per_prompt=prepared.per_prompt,
            wants=prepared.wants,
            keep_text=self.service.options.log_prompts,
        )
        return self.writer

    @contextmanager
    def _traced(self, answers: Answers, headers: Mapping[str, str], *, stream: bool) -> Iterator[None]:
        """Traces of the answers continue the caller's; of those that do not start, none is kept."""
        tracing = self.service.tracing
        for job, name in zip(answers.jobs, answers.names, strict=True):
            tracing.begin(name, self.route.operation, job.params, stream=stream, headers=headers)
        try:
            yield
        finally:
            for name in answers.names[len(answers.streams) :]:
                tracing.drop(name)

    def _summary(self, error: BaseException | None, seconds: float) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "id": self.name,
            "route": self.route.path,
            "client": self.client.name or None,
            "status": _status(error),
            "seconds": round(seconds, 4),
        }
        if isinstance(error, ApiError):
            fields |= {"error": error.code, "param": error.param}
        if self.prepared is not None:
            fields |= {"stream": bool(self.prepared.request.stream), "user": self.prepared.request.user}
        if self.writer is not None:
            tally = self.writer.tally
            fields |= {"prompt_tokens": tally.prompt_tokens, "output_tokens": tally.output_tokens}
        return fields | self._texts()

    def _texts(self) -> dict[str, Any]:
        """What was asked and said, which is logged only where that was wished for."""
        if self.writer is None or not self.service.options.log_prompts:
            return {}
        prompts = [self.service.tokenizer.decode(job.prompt, skip_special=False) for job in self.writer.answers.jobs]
        return {"prompts": prompts, "outputs": self.writer.tally.texts}


def _status(error: BaseException | None) -> int:
    if error is None:
        return 200
    if isinstance(error, ClientDisconnect | asyncio.CancelledError):
        return CLIENT_GONE
    return error.status if isinstance(error, ApiError) else 500


def _level(error: BaseException | None) -> int:
    return logging.ERROR if _status(error) >= 500 else logging.INFO
