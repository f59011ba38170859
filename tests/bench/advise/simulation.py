"""Targets and proposers that take simulated time, for an advisor that has to be right about them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from gamaneh.backends.paged import PagedBackend
from gamaneh.bench.advise.workload import Workload, WorkloadRequest
from gamaneh.core import Proposer
from gamaneh.engine import llm
from gamaneh.engine.assembly import assemble
from gamaneh.engine.engine import Engine
from gamaneh.kv.manager import KVManager
from gamaneh.kv.pool import BlockPool
from gamaneh.models.loading import LoadedModel
from gamaneh.options import EngineOptions, SpeculationOptions
from gamaneh.testing import (
    ByteTokenizer,
    ScriptedProposer,
    SimulatedClock,
    TimedProposer,
    TimedRunner,
    next_token_table,
)
from gamaneh.testing.tiny import tiny_model

VOCAB = 64
SCRIPT = next_token_table({token: (token * 5 + 3) % VOCAB for token in range(VOCAB)}, VOCAB)


@dataclass(frozen=True)
class World:
    """How fast things are, in seconds.

    Args:
        step: of a forward of so many rows with so many tokens of context.
        accuracy: chance that a candidate is right.
        candidate: of one candidate of a draft.
        read: of a token that the proposer has not read yet.
        branches: wrong candidates beside each of them.
        fault: raises in a second proposer, `broken`; None leaves it out.
    """

    step: Callable[[int, int], float] = lambda rows, context: 1.0
    accuracy: float = 0.8
    candidate: float = 0.05
    read: float = 0.0
    branches: int = 0
    fault: Callable[[], None] | None = None


@contextmanager
def simulated(world: World) -> Iterator[LoadedModel]:
    """A target whose engines live in simulated time, as does everything that looks at a clock."""
    clock = SimulatedClock()

    def build(
        target: LoadedModel,
        draft: LoadedModel | None,
        speculation: SpeculationOptions,
        options: EngineOptions,
        **_: object,
    ) -> Engine:
        runner = TimedRunner(SCRIPT, VOCAB, clock, world.step, num_blocks=1024)
        pool = BlockPool(1024, 16, prefix_cache=False)
        return assemble(
            PagedBackend(runner, KVManager(pool, runner.cache)),
            ByteTokenizer(),
            proposers=proposers(world, clock),
            speculation=speculation,
            options=options,
            clock=clock,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(llm, "build_engine", build)
        patch.setattr(time, "perf_counter", clock)
        yield tiny_model()


def proposers(world: World, clock: SimulatedClock) -> Mapping[str, Proposer]:
    right = TimedProposer(
        SCRIPT,
        VOCAB,
        accuracy=world.accuracy,
        branches=world.branches,
        clock=clock,
        seconds=world.candidate,
        lag_seconds=world.read,
    )
    broken = ScriptedProposer(SCRIPT, VOCAB, name="broken", fault=world.fault)
    return {"scripted": right} | ({"broken": broken} if world.fault else {})


def make_workload(count: int = 12, tokens: int = 40, prompt: int = 20, *, own: bool = True) -> Workload:
    return Workload(tuple(_requests(count, tokens, prompt)), own=own, recorded=False)


def _requests(count: int, tokens: int, prompt: int) -> Sequence[WorkloadRequest]:
    return [
        WorkloadRequest(
            id=f"r{at}",
            category="code" if at % 2 else "chat",
            language="fa" if at % 4 == 0 else "en",
            prompt=tuple((at * 7 + place) % VOCAB for place in range(prompt)),
            max_tokens=tokens,
        )
        for at in range(count)
    ]
