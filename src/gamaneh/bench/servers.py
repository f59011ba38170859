"""Ways of answering over HTTP: servers with OpenAI's API, of whatever kind. `httpx` is needed here only.

Names of series: the documentation of vLLM, SGLang and TGI; what llama.cpp's server shows with `--metrics`.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, fields
from types import MappingProxyType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx
from prometheus_client.parser import text_string_to_metric_families

from gamaneh.bench.engines import describe_hardware, sampling_of
from gamaneh.bench.measure import BenchPlan
from gamaneh.bench.record import (
    PLAIN_SIDE,
    SPECULATIVE_SIDE,
    Ask,
    Counters,
    Counts,
    Delivery,
    Ending,
    RequestFailed,
    Way,
    Ways,
)
from gamaneh.bench.result import SideSetup, TokenSource
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.options import SamplingParams

_NOTHING: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Series:
    """Names of a server's series at `/metrics`; None where it has none.

    Args:
        rounds: verifications; drafts: those with a draft.
        emitted: output tokens. Where a server counts rounds and these alone, the difference is what was accepted.
        accepted_at, offered_at: by the label `position`.
        cpu_seconds, resident, device: processor time and memory of the process.
        private: of its memory what must not grow; caches may, up to their size.
        models: bytes by the label `model`.
        kv_used: blocks of the KV cache in use.
    """

    accepted: str | None = None
    drafts: str | None = None
    drafted: str | None = None
    rounds: str | None = None
    emitted: str | None = None
    accepted_at: str | None = None
    offered_at: str | None = None
    cpu_seconds: str = "process_cpu_seconds_total"
    resident: str = "process_resident_memory_bytes"
    private: str | None = None
    device: str | None = None
    models: str | None = None
    kv_used: str | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One kind of server.

    Args:
        name: what to call it.
        owner: `owned_by` of its models; prefix: of its series. Either tells the kind.
        plain, speculative: fields of a request that switch speculation off and on; without a switch, None.
        salt: field of a request that takes its salt, so that prompts that come back are read again.
        forgetful: fields that do so without a salt.
    """

    name: str
    owner: str
    prefix: str
    plain: Mapping[str, Any] | None = None
    speculative: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    salt: str | None = None
    forgetful: Mapping[str, Any] = field(default_factory=lambda: _NOTHING)
    series: Series = field(default_factory=Series)

    @property
    def reads_anew(self) -> bool:
        """Whether it can be told to read a prompt again that it has read before."""
        return self.salt is not None or bool(self.forgetful)


def _usual_series(prefix: str, **more: str) -> Series:
    """Return the names that several servers have for what their drafts came to."""
    return Series(
        accepted=f"{prefix}spec_decode_num_accepted_tokens_total",
        drafts=f"{prefix}spec_decode_num_drafts_total",
        drafted=f"{prefix}spec_decode_num_draft_tokens_total",
        accepted_at=f"{prefix}spec_decode_num_accepted_tokens_per_pos_total",
        **more,
    )


DIALECTS = (
    Dialect(
        name="gamaneh",
        owner="gamaneh",
        prefix="gamaneh_",
        plain={"speculation": {"enabled": False, "metrics": True}},
        speculative={"speculation": {"enabled": True, "metrics": True}},
        salt="cache_salt",
        series=_usual_series(
            "gamaneh_",
            offered_at="gamaneh_spec_decode_num_draft_tokens_per_pos_total",
            cpu_seconds="gamaneh_process_cpu_seconds_total",
            resident="gamaneh_process_peak_memory_bytes",
            private="gamaneh_process_private_memory_bytes",
            device="gamaneh_device_peak_memory_bytes",
            models="gamaneh_model_memory_bytes",
            kv_used="gamaneh_kv_used_blocks",
        ),
    ),
    Dialect(name="vLLM", owner="vllm", prefix="vllm:", salt="cache_salt", series=_usual_series("vllm:")),
    Dialect(
        name="SGLang",
        owner="sglang",
        prefix="sglang:",
        series=Series(rounds="sglang:spec_verify_calls_total", emitted="sglang:generation_tokens_total"),
    ),
    Dialect(
        name="llama.cpp",
        owner="llamacpp",
        prefix="llamacpp:",
        forgetful={"cache_prompt": False},
        series=_usual_series("llamacpp:", emitted="llamacpp:tokens_predicted_total"),
    ),
    Dialect(
        name="TGI",
        owner="text-generation-inference",
        prefix="tgi_",
        series=Series(accepted="tgi_request_skipped_tokens_sum", rounds="tgi_request_skipped_tokens_count"),
    ),
)
OTHER = Dialect(name="OpenAI-compatible", owner="", prefix="")
"""A server that says nothing of itself."""


