"""A server as a client of the benchmarks sees it. `httpx` is needed here only."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import fields
from typing import Any, Self

import httpx

from gamaneh.bench.counters import Counters, read_counters
from gamaneh.bench.counts import Counts
from gamaneh.bench.dialects import OTHER, Dialect, recognise
from gamaneh.bench.traffic import Ask, Delivery, Ending, RequestFailed
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.options import SamplingParams

CONNECT_SECONDS = 10.0
SILENT_SECONDS = 600.0
"""A server that says nothing for so long is taken for dead."""

_DONE = "[DONE]"
_ALWAYS = ("max_tokens", "temperature", "top_p", "seed")
"""Sampling parameters that are always sent; the others where they differ from their defaults."""

_NOT_SENT = frozenset({"logprobs", "prompt_logprobs", "bad_words"})


class ServerUnreachable(GamanehError):
    """There is no server at an address, or none that has a model."""


class ServerRefused(RequestFailed):
    """A server answered with an error."""


class ServerBroke(RequestFailed):
    """A server broke off, or sent what is no answer."""


class HttpClient:
    """Chat completions of a server, streamed.

    Args:
        url: of the server, without a path.
        key: API key; None sends none.
        transport: how requests travel; None takes the network.
        extra: fields to send in each request, whatever is asked.

    Attributes:
        model: what is served.
        dialect: the kind of server, known once it was entered.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        limits = httpx.Limits(max_connections=None)
        timeout = httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS)
        self._http = httpx.AsyncClient(
            base_url=url, headers=headers, timeout=timeout, limits=limits, transport=transport
        )
        self.url, self.extra = url, dict(extra or {})
        self.model: dict[str, Any] = {}
        self.dialect: Dialect = OTHER

    async def __aenter__(self) -> Self:
        """
        Raises:
            ServerUnreachable: nobody answers, or not as OpenAI's API does.
        """
        try:
            models = (await self._http.get("/v1/models")).raise_for_status().json()
            self.model = dict(models["data"][0])
            self.dialect = recognise(str(self.model.get("owned_by")), await self._series())
        except (httpx.HTTPError, httpx.InvalidURL, ValueError, LookupError, TypeError) as error:
            await self._http.aclose()
            raise ServerUnreachable(
                f"{self.url} must be a server with OpenAI's API, /v1/models failed: {_described(error)}"
            ) from error
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def counters(self) -> Counters | None:
        """What the server counts at `/metrics`; None if it has none."""
        text = await self._series()
        return read_counters(text, self.dialect.series) if text else None

    async def stream(self, ask: Ask) -> AsyncGenerator[Delivery]:
        """Deliveries of one answer; each event of the stream with text is one.

        Raises:
            ServerRefused: the server answered with an error.
            ServerBroke: it broke off, or sent what is no answer.
            InvalidOption: it cannot be told not to speculate.
        """
        said: dict[str, Any] = {}
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=self._body(ask)) as response:
                if response.is_error:
                    detail = (await response.aread()).decode(errors="replace")
                    raise ServerRefused(f"the server answered {response.status_code}: {detail[:500]}")
                async for event in _events(response):
                    yield _delivery(event)
                    said |= {name: event[name] for name in ("usage", "timings", "gamaneh") if event.get(name)}
        except httpx.HTTPError as error:
            raise ServerBroke(f"the server broke off: {_described(error)}") from error
        yield Delivery("", 0, _ending(said))

    async def refuses_nonsense(self) -> bool:
        """Whether a request without a message is refused as the client's fault."""
        body = {"model": self.model["id"], "messages": []}
        return (await self._http.post("/v1/chat/completions", json=body)).status_code == httpx.codes.BAD_REQUEST

    async def _series(self) -> str:
        try:
            response = await self._http.get("/metrics")
        except httpx.HTTPError:
            return ""
        return response.text if response.is_success else ""

    def _body(self, ask: Ask) -> dict[str, Any]:
        return {
            "model": self.model["id"],
            "messages": [{"role": "user", "content": ask.text}],
            "stream": True,
            "stream_options": {"include_usage": True},
            **_sampling(ask.params),
            **self._salt(ask.salt),
            **self._switch(ask.speculate),
            **self.extra,
        }

    def _salt(self, salt: str) -> Mapping[str, Any]:
        if not salt:
            return {}
        return self.dialect.forgetful if self.dialect.salt is None else {self.dialect.salt: salt}

    def _switch(self, speculate: bool) -> Mapping[str, Any]:
        if speculate:
            return self.dialect.speculative
        if self.dialect.plain is None:
            raise InvalidOption("--url", "must be a server that can be told not to speculate", self.dialect.name)
        return self.dialect.plain


