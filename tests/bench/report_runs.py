"""Runs with made-up figures, as the benchmark would have written them."""

from __future__ import annotations

import random
from dataclasses import replace

from gamaneh.bench.result import (
    FORMAT,
    VERSION,
    Caution,
    Check,
    Difference,
    Distribution,
    Equality,
    Goodput,
    Group,
    GroupKind,
    Interval,
    Load,
    Machine,
    Memory,
    ModelMark,
    Point,
    Price,
    PromptMark,
    Run,
    RunProvenance,
    SideFigures,
    SideSetup,
    Slo,
    Speculation,
    TimeSplit,
)

CATEGORIES = ("chat", "code", "editing", "summarising", "extraction", "maths", "translation", "creative")


def spread(middle: float, seed: int = 0, count: int = 48) -> Distribution:
    """Values around `middle` with a long tail."""
    noise = random.Random(seed)
    values = sorted(middle * (0.7 + noise.expovariate(2.5)) for _ in range(count))

    def at(share: float) -> float:
        return values[min(int(share * len(values)), len(values) - 1)]

    quantiles = tuple(at(step / 20) for step in range(21))
    mean = sum(values) / len(values)
    return Distribution(count, mean, at(0.5), at(0.95), at(0.99), values[-1], quantiles)


def speculation(rate: float) -> Speculation:
    survival = tuple(rate**at for at in range(1, 9))
    offered = tuple(int(400 * 0.9**at) for at in range(8))
    return Speculation(
        source="requests",
        drafts=400,
        drafted=2000,
        accepted=int(2000 * rate * 0.6),
        acceptance_rate=rate * 0.6,
        accepted_per_draft=3.0 * rate,
        rounds=460,
        emitted=1500,
        tokens_per_round=1.0 + 2.4 * rate,
        survival=survival,
        offered=offered,
    )


def figures(step: float, seed: int, drafts: Speculation | None, rate: float | None = None) -> SideFigures:
    speculative = drafts is not None
    split = TimeSplit(
        queue=0.4,
        prefill=9.0,
        decode=step * 6000,
        draft=step * 900 if speculative else None,
        verify=step * 4500 if speculative else None,
        other=step * 600 if speculative else None,
    )
    return SideFigures(
        requests=48,
        prompt_tokens=9_800,
        output_tokens=6_144,
        ttft=spread(0.19, seed),
        itl=spread(step * (2.2 if speculative else 1.0), seed + 1, 600),
        tpot=spread(step, seed + 2),
        e2e=spread(step * 128 + 0.2, seed + 3),
        output_length=spread(128.0, seed + 4),
        decode_tokens_per_second=1 / step,
        tokens_per_character=0.29,
        split=split,
        speculation=drafts,
        seconds=310.0,
        tokens_per_second=rate,
        requests_per_second=None if rate is None else rate / 128,
        utilisation=0.93,
        goodput=Goodput(44, 44 / 48, 0.13, 17.0),
        cost_per_million=2.35 if speculative else 3.6,
    )


def group(kind: GroupKind, name: str, gain: float, seed: int, rate: float | None = None, prompts: int = 12) -> Group:
    plain = figures(0.052, seed, None, rate)
    speculative = figures(0.052 / gain, seed + 10, speculation(min(gain / 2.4, 0.97)), rate and rate * gain)
    width = 0.12 * gain
    return Group(
        kind,
        name,
        prompts,
        Interval(gain, gain - width, gain + width),
        Interval(1 + (gain - 1) * 0.9, 1 + (gain - 1) * 0.9 - width, 1 + (gain - 1) * 0.9 + width),
        plain,
        speculative,
    )


def point(level: float, gain: float, seed: int, pattern: str = "closed") -> Point:
    noise = random.Random(seed)
    rate = 19.0 * level**0.7
    groups = [group("all", "all", gain, seed, rate, prompts=96)]
    groups += [
        group("category", name, gain * noise.uniform(0.7, 1.35), seed + at) for at, name in enumerate(CATEGORIES)
    ]
    groups += [
        group("language", "en", gain * 1.1, seed, prompts=48),
        group("language", "fa", gain * 0.82, seed, prompts=48),
    ]
    groups += [group("length", "short", gain * 0.98, seed), group("length", "long", gain * 1.04, seed)]
    load = Load(pattern, level, requests=96, rounds=3)  # type: ignore[arg-type]
    return Point(load, Interval(gain * 0.97, gain * 0.9, gain * 1.04), tuple(groups))


