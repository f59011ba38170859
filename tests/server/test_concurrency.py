"""Many at once get what each would get alone; nothing leaks."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
import torch
from served import VOCAB, ChatBytes, Running, engine_for, serving

from gamaneh import testing
from gamaneh.engine.assembly import build_engine
from gamaneh.options import EngineOptions, SpeculationOptions
from gamaneh.testing import hashed

PROMPTS = [
    "abcabcabcabcabc",
    "the cat sat on the mat, the cat sat on the mat",
    "def f(x):\n    return x\n\ndef g(x):\n    return x\n",
    "سلام! حال شما چطور است؟ سلام!",
    "a",
    "a rather long prompt that says the same again and again " * 3,
    "1, 2, 3, 4, 5, 1, 2, 3, 4,",
    "wxyz" * 20,
]


@pytest.fixture(scope="module")
def adapting() -> Iterator[Running]:
    """A real (tiny) network in shape-invariant bfloat16, with lookup that adapts."""
    loaded = testing.tiny_model(dtype=torch.bfloat16, tokenizer=ChatBytes())
    options = EngineOptions(invariant=True, max_batch=8, step_tokens=128)
    engine = build_engine(loaded, None, SpeculationOptions(proposer="lookup"), options)
    with serving(engine) as running:
        yield running


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0}, {"temperature": 0.8, "seed": 5, "top_p": 0.95, "presence_penalty": 0.5}],
    ids=["greedy", "seeded"],
)
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_eight_at_once_are_answered_as_alone(adapting: Running, path: str, sampling: dict[str, Any]) -> None:
    def ask(prompt: str, **speculation: Any) -> str:
        asked = {"prompt": prompt} if path == "/v1/completions" else {"messages": [{"role": "user", "content": prompt}]}
        body = {**asked, **sampling, "max_tokens": 48, "ignore_eos": True, "speculation": speculation}
        choice = httpx.post(f"{adapting.url}{path}", json=body, timeout=60).json()["choices"][0]
        text: str = choice["text"] if "text" in choice else choice["message"]["content"]
        return text

    plain = [ask(prompt, enabled=False) for prompt in PROMPTS]
    alone = [ask(prompt) for prompt in PROMPTS]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(ask, PROMPTS * 2))
    assert together == plain * 2
    assert alone == plain


class TestBlocksComeBack:
    """CASES kind 29: whatever ends a request, its blocks are free afterwards."""

    def test_after_requests_of_every_kind(self) -> None:
        generator = random.Random(3)
        options = EngineOptions(max_batch=4, step_tokens=64)
        with serving(engine_for(hashed(VOCAB), k=5, num_blocks=200, max_context=128, options=options)) as running:
            refused: list[int] = []
            for _ in range(5):
                with ThreadPoolExecutor(4) as pool:
                    statuses = list(pool.map(lambda _: self._one(running, generator), range(40)))
                refused.append(statuses.count(429))
                assert running.blocks_in_use() == 0
                running.on_engine(running.engine.check_integrity)
            assert refused == [0] * 5

    def _one(self, running: Running, generator: random.Random) -> int:
        body: dict[str, Any] = {"prompt": [generator.randrange(256) for _ in range(generator.randrange(1, 40))]}
        body |= {"max_tokens": generator.randrange(1, 10), "seed": generator.randrange(99)}
        kind = generator.randrange(4)
        if kind == 0:
            body["stop"] = chr(generator.randrange(97, 123))
        if kind == 1:
            body["prompt"] = [VOCAB]
        if kind == 2:
            with httpx.stream("POST", f"{running.url}/v1/completions", json={**body, "stream": True}) as response:
                return response.status_code
        return httpx.post(f"{running.url}/v1/completions", json=body, timeout=20).status_code
