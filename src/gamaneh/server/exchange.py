"""The life of one request for answers, from its first byte to its last. A response is a folded stream."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from gamaneh import core
from gamaneh.core import StepOutput
from gamaneh.errors import EngineStopped, InvalidRequest
from gamaneh.server.access import Client, Ticket
from gamaneh.server.api_errors import NO_RETRY, ApiError, failed, from_engine_stopped, from_invalid_request, invalid
from gamaneh.server.choice import Choice, Delta
from gamaneh.server.explain import approximation, output_tokens_of, speculation_metrics, usage_of
from gamaneh.server.logs import log
from gamaneh.server.prepare import Prepared
from gamaneh.server.service import ApiRoute, Service
from gamaneh.server.sse import EventStream, until_disconnect
from gamaneh.server.watch import Passage, passage_of

BODY_SECONDS = 30.0
"""How long a body may take to arrive. Its request holds a place meanwhile."""

CLIENT_GONE = 499
"""Status that is logged when nobody was there any more to read one."""


async def exchange(service: Service, route: ApiRoute, request: Request) -> Response:
    """Answer one request.

    Raises:
        ApiError: it is refused, or failed before anything was sent.
    """
    if service.draining:
        raise ApiError(503, "the server is ending", code="engine_stopped", headers={"Retry-After": "5"})
    client = service.keys.identify(request.headers)
    ticket = service.gate.enter(client)
    life = Exchange(service, route, client, ticket, passage_of(request.scope))
    try:
        return await life.respond(request)
    except BaseException as error:
        life.close(error)
        if isinstance(error, ClientDisconnect):
            return Response(status_code=CLIENT_GONE)
        raise


class Exchange:
    """One request on its way; `close` must be called once, whatever happens."""

    def __init__(self, service: Service, route: ApiRoute, client: Client, ticket: Ticket, passage: Passage) -> None:
        self.service, self.route, self.client, self.ticket = service, route, client, ticket
        self.passage = passage
        self.name = f"{route.prefix}-{uuid.uuid4().hex}"
        self.started = time.monotonic()
        self.prepared: Prepared | None = None
        self.choices: Sequence[Choice] = ()
        self._deadline = 0.0
        self._created = int(time.time())

    async def respond(self, request: Request) -> Response:
        """The response, complete or about to be streamed; a stream closes the exchange at its end."""
        prepared = await self._prepare(request)
        await self._start(prepared, request.headers)
        if prepared.request.stream:
            options = prepared.request.stream_options
            wants_usage, always = (
                (False, False) if options is None else (options.include_usage, options.continuous_usage_stats)
            )
            return EventStream(self.chunks(prepared, usage=wants_usage, running=always), self.close)
        whole = await until_disconnect(request.receive, self.whole(prepared))
        self.close(None)
        return JSONResponse(whole)

    async def chunks(self, prepared: Prepared, *, usage: bool, running: bool = False) -> AsyncGenerator[dict[str, Any]]:
        """Each step as chunks.

        Args:
            usage: one more chunk at the end, without choices, tells the usage.
            running: each chunk tells the usage so far.

        Raises:
            ApiError: 408, the time is over; 500, an answer failed; 503, the engine has stopped.
        """
        async with aclosing(self._steps()) as steps:
            async for choice, output in steps:
                for chunk in self._chunks(prepared, choice, output, last=not usage):
                    now = {"usage": usage_of(self.choices, prepared.per_prompt)} if running else {"usage": None}
                    yield {**chunk, **now} if usage or running else chunk
        if usage:
            counts = usage_of(self.choices, prepared.per_prompt)
            yield self._chunk([], usage=counts, **_gamaneh(self._about(prepared)))

    async def whole(self, prepared: Prepared) -> dict[str, Any]:
        """One response with everything.

        Raises:
            ApiError: as `chunks`.
        """
        async with aclosing(self.chunks(prepared, usage=True)) as chunks:
            collected = [chunk async for chunk in chunks]
        deltas = [delta for chunk in collected for delta in chunk["choices"]]
        return {
            **self._head(self.choices[0].kind),
            "choices": [
                choice.fold([delta for delta in deltas if delta["index"] == choice.index]) for choice in self.choices
            ],
            "usage": collected[-1]["usage"],
            **_folded([chunk["gamaneh"] for chunk in collected if "gamaneh" in chunk]),
        }

    def close(self, error: BaseException | None) -> None:
        """Stop what still runs before the next step, give back what was taken, and log what happened."""
        for choice in self.choices:
            if not choice.ended:
                self.service.engine.abort(self._name(choice))
        seconds = time.monotonic() - self.started
        self.ticket.release(seconds if self.choices else None)
        self.passage.logged = True
        log("request", _level(error), **self._summary(error, seconds))

    async def _prepare(self, request: Request) -> Prepared:
        """Read, parse and tokenise; the last two in a thread, since they may take long."""
        body = await receive_body(request, self.service.options.max_body_bytes)
        prepared = await asyncio.to_thread(self.route.prepare, body, self.client)
        count, most = len(prepared.choices), self.service.gate.most_for(self.client)
        if count > most:
            raise invalid("n", f"n times the number of prompts must be at most {most}, got {count}")
        self.ticket.grow(count - 1)
        self.prepared = prepared
        return prepared

    async def _start(self, prepared: Prepared, headers: Mapping[str, str]) -> None:
        """Ask the engine for all answers.

        Raises:
            ApiError: a request breaks a rule, or the engine has stopped.
        """
        self._deadline = asyncio.get_running_loop().time() + self.service.options.request_seconds
        self.choices = prepared.choices
        try:
            with self._traced(headers, stream=bool(prepared.request.stream)), _engine_errors():
                for choice in self.choices:
                    job = choice.job
                    choice.stream = await self.service.engine.submit(
                        core.Request(
                            job.prompt,
                            job.params,
                            id=self._name(choice),
                            drafting=job.speculation,
                            reference=job.reference,
                            salt=job.salt,
                            mask=job.mask,
                            priority=job.priority,
                        )
                    )
        except InvalidRequest as error:
            raise from_invalid_request(error, self.route.names) from error

    def _name(self, choice: Choice) -> str:
        return f"{self.name}-{choice.index}"

    @contextmanager
    def _traced(self, headers: Mapping[str, str], *, stream: bool) -> Iterator[None]:
        """Traces of the answers continue the caller's; of those that do not start, none is kept."""
        tracing = self.service.tracing
        for choice in self.choices:
            tracing.begin(self._name(choice), self.route.operation, choice.job.params, stream=stream, headers=headers)
        try:
            yield
        finally:
            for choice in self.choices:
                if choice.stream is None:
                    tracing.drop(self._name(choice))

    async def _steps(self) -> AsyncGenerator[tuple[Choice, StepOutput]]:
        """What the engine brings for the answers, as it comes; ends when all answers have."""
        pending = {_next_step(choice): choice for choice in self.choices}
        try:
            while pending:
                for task in await self._first_done(pending):
                    choice = pending.pop(task)
                    output = _output(choice, task)
                    yield choice, output
                    if not choice.ended:
                        pending[_next_step(choice)] = choice
        finally:
            for task in pending:
                task.cancel()

    async def _first_done(
        self, pending: Mapping[asyncio.Future[StepOutput], Choice]
    ) -> Sequence[asyncio.Future[StepOutput]]:
        left = self._deadline - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait(pending, timeout=max(left, 0.0), return_when=asyncio.FIRST_COMPLETED)
        if not done:
            raise ApiError(408, "the time for one request is over", code="request_timeout", headers=NO_RETRY)
        return sorted(done, key=lambda task: pending[task].index)

    def _chunks(self, prepared: Prepared, choice: Choice, output: StepOutput, *, last: bool) -> list[dict[str, Any]]:
        """Chunks of one step; what is told beside the choices goes with the last of them."""
        choice.count(output, keep_text=self.service.options.log_prompts)
        about: dict[str, Any] = {}
        if prepared.wants.tokens and (tokens := choice.told(output)):
            about["tokens"] = tokens
        if last and all(each.ended for each in self.choices):
            about |= self._about(prepared)
        chunks = [self._chunk([delta]) for delta in choice.deltas(output, always=bool(about))]
        if about:
            chunks[-1] |= _gamaneh(about)
        return chunks

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.name, "object": kind, "created": self._created, "model": self.service.model}

    def _chunk(self, choices: list[Delta], **more: Any) -> dict[str, Any]:
        return {**self._head(self.choices[0].chunk_kind), "choices": choices, **more}

    def _about(self, prepared: Prepared) -> dict[str, Any]:
        about = approximation(self.choices)
        if prepared.wants.metrics:
            about["speculation"] = speculation_metrics(self.choices)
        return about

    def _summary(self, error: BaseException | None, seconds: float) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "id": self.name,
            "request_id": self.passage.request_id,
            "route": self.route.path,
            "client": self.client.name or None,
            "status": _status(error),
            "seconds": round(seconds, 4),
        }
        if isinstance(error, ApiError):
            fields |= {"error": error.code, "param": error.param}
        if self.prepared is not None:
            fields |= {"stream": bool(self.prepared.request.stream), "user": self.prepared.request.user}
            fields |= {"unknown_fields": self.prepared.unknown} if self.prepared.unknown else {}
        if self.prepared is not None and all(choice.stream is not None for choice in self.prepared.choices):
            prompts = self.choices[:: self.prepared.per_prompt]
            fields |= {
                "prompt_tokens": sum(len(choice.job.prompt) for choice in prompts),
                "output_tokens": output_tokens_of(self.choices),
                **self._texts(),
            }
        return fields

    def _texts(self) -> dict[str, Any]:
        """What was asked and said, which is logged only where that was wished for."""
        if not self.service.options.log_prompts:
            return {}
        decode = self.service.tokenizer.decode
        prompts = [decode(choice.job.prompt, skip_special=False) for choice in self.choices]
        return {"prompts": prompts, "outputs": ["".join(choice.pieces) for choice in self.choices]}


