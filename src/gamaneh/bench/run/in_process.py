"""Both sides in this process: two engines over the same weights, of which one works at a time."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, fields
from typing import Any

from gamaneh.bench.counters import Counters
from gamaneh.bench.machine import describe_machine
from gamaneh.bench.result import SideSetup
from gamaneh.bench.run.document import TARGET
from gamaneh.bench.run.plan import Plan
from gamaneh.bench.run.provenance import hash_model
from gamaneh.bench.run.sides import Side, Sides
from gamaneh.bench.traffic import EngineClient
from gamaneh.core import AUTO
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.engine.engine import Engine
from gamaneh.metrics.memory import peak_device_bytes, peak_resident_bytes
from gamaneh.models.loading import LoadedModel
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.sampling.rules import choose_rule


@dataclass(frozen=True, slots=True, eq=False)
class Contestant:
    """An engine and how its requests speculate."""

    target: LoadedModel
    engine: Engine
    speculation: SpeculationOptions


@asynccontextmanager
async def engine_sides(speculative: Contestant, plan: Plan) -> AsyncIterator[Sides]:
    """Run the engine, and beside it a plain one that is built over the same weights with the same limits."""
    target, usual = speculative.target, SpeculationOptions()
    plain = Contestant(target, build_engine(target, None, usual, speculative.engine.options), usual)
    engines = AsyncEngine(plain.engine), AsyncEngine(speculative.engine)
    sha256 = hash_model(target.path)
    for engine in engines:
        engine.start()
    try:
        yield Sides(
            "offline",
            plain=_side("plain", plain, engines[0], plan, sha256),
            speculative=_side("speculative", speculative, engines[1], plan, sha256),
        )
    finally:
        for engine in engines:
            engine.stop()


def _side(name: Any, contestant: Contestant, engine: AsyncEngine, plan: Plan, sha256: str | None) -> Side:
    return Side(
        name=name,
        client=EngineClient(engine, contestant.target.tokenizer, contestant.speculation),
        speculate=True,
        setup=describe_engine(contestant, plan, sha256),
        counters=_counters(contestant),
        faults=lambda: _faults(contestant.engine),
    )


def describe_engine(contestant: Contestant, plan: Plan, sha256: str | None) -> SideSetup:
    """What one side is."""
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


def describe_hardware(device: str) -> str:
    """This machine in words."""
    machine = describe_machine()
    return f"{machine.processor}, {machine.cores} cores, {machine.threads} threads, {device}"


def sampling_of(params: SamplingParams) -> dict[str, Any]:
    """Parameters that differ from their defaults, the length apart."""
    usual = SamplingParams()
    names = [entry.name for entry in fields(SamplingParams) if entry.name != "max_tokens"]
    return {name: value for name in names if (value := getattr(params, name)) != getattr(usual, name)}


def _counters(contestant: Contestant) -> Callable[[], Awaitable[Counters | None]]:
    engine, weights = contestant.engine, contestant.target.weight_bytes
    cache = engine.kv.cache
    kv = 0 if cache is None else cache.nbytes
    proposers = {} if contestant.speculation.proposer == SpeculationOptions().proposer else used_proposers(contestant)

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
    """Proposers that the side's requests may draft with."""
    proposers, name = contestant.engine.proposers, contestant.speculation.proposer
    return proposers if name == AUTO else {name: proposers[name]}


def _faults(engine: Engine) -> Mapping[str, int]:
    counts: Counter[str] = Counter()
    for (proposer, _), count in engine.quarantine.counts.items():
        counts[proposer] += count
    return counts