def _sampling(params: SamplingParams) -> dict[str, Any]:
    usual = SamplingParams()
    names = [entry.name for entry in fields(SamplingParams) if entry.name not in _NOT_SENT]
    sent = {name: getattr(params, name) for name in names}
    body = {name: value for name, value in sent.items() if name in _ALWAYS or value != getattr(usual, name)}
    if params.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": params.logprobs}
    return body


async def _events(response: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    """The events of a stream up to `[DONE]`.

    Raises:
        ServerBroke: an event is not JSON, or the stream ends without `[DONE]`.
    """
    async for line in response.aiter_lines():
        if not line.startswith("data:"):
            continue
        data = line.removeprefix("data:").strip()
        if data == _DONE:
            return
        yield _parsed(data)
    raise ServerBroke(f"the server broke off: the stream ended without {_DONE}")


def _parsed(data: str) -> dict[str, Any]:
    try:
        event = json.loads(data)
    except ValueError as error:
        raise ServerBroke(f"the server sent an event that is not JSON: {data[:80]!r}") from error
    if not isinstance(event, dict):
        raise ServerBroke(f"the server sent an event that is not an object: {data[:80]!r}")
    if "error" in event:
        raise ServerRefused(f"the server broke the answer off: {event['error']}")
    return event


def _delivery(event: Mapping[str, Any]) -> Delivery:
    """An event with text counts as one token until `usage` tells the number of all."""
    try:
        deltas = [choice["delta"] for choice in event["choices"]]
        text = "".join(_said(delta) for delta in deltas)
        gaps = [gap for choice in event["choices"] for gap in _gaps(choice.get("logprobs") or {})]
    except (LookupError, TypeError, AttributeError) as error:
        raise ServerBroke(f"the server sent an event that is no part of an answer: {str(event)[:80]}") from error
    return Delivery(text, 1 if text else 0, gaps=tuple(gaps))


def _said(delta: Mapping[str, Any]) -> str:
    return (delta.get("reasoning_content") or "") + (delta.get("content") or "")


def _gaps(logprobs: Mapping[str, Any]) -> Sequence[float]:
    tops = [
        sorted((top["logprob"] for top in token["top_logprobs"]), reverse=True)
        for token in logprobs.get("content") or ()
    ]
    return [top[0] - top[1] for top in tops if len(top) > 1]


def _ending(said: Mapping[str, Any]) -> Ending:
    """What the last events told: usage, llama.cpp's timings, our own account of speculation.

    Our seconds of draft and verify are shares of a batch, and so no part of the time that a request took.
    """
    usage, timings = said.get("usage") or {}, said.get("timings") or {}
    ours = (said.get("gamaneh") or {}).get("speculation") or {}
    seconds = ours.get("seconds") or {}
    prompt_ms = timings.get("prompt_ms")
    return Ending(
        tokens=usage.get("completion_tokens"),
        prompt_tokens=usage.get("prompt_tokens"),
        counts=_our_counts(ours) if ours else _llama_counts(timings),
        queue=seconds.get("queued"),
        prefill=seconds.get("prefill") if prompt_ms is None else prompt_ms / 1e3,
    )


def _our_counts(ours: Mapping[str, Any]) -> Counts:
    histogram = ours["accepted_histogram"]
    at_least = Counter({at: sum(histogram[at + 1 :]) for at in range(len(histogram) - 1)})
    names = ("accepted", "rounds", "drafts", "drafted", "emitted")
    return Counts(**{name: ours[name] for name in names}, accepted_at=at_least)


def _llama_counts(timings: Mapping[str, Any]) -> Counts | None:
    """A round emits what it accepted and one token more."""
    if "draft_n" not in timings:
        return None
    accepted, emitted = timings["draft_n_accepted"], timings["predicted_n"]
    return Counts(accepted, rounds=emitted - accepted, drafted=timings["draft_n"], emitted=emitted)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
