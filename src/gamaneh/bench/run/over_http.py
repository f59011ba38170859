"""Both sides over HTTP: two servers, or one that is told with each request whether to speculate."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx

from gamaneh.bench.http_client import HttpClient
from gamaneh.bench.result import SideSetup
from gamaneh.bench.run.in_process import describe_hardware, sampling_of
from gamaneh.bench.run.plan import Plan
from gamaneh.bench.run.sides import Side, SideName, Sides
from gamaneh.errors import InvalidOption

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
    """

    url: str
    plain_url: str | None = None
    key: str | None = None
    plain_fields: Mapping[str, Any] = field(default_factory=dict)
    speculative_fields: Mapping[str, Any] = field(default_factory=dict)
    transport: httpx.AsyncBaseTransport | None = None

    def __post_init__(self) -> None:
        for name, values in (("plain_fields", self.plain_fields), ("speculative_fields", self.speculative_fields)):
            for key in values:
                if key in _OURS:
                    raise InvalidOption(name, "must not change what is asked", key)


@asynccontextmanager
async def server_sides(servers: Servers, plan: Plan) -> AsyncIterator[Sides]:
    """Connect to both sides.

    Raises:
        ServerUnreachable: a server does not answer.
        InvalidOption: there is one server, and no way to tell it not to speculate.
    """
    async with AsyncExitStack() as stack:
        plain = await stack.enter_async_context(_client(servers, servers.plain_url, servers.plain_fields))
        speculative = await stack.enter_async_context(_client(servers, None, servers.speculative_fields))
        if servers.plain_url is None and plain.dialect.plain is None and not servers.plain_fields:
            rule = f"must be given for a server that cannot be told not to speculate ({plain.dialect.name})"
            raise InvalidOption("--plain-url or --plain-fields", rule, None)
        yield Sides(
            "serving",
            plain=_side("plain", plain, plan, speculate=plain.dialect.plain is None),
            speculative=_side("speculative", speculative, plan, speculate=True),
        )


def _client(servers: Servers, url: str | None, fields: Mapping[str, Any]) -> HttpClient:
    return HttpClient(url or servers.url, servers.key, servers.transport, fields)


def _side(name: SideName, client: HttpClient, plan: Plan, *, speculate: bool) -> Side:
    return Side(
        name=name,
        client=client,
        speculate=speculate,
        setup=_describe(name, client, plan),
        reads_anew=client.dialect.reads_anew,
        counters=client.counters,
    )


def _describe(name: SideName, client: HttpClient, plan: Plan) -> SideSetup:
    """What one side is, as far as a server tells. A field of its own that is a sampling parameter counts as one."""
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
        proposer="none" if name == "plain" else None,
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
