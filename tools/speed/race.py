"""Two ways of doing the same decoding, alternated, and the ratio of their speeds.

Formulas
    tokens/s    (tokens - 1) / (E2E seconds - seconds to the first token): the prompt's time is left out
    ratio       tokens/s of the first / tokens/s of the second, of one prompt; their geometric mean over
                the pairs, with a 95 % bootstrap interval
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gamaneh.bench.answer import compare_outputs, explain
from gamaneh.bench.measure import Bench, BenchPlan
from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.record import PLAIN_SIDE, SPECULATIVE_SIDE, Way, Ways
from gamaneh.bench.result import Difference, Interval, Load, Setup, SideSetup
from gamaneh.bench.stats import geometric_mean
from gamaneh.engine.llm import Generation
from gamaneh.errors import InvalidRequest
from tools.cases import Case, Generator, GeneratorClient
from tools.speed.configuration import Effort, fixed_length


@dataclass(frozen=True, slots=True)
class Race:
    """The outcome of a race.

    Args:
        first_tokens_per_second, second_tokens_per_second: medians over the pairs.
        ratio: speed of the first relative to the second.
        differences: where the outputs of a pair part; rounding may do that.
    """

    first: str
    second: str
    pairs: int
    first_tokens_per_second: float
    second_tokens_per_second: float
    ratio: Interval
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Runner:
    """Who takes part in a race."""

    name: str
    generator: Generator


def race(first: Runner, second: Runner, cases: Sequence[Case], effort: Effort, setup: Setup) -> Race:
    """Let both answer the cases in turns, the order swapped from pair to pair, the first pair dropped.

    Raises:
        InvalidRequest: a case could not be answered.
    """
    prompts = [Prompt(case.id, case.category, "", case.id) for case in cases]
    load = Load("closed", 1.0, effort.repeats, 1)
    plan = BenchPlan(source="cases", prompts=prompts, params=fixed_length(effort.tokens), loads=[load])
    clients = GeneratorClient(first.generator, cases), GeneratorClient(second.generator, cases)
    side = _describe(setup, plan)
    ways = Ways(Way(PLAIN_SIDE, clients[0], False, side), Way(SPECULATIVE_SIDE, clients[1], True, side))
    bench = Bench(ways, plan)
    differences = asyncio.run(_run(bench, ways))
    # The first answer is the warm-up; those after the last pair were asked for to explain differences.
    speeds, other_speeds = (
        [_tokens_per_second(answer) for answer in client.answers[1 : 1 + load.requests]] for client in clients
    )
    return Race(
        first=first.name,
        second=second.name,
        pairs=load.requests,
        first_tokens_per_second=statistics.median(speeds),
        second_tokens_per_second=statistics.median(other_speeds),
        ratio=geometric_mean([one / other for one, other in zip(speeds, other_speeds, strict=True)]),
        differences=differences,
    )


async def _run(bench: Bench, ways: Ways) -> tuple[Difference, ...]:
    await bench.run()
    for way in ways:
        for record in bench.measured[0].records(way.name):
            if record.error is not None:
                raise InvalidRequest(f"prompt {record.asked.id}", "must be one the model can answer", record.error)
    equality = compare_outputs(bench.measured, bench.plan, expected=True)
    assert equality is not None, "greedy outputs can be compared"
    return (await explain(equality, bench.measured, bench.plan, ways.plain)).differences


def _describe(setup: Setup, plan: BenchPlan) -> SideSetup:
    return SideSetup(
        target=setup.model,
        target_sha256=None,
        precision=setup.dtype,
        hardware=setup.device,
        sampling={},
        max_tokens=plan.params.max_tokens,
        batch=1,
        requests=plan.requests,
        warmups=plan.warmups,
        prompts_sha256=plan.prompts_sha256,
        proposer=setup.proposer,
    )


def _tokens_per_second(answer: Generation) -> float:
    return (len(answer.tokens) - 1) / (answer.seconds - answer.first_token_seconds)
