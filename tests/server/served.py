"""Real servers on loopback, over targets whose output is known."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx

from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.engine.engine import Engine
from gamaneh.kv.placing import Placed
from gamaneh.models.runner import Forward
from gamaneh.options import EngineOptions, SpeculationOptions
from gamaneh.server.access import KeyRing
from gamaneh.server.lifecycle import Server, bind
from gamaneh.server.server_options import ServerOptions
from gamaneh.server.service import Service
from gamaneh.testing import (
    ByteTokenizer,
    Script,
    ScriptedProposer,
    ScriptedRunner,
    fixed_output,
    hashed,
    scripted_engine,
)

VOCAB = 260
MODEL = "scripted"


class ChatBytes(ByteTokenizer):
    """A byte tokenizer with the simplest of chat templates."""

    def chat(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None = None, **variables: Any
    ) -> list[int]:
        return self.encode("".join(f"{message['role']}: {message['content']}\n" for message in messages))


@dataclass
class Running:
    """A server that runs, and what is inside it."""

    service: Service
    server: Server
    url: str
    http: httpx.Client

    @property
    def engine(self) -> Engine:
        return self.service.engine.engine

    def post(self, path: str, **body: object) -> dict[str, Any]:
        response = self.http.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def complete(self, prompt: object = "hello", **fields: object) -> dict[str, Any]:
        return self.post("/v1/completions", prompt=prompt, **fields)

    def text(self, prompt: object = "hello", **fields: object) -> str:
        text: str = self.complete(prompt, **fields)["choices"][0]["text"]
        return text

    def chat(self, content: str = "hello", **fields: object) -> dict[str, Any]:
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": content}], **fields)

    def refusal(self, path: str = "/v1/completions", status: int = 400, **body: object) -> dict[str, Any]:
        response = self.http.post(path, json=body)
        assert response.status_code == status, response.text
        error: dict[str, Any] = response.json()["error"]
        return error

    def on_engine(self, look: Callable[[], Any]) -> Any:
        """What `look` sees between two steps."""
        return self.service.engine.call(look).result(10)

    def blocks_in_use(self) -> int:
        count: int = self.on_engine(lambda: self.engine.backend.kv.pool.in_use)
        return count


@contextmanager
def serving(
    engine: Engine, options: ServerOptions | None = None, keys: KeyRing | None = None, tokenizer: Any = None
) -> Iterator[Running]:
    """A server in a thread of its own, over this engine."""
    options = options or ServerOptions()
    service = Service(AsyncEngine(engine), tokenizer or ChatBytes(), MODEL, options, keys)
    server = Server(service)
    bound: socket.socket = bind("127.0.0.1", 0)
    url = f"http://127.0.0.1:{bound.getsockname()[1]}"
    bound.listen()  # requests wait until the server takes them
    thread = threading.Thread(target=server.serve_on, args=[bound])
    thread.start()
    with httpx.Client(base_url=url, timeout=20) as http:
        yield Running(service, server, url, http)
    server.should_exit = True
    thread.join(20)
    assert not thread.is_alive(), "the server does not end"


def engine_for(
    script: Script | None = None,
    *,
    k: int | None = 4,
    accuracy: float = 0.7,
    runner: ScriptedRunner | None = None,
    max_context: int = 256,
    num_blocks: int = 256,
    options: EngineOptions | None = None,
) -> Engine:
    """A scripted engine that speculates `k` tokens, adaptively with None."""
    script = script or hashed(VOCAB)
    runner = runner or ScriptedRunner(script, VOCAB, max_context=max_context, num_blocks=num_blocks)
    proposer = ScriptedProposer(script, VOCAB, accuracy)
    return scripted_engine(
        runner,
        ChatBytes(),
        proposer=proposer,
        speculation=SpeculationOptions(proposer="scripted", draft_length=k, max_draft_length=max(k or 0, 15)),
        options=options,
    )


def saying(text: str, prompt: str, vocab: int = VOCAB) -> Script:
    """Answers `prompt` with `text` and the end token."""
    return fixed_output([*text.encode(), ByteTokenizer.eos_ids[0]], vocab, len(prompt.encode()))


class GatedRunner(ScriptedRunner):
    """Every forward waits until the gate is opened."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._gate = threading.Semaphore(0)
        self.fault: Exception | None = None
        self.fault_after = 0

    def open(self, forwards: int = 10_000) -> None:
        """Let this many forwards pass."""
        self._gate.release(forwards)

    def forward(self, feeds: Sequence[Placed], *, taps: Sequence[int] = (), num_layers: int | None = None) -> Forward:
        assert self._gate.acquire(timeout=30)
        if self.fault is not None and len(self.forwards) >= self.fault_after:
            raise self.fault
        return super().forward(feeds, taps=taps)


def until(holds: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait for something that happens in another thread."""
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.005)


def streamed(running: Running, path: str, **body: Any) -> list[dict[str, Any]]:
    """The chunks of a stream, which must end as it should."""
    with running.http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert events[-1] == "[DONE]"
    return [json.loads(event) for event in events[:-1]]


class PacedRunner(ScriptedRunner):
    """Takes some milliseconds for each forward, as a small model does."""

    def forward(self, feeds: Sequence[Placed], *, taps: Sequence[int] = (), num_layers: int | None = None) -> Forward:
        time.sleep(0.003)
        return super().forward(feeds, taps=taps)
