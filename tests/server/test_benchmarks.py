"""The benchmarks against a real server on loopback."""

from __future__ import annotations

import asyncio

import pytest
from served import Running, engine_for
from soak import over_http
from soak.findings import Effort
from soak.over_http import ServerSoak

from gamaneh.bench.servers import HttpClient


def test_a_server_passes_the_soak(server: Running) -> None:
    effort = Effort(requests=40, shapes=4, concurrency=4, tokens=10, abort_share=0.2, error_share=0.1)

    async def go():
        async with HttpClient(server.url) as client:
            return await ServerSoak(client, ["one", "two"], effort).run()

    findings = asyncio.run(go())
    assert findings.passed, findings
    assert min(findings.outcomes[name] for name in ("finished", "aborted", "refused")) > 0
    assert len(findings.memory) == 4
    assert findings.leaked_blocks == 0


def test_blocks_that_a_server_does_not_free_are_found(start, monkeypatch: pytest.MonkeyPatch) -> None:
    running = start(engine_for())
    free = running.engine.backend.kv.free
    monkeypatch.setattr(
        running.engine.backend.kv, "free", lambda name: None if name.startswith("chatcmpl") else free(name)
    )
    monkeypatch.setattr(over_http, "LOOKS", 1)
    effort = Effort(requests=3, shapes=1, concurrency=1, tokens=4, abort_share=0.0, error_share=0.0)

    async def go():
        async with HttpClient(running.url) as client:
            return await ServerSoak(client, ["one"], effort).run()

    findings = asyncio.run(go())
    assert findings.leaked_blocks
    assert not findings.passed