def recognise(owner: str, series: str) -> Dialect:
    """Return the kind of a server.

    Args:
        owner: `owned_by` of its first model.
        series: text of its `/metrics`; empty if it has none.
    """
    for dialect in DIALECTS:
        if owner == dialect.owner or f"\n{dialect.prefix}" in f"\n{series}":
            return dialect
    return OTHER


_Samples = Mapping[str, Sequence[tuple[Mapping[str, str], float]]]
"""Name of a series -> labels and value of each of its samples."""


def read_counters(text: str, series: Series) -> Counters | None:
    """Return the counters in a text of Prometheus; None when it is not one."""
    samples: dict[str, list[tuple[Mapping[str, str], float]]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                samples[sample.name].append((sample.labels, sample.value))
    except ValueError:
        return None
    models = samples.get(series.models or "", [])
    return Counters(
        counts=_counts(samples, series),
        cpu_seconds=_total(samples, series.cpu_seconds),
        resident=_whole(samples, series.resident),
        device=_whole(samples, series.device) or None,
        kv_used=_whole(samples, series.kv_used),
        private=_whole(samples, series.private),
        models={labels["model"]: int(value) for labels, value in models},
    )


def _total(samples: _Samples, name: str | None) -> float | None:
    found = samples.get(name or "")
    return None if found is None else sum(value for _, value in found)


def _whole(samples: _Samples, name: str | None) -> int | None:
    value = _total(samples, name)
    return None if value is None else int(value)


def _counts(samples: _Samples, series: Series) -> Counts | None:
    rounds, emitted = _whole(samples, series.rounds), _whole(samples, series.emitted)
    accepted = _whole(samples, series.accepted)
    if accepted is None and rounds is not None and emitted is not None:
        accepted = emitted - rounds
    if accepted is None:
        return None
    drafts = _whole(samples, series.drafts)
    accepted_at = _by_position(samples, series.accepted_at)
    return Counts(
        accepted=accepted,
        rounds=rounds,
        drafts=drafts,
        drafted=_whole(samples, series.drafted),
        emitted=emitted,
        accepted_at=accepted_at,
        offered_at=_by_position(samples, series.offered_at) or Counter(dict.fromkeys(accepted_at, drafts or 0)),
    )


def _by_position(samples: _Samples, name: str | None) -> Counter[int]:
    counter: Counter[int] = Counter()
    for labels, value in samples.get(name or "", []):
        counter[int(labels["position"])] += int(value)
    return counter


CONNECT_SECONDS = 10.0
SILENT_SECONDS = 600.0
"""A server that says nothing for so long is taken for dead."""

_DONE = "[DONE]"
_FAILED = ("error", "abort")
"""Values of `finish_reason` that say that the answer is not whole."""

_ALWAYS = ("max_tokens", "temperature", "top_p", "seed")
"""Sampling parameters that are always sent; the others where they differ from their defaults."""

_NOT_SENT = frozenset({"logprobs", "prompt_logprobs", "bad_words"})


class ServerUnreachable(GamanehError):
    """There is no server at an address, or none that has a model."""


class ServerRefused(RequestFailed):
    """A server answered with an error."""

    reason = "refused"


class ServerFailed(ServerRefused):
    """A server began an answer and ended it with an error."""

    reason = "error"


class ServerBroke(RequestFailed):
    """A server broke off."""

    reason = "broken"


class ServerMalformed(ServerBroke):
    """A server sent what is no part of an answer."""

    reason = "malformed"


class HttpClient:
    """Chat completions of a server, streamed.

    Args:
        url: of the server, without a path.
        key: API key; None sends none.
        transport: how requests travel; None takes the network.
        extra: fields to send in each request, whatever is asked.
        count: text -> tokens, by the target's tokenizer, for servers that do not tell; None where it is not known.

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
        count: Callable[[str], int] | None = None,
    ) -> None:
        self._http = httpx.AsyncClient(
            base_url=url,
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS),
            limits=httpx.Limits(max_connections=None),
            transport=transport,
        )
        self.url, self.extra, self._tokens_of = url, dict(extra or {}), count
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
        """Return what the server counts at `/metrics`; None if it has none."""
        text = await self._series()
        return read_counters(text, self.dialect.series) if text else None

    async def stream(self, ask: Ask) -> AsyncGenerator[Delivery]:
        """Yield the deliveries of one answer; each event of the stream with text is one.

        Raises:
            ServerRefused: the server answered with an error, or ended the answer with one.
            ServerBroke: it broke off, or sent what is no answer.
            InvalidOption: it cannot be told not to speculate.
        """
        said: dict[str, Any] = {}
        texts: list[str] = []
        try:
            async with self._http.stream("POST", "/v1/chat/completions", json=self._body(ask)) as response:
                if response.is_error:
                    detail = (await response.aread()).decode(errors="replace")
                    raise ServerRefused(f"the server answered {response.status_code}: {detail[:500]}")
                async for event in _events(response):
                    delivery = _delivery(event)
                    texts += [delivery.text] if delivery.text else []
                    yield delivery
                    said |= {name: event[name] for name in _ACCOUNTS if event.get(name) is not None}
        except httpx.HTTPError as error:
            raise ServerBroke(f"the server broke off: {_described(error)}") from error
        yield Delivery("", 0, self._ending(said, texts))

    def _ending(self, said: Mapping[str, Any], texts: Sequence[str]) -> Ending:
        """Return what the last events told: usage, llama.cpp's timings, our own account of speculation.

        A server that says that it wrote nothing, beside a text, has not counted.
        """
        try:
            usage, timings = _object(said, "usage"), _object(said, "timings")
            ours = _object(_object(said, "gamaneh"), "speculation")
            tokens, source = self._count(_number(usage, "completion_tokens"), texts)
            prompt_ms = _number(timings, "prompt_ms", float)
            seconds = _object(ours, "seconds")
            return Ending(
                tokens=tokens,
                tokens_from=source,
                prompt_tokens=_number(usage, "prompt_tokens"),
                counts=_our_counts(ours) if ours else _llama_counts(timings),
                # Our seconds of draft and verify are shares of a batch, and so no part of the time that a request took.
                queue=_number(seconds, "queued", float),
                prefill=_number(seconds, "prefill", float) if prompt_ms is None else prompt_ms / 1e3,
            )
        except (LookupError, TypeError, ValueError) as error:
            raise ServerMalformed(f"the server's account of its answer is malformed: {_described(error)}") from error

    def _count(self, told: int | None, texts: Sequence[str]) -> tuple[int, TokenSource]:
        if told or (told is not None and not texts):
            return told, "usage"
        if self._tokens_of is not None:
            return self._tokens_of("".join(texts)), "tokenizer"
        return len(texts), "deliveries"

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


_ACCOUNTS = ("usage", "timings", "gamaneh")
"""Fields of an event that tell about the whole answer."""


async def _events(response: httpx.Response) -> AsyncGenerator[dict[str, Any]]:
    """Yield the events of a stream up to `[DONE]`.

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
        raise ServerMalformed(f"the server sent an event that is not JSON: {data[:80]!r}") from error
    if not isinstance(event, dict):
        raise ServerMalformed(f"the server sent an event that is not an object: {data[:80]!r}")
    if event.get("error") is not None:
        raise ServerFailed(f"the server broke the answer off: {event['error']}")
    return event


def _delivery(event: Mapping[str, Any]) -> Delivery:
    """Read one event. Text counts as one token until `usage` tells the number of all.

    An event without choices is part of an answer if it tells about the whole of it.
    """
    choices = event.get("choices")
    if choices is None and any(name in event for name in _ACCOUNTS):
        return Delivery("", 0)
    try:
        text = "".join(_said(choice["delta"] or {}) for choice in event["choices"])
        gaps = [gap for choice in event["choices"] for gap in _gaps(choice.get("logprobs") or {})]
        endings = [choice.get("finish_reason") for choice in event["choices"]]
    except (LookupError, TypeError, AttributeError) as error:
        raise ServerMalformed(f"the server sent an event that is no part of an answer: {str(event)[:80]}") from error
    for ending in endings:
        if ending in _FAILED:
            raise ServerFailed(f"the server ended the answer with finish_reason {ending}")
    return Delivery(text, 1 if text else 0, gaps=tuple(gaps))


def _said(delta: Mapping[str, Any]) -> str:
    return (delta.get("reasoning_content") or "") + (delta.get("content") or "")


def _gaps(logprobs: Mapping[str, Any]) -> Sequence[float]:
    tops = [
        sorted((top["logprob"] for top in token["top_logprobs"]), reverse=True)
        for token in logprobs.get("content") or ()
    ]
    return [top[0] - top[1] for top in tops if len(top) > 1]


def _object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    if value is None:
        return _NOTHING
    if not isinstance(value, dict):
        raise TypeError(f"{name} must be an object, got {value!r}")
    return value


def _number(values: Mapping[str, Any], name: str, kind: type[int] | type[float] = int) -> Any:
    value: Any = values.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | kind) or value < 0:
        raise TypeError(f"{name} must be a number at least 0, got {value!r}")
    return value