def setup(proposer: str, k: int | None) -> SideSetup:
    return SideSetup(
        target="qwen2.5-coder-1.5b-instruct",
        target_sha256="c" * 64,
        precision="bfloat16",
        hardware="Made-up processor, 2 cores",
        sampling={"temperature": 0.0},
        max_tokens=128,
        batch=8,
        requests=96,
        warmups=2,
        prompts_sha256="d" * 64,
        proposer=proposer,
        k=k,
        rule=None if proposer == "none" else "match",
        exact=None if proposer == "none" else True,
        invariant=True,
    )


MACHINE = Machine("Made-up processor", 2, 16_000_000_000, 2, "3.11.9", "2.13.0")

PROVENANCE = RunProvenance(
    date="2026-11-29T08:05:09+00:00",
    command="gamaneh bench --model qwen2.5-coder-1.5b-instruct --draft-model qwen2.5-coder-0.5b-instruct",
    version="0.1.0",
    commit="0123abc",
    versions={"torch": "2.13.0", "transformers": "5.24.0"},
    machine=MACHINE,
    models=(
        ModelMark("target", "qwen2.5-coder-1.5b-instruct", "c" * 64, "bfloat16"),
        ModelMark("draft_model", "qwen2.5-coder-0.5b-instruct", "e" * 64, "bfloat16"),
    ),
    prompts=PromptMark("core.jsonl", "d" * 64, 96, CATEGORIES, ("en", "fa")),
    seeds={"arrivals": 0, "first_request": 0},
)


def run(
    name: str = "draft model", *, gain: float = 1.62, seed: int = 1, proposer: str = "draft_model", points: int = 4
) -> Run:
    """A run at one to eight requests at once, the gain of which shrinks with the load."""
    levels = [1.0, 2.0, 4.0, 8.0][:points]
    return Run(
        format=FORMAT,
        version=VERSION,
        name=name,
        mode="offline",
        provenance=PROVENANCE,
        plain=setup("none", None),
        speculative=setup(proposer, 5),
        fairness=(
            Check("target", "qwen2.5-coder-1.5b-instruct", "qwen2.5-coder-1.5b-instruct", True),
            Check("server version", None, None, None),
        ),
        points=tuple(point(level, gain * level**-0.22, seed + at) for at, level in enumerate(levels)),
        plain_memory=Memory(4_100_000_000, None, 3_300_000_000, 230_000_000, {}),
        speculative_memory=Memory(4_100_000_000, None, 3_300_000_000, 230_000_000, {proposer: 1_090_000_000}),
        equality=Equality(True, 96, 95, 1, (Difference("chat-03", 211, "the quick", "a quick", gap=0.0, tie=True),)),
        cautions=(Caution("few_prompts", "12 prompts in the category creative: its interval says little"),),
        failures=(),
        slo=Slo(ttft=1.0, tpot=0.1),
        price=Price(0.35, "USD", "2026-11-01"),
        formulas={"tpot": "(E2E - TTFT) / (tokens - 1)", "speedup": "plain TPOT / speculative TPOT"},
        complete=True,
    )


def bare(name: str = "bare") -> Run:
    """A run that ended before anything was measured."""
    return replace(
        run(name),
        points=(),
        cautions=(),
        fairness=(),
        formulas={},
        equality=None,
        price=None,
        slo=None,
        complete=False,
        stopped="the server went away",
        speculative_memory=Memory(None, None, None, None, {}),
    )


def sparse(name: str = "a foreign server") -> Run:
    """A run against a server that tells next to nothing."""
    whole = run(name, points=1, seed=7)
    nothing = TimeSplit(queue=None, prefill=None, decode=200.0)

    def poor(side: SideFigures) -> SideFigures:
        return replace(
            side,
            ttft=None,
            itl=None,
            split=nothing,
            speculation=None,
            utilisation=None,
            goodput=None,
            cost_per_million=None,
        )

    first = whole.points[0]
    groups = tuple(replace(one, plain=poor(one.plain), speculative=poor(one.speculative)) for one in first.groups[:1])
    speculative = replace(whole.speculative, proposer=None, k=None, rule=None, exact=None, invariant=None)
    return replace(
        whole,
        points=(replace(first, throughput=None, groups=groups),),
        speculative=speculative,
        equality=replace(whole.equality, expected=False, differences=()) if whole.equality else None,
        speculative_memory=Memory(None, None, None, None, {}),
        price=None,
        cautions=(),
    )