async def receive_body(request: Request, limit: int) -> bytes:
    """The body of a request, which must be there in time.

    Raises:
        ApiError: 408, it took too long; 413, it is longer than `limit` bytes.
    """
    try:
        async with asyncio.timeout(BODY_SECONDS):
            return await read_body(request.stream(), request.headers.get("content-length"), limit)
    except TimeoutError as error:
        message = f"the body must arrive within {BODY_SECONDS:g} seconds"
        raise ApiError(408, message, code="request_timeout", headers=NO_RETRY) from error


async def read_body(chunks: AsyncIterator[bytes], declared: str | None, limit: int) -> bytes:
    """The body of a request, as long as it is at most `limit` bytes; `declared` is its Content-Length.

    Raises:
        ApiError: 413, it is longer.
    """
    if declared is not None and declared.isdigit() and int(declared) > limit:
        raise _too_large(declared, limit)
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise _too_large(f"more than {limit}", limit)
    return bytes(body)


def _too_large(size: str, limit: int) -> ApiError:
    return ApiError(413, f"the body must have at most {limit} bytes, got {size}", code="request_too_large")


def _next_step(choice: Choice) -> asyncio.Future[StepOutput]:
    assert choice.stream is not None, f"answer {choice.index} was never asked for"
    return asyncio.ensure_future(anext(choice.stream))


def _output(choice: Choice, task: asyncio.Future[StepOutput]) -> StepOutput:
    with _engine_errors():
        output = task.result()
    choice.ended = output.finish_reason is not None
    if output.error is not None:
        raise failed(output.error)
    return output


@contextmanager
def _engine_errors() -> Iterator[None]:
    try:
        yield
    except EngineStopped as error:
        raise from_engine_stopped(error) from error


def _gamaneh(about: dict[str, Any]) -> dict[str, Any]:
    return {"gamaneh": about} if about else {}


def _folded(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What chunks told beside their choices, in one."""
    tokens = [entry for part in parts for entry in part.get("tokens", ())]
    whole = {key: value for part in parts for key, value in part.items()} | ({"tokens": tokens} if tokens else {})
    return _gamaneh(whole)


def _status(error: BaseException | None) -> int:
    if error is None:
        return 200
    if isinstance(error, ClientDisconnect | asyncio.CancelledError):
        return CLIENT_GONE
    return error.status if isinstance(error, ApiError) else 500


def _level(error: BaseException | None) -> int:
    return logging.ERROR if _status(error) >= 500 else logging.INFO