def _needed(values: Mapping[str, Any], name: str) -> int:
    value = _number(values, name)
    if value is None:
        raise LookupError(f"{name} is missing")
    return int(value)


def _our_counts(ours: Mapping[str, Any]) -> Counts:
    histogram = ours["accepted_histogram"]
    at_least = Counter({at: sum(histogram[at + 1 :]) for at in range(len(histogram) - 1)})
    return Counts(
        accepted=_needed(ours, "accepted"),
        rounds=_needed(ours, "rounds"),
        drafts=_needed(ours, "drafts"),
        drafted=_needed(ours, "drafted"),
        emitted=_needed(ours, "emitted"),
        accepted_at=at_least,
    )


def _llama_counts(timings: Mapping[str, Any]) -> Counts | None:
    """A round emits what it accepted and one token more."""
    if "draft_n" not in timings:
        return None
    accepted, emitted = _needed(timings, "draft_n_accepted"), _needed(timings, "predicted_n")
    return Counts(accepted, rounds=emitted - accepted, drafted=_needed(timings, "draft_n"), emitted=emitted)


def _described(error: Exception) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


_LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
_OURS = frozenset({"model", "messages", "stream", "stream_options", "max_tokens", "logprobs", "top_logprobs"})
"""Fields that say what is asked: neither side may have its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Servers:
    """Where to ask.

    Args:
        url: of the server that speculates; plain_url: of the one that does not, None for the same.
        plain_fields, speculative_fields: sent in each request of that side alone, to switch speculation
            on a server that can be told.
        transport: how requests travel; None takes the network.
        count: as for `HttpClient`.
    """

    url: str
    plain_url: str | None = None
    key: str | None = None
    plain_fields: Mapping[str, Any] = field(default_factory=dict)
    speculative_fields: Mapping[str, Any] = field(default_factory=dict)
    transport: httpx.AsyncBaseTransport | None = None
    count: Callable[[str], int] | None = None

    def __post_init__(self) -> None:
        for name, values in (("plain_fields", self.plain_fields), ("speculative_fields", self.speculative_fields)):
            for key in values:
                if key in _OURS:
                    raise InvalidOption(name, "must not change what is asked", key)


@asynccontextmanager
async def server_ways(servers: Servers, plan: BenchPlan) -> AsyncIterator[Ways]:
    """Connect to both sides.

    Raises:
        ServerUnreachable: a server does not answer.
        InvalidOption: there is one server, and no way to tell it not to speculate.
    """

    def client(url: str | None, extra: Mapping[str, Any]) -> HttpClient:
        return HttpClient(url or servers.url, servers.key, servers.transport, extra, servers.count)

    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(client(servers.plain_url, servers.plain_fields))
        speculative = await stack.enter_async_context(client(None, servers.speculative_fields))
        if servers.plain_url is None and plain.dialect.plain is None and not servers.plain_fields:
            rule = f"must be given for a server that cannot be told not to speculate ({plain.dialect.name})"
            raise InvalidOption("--plain-url or --plain-fields", rule, None)
        yield Ways(
            _way(PLAIN_SIDE, plain, plan, speculate=plain.dialect.plain is None),
            _way(SPECULATIVE_SIDE, speculative, plan, speculate=True),
        )


def _way(name: str, client: HttpClient, plan: BenchPlan, *, speculate: bool) -> Way:
    return Way(
        name=name,
        client=client,
        speculate=speculate,
        setup=_describe(name, client, plan),
        reads_anew=client.dialect.reads_anew,
        counters=client.counters,
    )


def _describe(name: str, client: HttpClient, plan: BenchPlan) -> SideSetup:
    """Return what one side is, as far as a server tells; a field of its own may be a sampling parameter."""
    usual, own = sampling_of(plan.params), dict(client.extra)
    return SideSetup(
        target=str(client.model["id"]),
        target_sha256=None,
        precision=None,
        hardware=_hardware(client.url),
        sampling=usual | {key: value for key, value in own.items() if key in SAMPLING_FIELDS},
        max_tokens=plan.params.max_tokens,
        batch=None,
        requests=plan.requests,
        warmups=plan.warmups,
        prompts_sha256=plan.prompts_sha256,
        proposer="none" if name == PLAIN_SIDE else None,
        server=client.url,
        dialect=client.dialect.name,
        fields=own,
    )


SAMPLING_FIELDS = frozenset(
    {"temperature", "top_p", "top_k", "min_p", "seed", "stop", "stop_token_ids", "ignore_eos", "min_tokens"}
    | {"repetition_penalty", "repeat_penalty", "presence_penalty", "frequency_penalty", "logit_bias", "bad_words"}
    | {"typical_p", "mirostat", "n_predict", "max_completion_tokens"}
)
"""Fields of a request that decide which tokens are chosen, and how many."""


def _hardware(url: str) -> str:
    """Two ports of one host are the same machine."""
    host = urlsplit(url).hostname or url
    return describe_hardware("as its server chose") if host in _LOCAL else host
