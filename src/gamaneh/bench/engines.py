"""Ways of answering in this process: two engines over the same weights, of which one works at a time."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch

from gamaneh.bench.machine import describe_machine, hash_model
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
from gamaneh.bench.result import Setup, SideSetup
from gamaneh.core import AUTO, PLAIN, FinishReason, Request, StepOutput
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.async_engine import AsyncEngine, RequestStream
from gamaneh.engine.engine import Engine
from gamaneh.engine.llm import LLM
from gamaneh.metrics.memory import peak_device_bytes, peak_resident_bytes
from gamaneh.models.loading import LoadedModel
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.sampling.rules import choose_rule

TARGET = "target"
"""Name of the target among the models whose memory is counted."""


def as_tokens(tokenizer: Tokenizer, text: str, chat: bool | None = None) -> list[int]:
    """Return the token ids of what a user says.

    Args:
        chat: put it into the model's chat template; None does so if there is one.

    Raises:
        InvalidRequest: the model has no chat template.
    """
    if chat or (chat is None and tokenizer.backend.chat_template is not None):
        return tokenizer.chat([{"role": "user", "content": text}])
    return tokenizer.encode(text)


class EngineClient:
    """An engine in this process.

    Args:
        speculation: of requests that speculate.
        chat: as for `as_tokens`.
    """

    def __init__(
        self, engine: AsyncEngine, tokenizer: Tokenizer, speculation: SpeculationOptions, chat: bool | None = None
    ) -> None:
        self.engine, self.tokenizer, self.speculation, self.chat = engine, tokenizer, speculation, chat
        self._names = itertools.count()

    async def stream(self, ask: Ask) -> AsyncGenerator[Delivery]:
        """Yield what each step brings.

        Raises:
            RequestFailed: the engine ended the request with an error.
            InvalidRequest: it refused the request.
        """
        request_id = f"bench-{next(self._names)}"
        answer = await self.engine.submit(
            Request(
                as_tokens(self.tokenizer, ask.text, self.chat),
                ask.params,
                id=request_id,
                drafting=self.speculation if ask.speculate else SpeculationOptions(),
                reference=self.tokenizer.encode(ask.reference, special=False) if ask.reference else (),
                salt=ask.salt,
            )
        )
        try:
            async for output in answer:
                if output.finish_reason is FinishReason.ERROR:
                    raise RequestFailed(str(output.error))
                yield Delivery(output.text, len(output.tokens), gaps=_gaps(output), ids=tuple(output.tokens))
            yield Delivery("", 0, _ending(answer))
        finally:
            self.engine.abort(request_id)


def _gaps(output: StepOutput) -> tuple[float, ...]:
    tops = [sorted((logprob for _, logprob in each.top), reverse=True) for each in output.logprobs]
    return tuple(top[0] - top[1] for top in tops if len(top) > 1)


def _ending(stream: RequestStream) -> Ending:
    timeline, rounds = stream.timeline, list(stream.stats.by_proposer.values())
    draft, verify = sum(each.draft_seconds for each in rounds), sum(each.verify_seconds for each in rounds)
    # The two are shares of the batch; what the request waited for was the whole of it.
    whole = stream.stats.round_seconds / (draft + verify) if draft + verify > 0 else 0.0
    return Ending(
        prompt_tokens=None if timeline is None else timeline.prompt_tokens,
        counts=Counts.of(rounds),
        queue=None if timeline is None else timeline.queue_seconds,
        prefill=None if timeline is None else timeline.prefill_seconds,
        draft=draft * whole,
        verify=verify * whole,
        tokens_from="engine",
    )


@dataclass(frozen=True, slots=True, eq=False)
class Contestant:
    """An engine and how its requests speculate."""

    target: LoadedModel
    engine: Engine
    speculation: SpeculationOptions
    chat: bool | None = None


@asynccontextmanager
async def engine_ways(speculative: Contestant, plan: BenchPlan) -> AsyncIterator[Ways]:
    """Run the engine, and beside it a plain one that is built over the same weights with the same limits."""
    target, usual = speculative.target, SpeculationOptions()
    plain = Contestant(target, build_engine(target, None, usual, speculative.engine.options), usual, speculative.chat)
    engines = AsyncEngine(plain.engine), AsyncEngine(speculative.engine)
    sha256 = hash_model(target.path)
    for engine in engines:
        engine.start()
    try:
        yield Ways(
            _way(PLAIN_SIDE, plain, engines[0], plan, sha256),
            _way(SPECULATIVE_SIDE, speculative, engines[1], plan, sha256),
        )
    finally:
        for engine in engines:
            engine.stop()


def _way(name: str, contestant: Contestant, engine: AsyncEngine, plan: BenchPlan, sha256: str | None) -> Way:
    return Way(
        name=name,
        client=EngineClient(engine, contestant.target.tokenizer, contestant.speculation, contestant.chat),
        speculate=True,
        setup=describe_engine(contestant, plan, sha256),
        counters=_counters(contestant),
        faults=lambda: _faults(contestant.engine),
    )


def describe_engine(contestant: Contestant, plan: BenchPlan, sha256: str | None) -> SideSetup:
    """Return what one side is."""
    target, engine, speculation = contestant.target, contestant.engine, contestant.speculation
    rule = choose_rule(speculation.rule, plan.params, engine.gives_probs(speculation), speculation)
    return SideSetup(
        target=target.name,
        target_sha256=sha256,
        precision=str(target.dtype).removeprefix("torch."),
        hardware=describe_hardware(str(target.device)),
        sampling=sampling_of(plan.params),
        max_tokens=plan.params.max_tokens,
        batch=engine.options.max_batch,
        requests=plan.requests,
        warmups=plan.warmups,
        prompts_sha256=plan.prompts_sha256,
        proposer=speculation.proposer,
        k=speculation.draft_length,
        rule=rule.name,
        exact=rule.exact,
        invariant=engine.invariant,
    )


def describe_setup(llm: LLM, params: SamplingParams, model: str | None = None) -> Setup:
    """Return what a comparison with `llm` compares; `model` is the name that the user gave it."""
    speculation = llm.speculation
    rule = choose_rule(speculation.rule, params, llm.engine.gives_probs(speculation), speculation)
    return Setup(
        model=model or llm.loaded.name,
        dtype=str(llm.loaded.dtype).removeprefix("torch."),
        device=str(llm.loaded.device),
        proposer=speculation.proposer,
        k=speculation.draft_length,
        rule=rule.name,
        exact=rule.exact,
        invariant=llm.engine.invariant,
        threads=torch.get_num_threads(),
    )


def describe_hardware(device: str) -> str:
    """Return this machine in words."""
    machine = describe_machine()
    return f"{machine.processor}, {machine.cores} cores, {machine.threads} threads, {device}"


def sampling_of(params: SamplingParams) -> dict[str, Any]:
    """Return the parameters that differ from their defaults, the length apart."""
    usual = SamplingParams()
    names = [entry.name for entry in fields(SamplingParams) if entry.name != "max_tokens"]
    return {name: value for name in names if (value := getattr(params, name)) != getattr(usual, name)}


def _counters(contestant: Contestant) -> Callable[[], Awaitable[Counters | None]]:
    engine, weights = contestant.engine, contestant.target.weight_bytes
    kv = engine.backend.memory_bytes() - engine.backend.caps.weight_bytes
    proposers = {} if contestant.speculation.proposer == PLAIN else used_proposers(contestant)

    async def read() -> Counters:
        return Counters(
            counts=None,
            cpu_seconds=time.process_time(),
            resident=peak_resident_bytes(),
            device=peak_device_bytes() or None,
            models={TARGET: weights + kv, **{name: proposer.memory_bytes() for name, proposer in proposers.items()}},
            target_kv=kv,
        )

    return read


def used_proposers(contestant: Contestant) -> Mapping[str, Any]:
    """Return the proposers that the side's requests may draft with."""
    proposers, name = contestant.engine.proposers, contestant.speculation.proposer
    return proposers if name == AUTO else {name: proposers[name]}


def _faults(engine: Engine) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for (proposer, _), count in engine.quarantine.counts.items():
        counts[proposer] += count
    return counts
