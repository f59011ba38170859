"""Both sides in this process, over a tiny real decoder."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fake_sides import make_plan

from gamaneh.bench.conduct import conduct
from gamaneh.bench.engines import Contestant, engine_ways
from gamaneh.bench.measure import BenchPlan
from gamaneh.bench.result import Load, Run
from gamaneh.core import AUTO
from gamaneh.engine.assembly import build_engine
from gamaneh.models.loading import LoadedModel
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.testing import TINY_CONFIGS, ByteTokenizer, ScriptedProposer, hashed, tiny_decoder

LOOKUP = SpeculationOptions(proposer="lookup", draft_length=3)


class PlainBytes(ByteTokenizer):
    """A byte tokenizer without a chat template."""

    backend = SimpleNamespace(chat_template=None)


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return LoadedModel(
        name="tiny",
        path=Path("tiny"),
        config=TINY_CONFIGS["llama"],
        decoder=tiny_decoder("llama"),
        tokenizer=PlainBytes(),  # type: ignore[arg-type]
        dtype=torch.float32,
        device=torch.device("cpu"),
        weight_bytes=1000,
    )


def contestant(target: LoadedModel, speculation: SpeculationOptions = LOOKUP) -> Contestant:
    options = EngineOptions(max_batch=4, kv_blocks=256, invariant=True)
    return Contestant(target, build_engine(target, None, speculation, options), speculation)


def measure(speculative: Contestant, plan: BenchPlan) -> Run:
    return conduct(lambda: engine_ways(speculative, plan), plan, "tiny", ())


def plan_of(params: SamplingParams, *loads: Load) -> BenchPlan:
    return make_plan(params=params, loads=loads or [Load("closed", 1.0, 4, 2)])


GREEDY = SamplingParams(max_tokens=20, ignore_eos=True)


def test_outputs_are_equal_and_every_time_is_known(target: LoadedModel) -> None:
    run = measure(contestant(target), plan_of(GREEDY, Load("closed", 1.0, 4, 1), Load("closed", 4.0, 8, 1)))
    assert run.complete and run.mode == "offline"
    assert run.equality is not None and run.equality.expected
    assert run.equality.equal == run.equality.compared == 12
    for point in run.points:
        for figures in (point.whole.plain, point.whole.speculative):
            assert figures.output_tokens == 20 * point.load.requests
            assert None not in (figures.split.queue, figures.split.prefill, figures.split.draft, figures.split.verify)
            assert figures.utilisation is not None and figures.utilisation > 0
    assert all(check.equal is not False for check in run.fairness)


def test_the_speculative_side_drafts_and_the_plain_one_does_not(target: LoadedModel) -> None:
    whole = measure(contestant(target), plan_of(GREEDY)).points[0].whole
    plain, speculative = whole.plain.speculation, whole.speculative.speculation
    assert plain is not None and speculative is not None
    assert (plain.drafted, plain.tokens_per_round) == (0, 1.0)
    assert speculative.drafted is not None and speculative.drafted > 0
    assert len(speculative.survival) == len(speculative.offered) == 3


def test_setups_tell_what_ran(target: LoadedModel) -> None:
    run = measure(contestant(target), plan_of(GREEDY))
    assert (run.plain.proposer, run.speculative.proposer, run.speculative.k) == ("none", "lookup", 3)
    assert (run.speculative.rule, run.speculative.exact, run.speculative.invariant) == ("match", True, True)
    assert (run.plain.precision, run.plain.sampling) == ("float32", {"ignore_eos": True})
    assert run.speculative_memory.proposers.keys() == {"lookup"}
    assert run.plain_memory.proposers == {}
    assert run.plain_memory.target is not None and run.plain_memory.target > 1000


def test_seeded_samples_are_compared_too(target: LoadedModel) -> None:
    run = measure(contestant(target), plan_of(SamplingParams(max_tokens=12, temperature=1.0, seed=5, ignore_eos=True)))
    assert run.equality is not None and run.equality.equal == run.equality.compared == 8


def test_an_engine_that_chooses_tells_all_its_proposers(target: LoadedModel) -> None:
    run = measure(contestant(target, SpeculationOptions(proposer=AUTO)), plan_of(GREEDY))
    assert "lookup" in run.speculative_memory.proposers


def test_a_proposer_that_fails_is_told_and_the_outputs_are_right(target: LoadedModel) -> None:
    def fault() -> None:
        raise RuntimeError("no weights")

    vocab = target.config.vocab_size
    broken = ScriptedProposer(hashed(vocab), vocab, name="broken", fault=fault)
    speculative = contestant(target)
    speculative.engine.register(broken)
    run = measure(
        Contestant(target, speculative.engine, SpeculationOptions(proposer="broken", draft_length=3)), plan_of(GREEDY)
    )
    assert run.equality is not None and run.equality.equal == run.equality.compared
    (text,) = [caution.text for caution in run.cautions if caution.code == "proposer_failed"]
    assert "broken" in text


def test_requests_by_the_clock_are_served_too(target: LoadedModel) -> None:
    run = measure(contestant(target), plan_of(GREEDY, Load("poisson", 200.0, 12, 1)))
    assert run.complete
    assert run.points[0].saturation is not None


def test_a_prompt_that_is_too_long_fails_alone(target: LoadedModel) -> None:
    options = EngineOptions(max_batch=1, kv_blocks=8, block_size=4, max_context=24, prefix_cache=False)
    short = Contestant(target, build_engine(target, None, LOOKUP, options), LOOKUP)
    prompts = make_plan().prompts
    plan = make_plan(
        params=SamplingParams(max_tokens=4), prompts=[*prompts[:1], replace(prompts[1], id="long", prompt="x" * 90)]
    )
    run = measure(short, plan)
    assert not run.complete and run.stopped is None
    assert {failure.prompt for failure in run.failures} == {"long"}
    assert run.points[0].whole.plain.requests == 4


def test_what_was_asked_in_one_round_is_not_remembered_in_the_next(target: LoadedModel) -> None:
    """A store of earlier answers would know the second round by heart."""
    suffix = SpeculationOptions(proposer="suffix", draft_length=3)
    prompt = replace(make_plan().prompts[0], prompt="to be or not to be")
    plan = make_plan(params=GREEDY, prompts=[prompt], loads=[Load("closed", 1.0, 1, 3)], warmups=0)
    whole = measure(contestant(target, suffix), plan).points[0].whole
    once = measure(contestant(target, suffix), replace(plan, loads=[Load("closed", 1.0, 1, 1)])).points[0].whole
    assert whole.speculative.speculation is not None and once.speculative.speculation is not None
    assert whole.speculative.speculation.acceptance_rate == once.speculative.speculation.acceptance_rate


def test_engines_end_with_the_run(target: LoadedModel) -> None:
    async def go() -> bool:
        async with engine_ways(contestant(target), plan_of(GREEDY)) as ways:
            engines = [way.client.engine for way in ways]
            assert all(engine.alive for engine in engines)
        return any(engine.alive for engine in engines)

    assert not asyncio.run(go())
