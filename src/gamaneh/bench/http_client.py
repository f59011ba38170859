"""A server as a client of the benchmarks sees it. `httpx` is needed here only."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from typing import Any, Self

import httpx

from gamaneh.bench.traffic import Ask, Delivery
from gamaneh.errors import GamanehError


class ServerRefused(GamanehError):
    """A server answered with an error."""


class HttpClient:
    """Chat completions of a server, streamed.

    Args:
        url: of the server, without a path.
        key: API key; None sends none.
        transport: how requests travel; None takes the network.
    """

    def __init__(self, url: str, key: str | None = None, transport: httpx.AsyncBaseTransport | None = None) -> None:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        limits = httpx.Limits(max_connections=None)
        self._http = httpx.AsyncClient(base_url=url, headers=headers, timeout=None, limits=limits, transport=transport)
        self._model = ""

    async def __aenter__(self) -> Self:
        models = (await self._http.get("/v1/models")).raise_for_status().json()
        self._model = models["data"][0]["id"]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def stream(self, ask: Ask) -> AsyncGenerator[Delivery]:
        """Deliveries of one answer; each event of the stream is one.

        Raises:
            ServerRefused: the server answered with an error.
        """
        async with self._http.stream("POST", "/v1/chat/completions", json=self._body(ask)) as response:
            if response.is_error:
                raise ServerRefused(f"the server answered {response.status_code}: {(await response.aread()).decode()}")
            async for line in response.aiter_lines():
                if line.startswith("data: ") and line != "data: [DONE]":
                    yield _delivery(json.loads(line.removeprefix("data: ")))

    async def refuses_nonsense(self) -> bool:
        """Whether a request without a message is refused as the client's fault."""
        body = {"model": self._model, "messages": []}
        return (await self._http.post("/v1/chat/completions", json=body)).status_code == httpx.codes.BAD_REQUEST

    def _body(self, ask: Ask) -> dict[str, Any]:
        params = ask.params
        return {
            "model": self._model,
            "messages": [{"role": "user", "content": ask.text}],
            "stream": True,
            "max_tokens": params.max_tokens,
            "ignore_eos": params.ignore_eos,
            "temperature": params.temperature,
            "top_p": params.top_p,
            "seed": params.seed,
            "stop": list(params.stop) or None,
            "speculation": {"enabled": ask.speculate, "tokens": True},
        }


def _delivery(event: dict[str, Any]) -> Delivery:
    """
    Raises:
        ServerRefused: the stream ended with an error.
    """
    if "error" in event:
        raise ServerRefused(f"the server broke the answer off: {event['error']}")
    text = "".join(choice["delta"].get("content") or "" for choice in event["choices"])
    return Delivery(text, len((event.get("gamaneh") or {}).get("tokens") or ()))
