"""A soak of an engine in this process, whose proposers fail now and then."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gamaneh.core import AUTO, PLAIN, Request
from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.engine.engine import Engine
from gamaneh.errors import InvalidRequest
from gamaneh.kv.manager import KVManager
from gamaneh.metrics.memory import private_bytes
from gamaneh.options import SamplingParams, SpeculationOptions
from soak.faults import FaultyProposer
from soak.findings import Effort, Findings


@dataclass(frozen=True, slots=True)
class Shape:
    """A request and its right answer.

    Args:
        tokens: what plain decoding emits.
    """

    prompt: tuple[int, ...]
    params: SamplingParams
    tokens: tuple[int, ...] = ()


class Soak:
    """Lets mixed requests loose on an engine.

    Args:
        engine: nobody else may use it; its proposers are replaced by faulty ones.
        prompts: token ids to make requests of.
        caches: of draft models, which must be free in the end.
    """

    def __init__(
        self, engine: Engine, prompts: Sequence[Sequence[int]], effort: Effort, caches: Sequence[KVManager] = ()
    ) -> None:
        self.engine, self.effort, self.caches = engine, effort, caches
        self.findings = Findings()
        self._random = random.Random(effort.seed)
        self._prompts = [tuple(prompt) for prompt in prompts]
        self._faulty: list[FaultyProposer] = []

    async def run(self) -> Findings:
        """Make the right answers, then all requests, then look what is left."""
        shapes = [self._answered(self._make_shape(at)) for at in range(self.effort.shapes)]
        self._break_proposers()
        running = AsyncEngine(self.engine)
        running.start()
        try:
            await self._let_loose(running, shapes)
        finally:
            running.stop()
        self._look()
        return self.findings

    def _make_shape(self, at: int) -> Shape:
        """Some greedy, some sampled, with all that may end an answer or change it."""
        draw = self._random
        params = SamplingParams(
            max_tokens=draw.randint(1, self.effort.tokens),
            temperature=draw.choice([0.0, 0.0, 0.7, 1.0]),
            top_p=draw.choice([1.0, 0.9]),
            top_k=draw.choice([0, 20]),
            seed=at,
            repetition_penalty=draw.choice([1.0, 1.0, 1.1]),
            presence_penalty=draw.choice([0.0, 0.0, 0.5]),
            logprobs=draw.choice([None, None, 2]),
            stop=draw.choice([(), (), (".",), ("\n\n",)]),
            ignore_eos=draw.random() < 0.5,
        )
        return Shape(draw.choice(self._prompts), params)

    def _answered(self, shape: Shape) -> Shape:
        self.engine.add(Request(shape.prompt, shape.params, id="right", drafting=SpeculationOptions()))
        tokens: list[int] = []
        while self.engine.has_work:
            tokens += [token for output in self.engine.step() for token in output.tokens]
        return replace(shape, tokens=tuple(tokens))

    def _break_proposers(self) -> None:
        for inner in list(self.engine.proposers.values()):
            proposer = FaultyProposer(inner, self.effort.fault_share, self._random, self.engine.backend.caps.vocab_size)
            self.engine.register(proposer)
            self._faulty.append(proposer)

    async def _let_loose(self, engine: AsyncEngine, shapes: Sequence[Shape]) -> None:
        numbers = iter(range(self.effort.requests))

        async def worker() -> None:
            for number in numbers:
                await self._one(engine, f"soak-{number}", self._random.choice(shapes))
                self.findings.memory.append(private_bytes())

        async with asyncio.TaskGroup() as workers:
            for _ in range(self.effort.concurrency):
                workers.create_task(worker())

    async def _one(self, engine: AsyncEngine, request_id: str, shape: Shape) -> None:
        try:
            async with asyncio.timeout(self.effort.patience):
                await self._ask(engine, request_id, shape)
        except TimeoutError:
            self.findings.hung.append(request_id)
            engine.abort(request_id)

    async def _ask(self, engine: AsyncEngine, request_id: str, shape: Shape) -> None:
        if self._random.random() < self.effort.error_share:
            await self._ask_wrongly(engine, request_id, shape)
            return
        patience = self._random.randrange(4) if self._random.random() < self.effort.abort_share else None
        stream = await engine.submit(
            Request(shape.prompt, shape.params, id=request_id, drafting=self._make_speculation())
        )
        tokens: list[int] = []
        deliveries, error = 0, None
        async for output in stream:
            tokens += output.tokens
            error = output.error or error
            deliveries += 1
            if deliveries == patience:
                engine.abort(request_id)
        self._judge(request_id, shape, tokens, error, aborted=patience is not None and deliveries >= patience)

    async def _ask_wrongly(self, engine: AsyncEngine, request_id: str, shape: Shape) -> None:
        """A request that has to be refused."""
        wrong = self._random.choice([(), (self.engine.backend.caps.vocab_size,), (0,) * (self.engine.max_context + 1)])
        try:
            await engine.submit(Request(wrong, shape.params, id=request_id))
        except InvalidRequest:
            self.findings.outcomes["refused"] += 1
            return
        self.findings.wrong.append(request_id)
        engine.abort(request_id)

    def _make_speculation(self) -> SpeculationOptions:
        names = [PLAIN, AUTO, *self.engine.proposers]
        length = self._random.choice([None, None, 1, 5])
        return SpeculationOptions(proposer=self._random.choice(names), draft_length=length)

    def _judge(self, request_id: str, shape: Shape, tokens: Sequence[int], error: str | None, *, aborted: bool) -> None:
        right = shape.tokens[: len(tokens)] if aborted else shape.tokens
        self.findings.outcomes["aborted" if aborted else "finished"] += 1
        if error is not None:
            self.findings.failed.append(f"{request_id}: {error}")
        elif tuple(tokens) != right:
            self.findings.wrong.append(request_id)

    def _look(self) -> None:
        """What is left when nothing runs any more."""
        findings = self.findings
        findings.leaked_blocks = sum(cache.pool.in_use for cache in (self.engine.backend.kv, *self.caches))
        try:
            self.engine.check_integrity()
        except AssertionError as error:
            findings.broken_books = str(error) or "they do not agree"
        for proposer in self._faulty:
            findings.faults |= {f"{proposer.name}: {name}": count for name, count in proposer.injected.items()}
        findings.caught = {f"{name}: {fault}": n for (name, fault), n in self.engine.quarantine.counts.items()}
