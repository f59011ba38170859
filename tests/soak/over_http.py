"""A soak of a running server, as its clients see it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from gamaneh.bench.measure import answer_one
from gamaneh.bench.record import Ask
from gamaneh.bench.servers import HttpClient, ServerRefused
from gamaneh.options import SamplingParams
from soak.findings import Effort, Findings

SAMPLED_EVERY = 10
"""Requests from one look at the server's memory to the next."""

LOOKS, LOOK_SECONDS = 50, 0.1
"""How often, and with what pauses, a server is asked at the end whether its blocks are free: those of a client that
hung up are freed with the next step."""


class ServerSoak:
    """The same for a server: requests that are greedy, aborts by hanging up, requests that must be refused.

    Memory and blocks are what the server says of itself; it must have no other clients meanwhile.
    """

    def __init__(self, client: HttpClient, texts: Sequence[str], effort: Effort) -> None:
        self.client, self.effort = client, effort
        self.findings = Findings()
        self._random = random.Random(effort.seed)
        self._texts = list(texts)

    async def run(self) -> Findings:
        """Make the right answers one by one, then all requests."""
        right = [await self._answered(self._make_ask()) for _ in range(self.effort.shapes)]
        numbers = iter(range(self.effort.requests))

        async def worker() -> None:
            for number in numbers:
                await self._one(f"soak-{number}", *self._random.choice(right))
                if number % SAMPLED_EVERY == 0:
                    await self._weigh()

        async with asyncio.TaskGroup() as workers:
            for _ in range(self.effort.concurrency):
                workers.create_task(worker())
        await self._look()
        return self.findings

    def _make_ask(self) -> Ask:
        length = self._random.randint(1, self.effort.tokens)
        params = SamplingParams(max_tokens=length, ignore_eos=self._random.random() < 0.5, seed=0)
        return Ask(self._random.choice(self._texts), params)

    async def _answered(self, ask: Ask) -> tuple[Ask, str]:
        return ask, (await answer_one(self.client, replace(ask, speculate=False))).text

    async def _weigh(self) -> None:
        """Note how large the server is."""
        counters = await self.client.counters()
        size = None if counters is None else counters.private or counters.resident
        if size is not None:
            self.findings.memory.append(size)

    async def _look(self) -> None:
        """Note the blocks that are still in use when nothing runs any more."""
        for _ in range(LOOKS):
            counters = await self.client.counters()
            self.findings.leaked_blocks = None if counters is None else counters.kv_used
            if not self.findings.leaked_blocks:
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _one(self, name: str, ask: Ask, right: str) -> None:
        try:
            async with asyncio.timeout(self.effort.patience):
                await self._ask(name, ask, right)
        except TimeoutError:
            self.findings.hung.append(name)
        except ServerRefused as error:
            self.findings.failed.append(f"{name}: {error}")

    async def _ask(self, name: str, ask: Ask, right: str) -> None:
        if self._random.random() < self.effort.error_share:
            self._count("refused", name, correct=await self.client.refuses_nonsense())
            return
        if self._random.random() < self.effort.abort_share:
            text = await self._first_words(ask)
            self._count("aborted", name, correct=right.startswith(text))
            return
        self._count("finished", name, correct=(await answer_one(self.client, ask)).text == right)

    async def _first_words(self, ask: Ask) -> str:
        async with aclosing(self.client.stream(ask)) as stream:
            async for delivery in stream:
                if delivery.text:
                    return delivery.text
        return ""

    def _count(self, outcome: str, name: str, *, correct: bool) -> None:
        self.findings.outcomes[outcome] += 1
        if not correct:
            self.findings.wrong.append(name)
