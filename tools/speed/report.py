"""The figures of one configuration as text."""

from __future__ import annotations

from collections.abc import Iterator

from gamaneh.bench.result import Interval
from gamaneh.core import PLAIN
from tools.speed.figures import Aim, Figures, Memory, Speculation
from tools.speed.overhead import Overhead
from tools.speed.race import Race
from tools.speed.verify import VerifyTime


def describe(figures: Figures) -> str:
    """All figures of one configuration, the aims last."""
    setup = figures.setup
    mode = "shape-invariant" if setup.invariant else "free shapes"
    lines = [
        f"== {figures.title} ({mode}, {setup.threads} threads)",
        *_race("plain decoding, prompt's time left out", figures.peer),
        *_race("shape-invariant execution: plain time per token relative to free shapes", figures.invariance),
        "one verify, median ms (time relative to 1 position)",
        *(_verify(row) for row in figures.verify),
        "overhead: `Engine.step` without target and draft forwards, as a share of the target's forward",
        *(_overhead(row) for row in figures.overhead),
        "speculation against plain",
        *(_speculation(row) for row in figures.speculation),
        *_memory(figures.memory),
        "aims",
        *(_aim(aim) for aim in figures.aims()),
    ]
    return "\n".join(lines)


def _race(title: str, race: Race) -> Iterator[str]:
    yield title
    yield (
        f"  {race.first} {race.first_tokens_per_second:.2f} tokens/s, {race.second}"
        f" {race.second_tokens_per_second:.2f} tokens/s (medians of {race.pairs} pairs);"
        f" ratio {_interval(race.ratio)}"
    )
    for part in race.differences:
        gap = "unknown" if part.gap is None else f"{part.gap:.4f}"
        where = f"outputs differ from token {part.token_position} on"
        yield f"  {part.prompt}: {where}; gap of our two largest logits {gap}"


def _verify(row: VerifyTime) -> str:
    mode = "invariant" if row.invariant else "free"
    return f"  {mode:9} {row.positions:2} positions {_ms(row.seconds)} ({_interval(row.ratio)})"


def _overhead(row: Overhead) -> str:
    return (
        f"  {_way(row)}: {row.share:.1%} (median of rounds {row.median_share:.1%});"
        f" medians of {row.rounds} rounds: target {_ms(row.target_seconds)}, draft {_ms(row.draft_seconds)},"
        f" overhead {_ms(row.overhead_seconds)}, {_ms(row.proposing_seconds)} of it in the proposer;"
        f" {row.drafted:.1f} candidates a round"
    )


def _way(row: Overhead) -> str:
    return "plain" if row.proposer == PLAIN else f"{row.proposer}, k {_k(row.draft_length)}"


def _speculation(row: Speculation) -> str:
    outcome = row.outcome
    if outcome.speedup is None or outcome.speedup_low is None or outcome.speedup_high is None:
        return f"  {outcome.setup.proposer} on {row.category}: answers too short to time"
    speedup = Interval(outcome.speedup, outcome.speedup_low, outcome.speedup_high)
    return (
        f"  {outcome.setup.proposer} on {row.category}: speed-up {_interval(speedup)},"
        f" acceptance rate {outcome.acceptance_rate:.1%} at k {_k(outcome.setup.k)},"
        f" {outcome.tokens_per_round:.2f} tokens per round,"
        f" {outcome.mismatches} of {outcome.prompts} outputs differ from plain"
    )


def _memory(memory: Memory) -> Iterator[str]:
    yield (
        f"memory, MB: peak resident {_mb(memory.peak_resident)}; target: weights {_mb(memory.target_weights)},"
        f" KV cache {_mb(memory.target_kv)} ({memory.target_kv_per_token} bytes a token);"
        f" draft: weights {_mb(memory.draft_weights)}, KV cache {_mb(memory.draft_kv)}"
    )


def _aim(aim: Aim) -> str:
    bound = f"at {'least' if aim.at_least else 'most'} {aim.bound:g}"
    return f"  {'met' if aim.met else 'MISSED'}: {aim.figure} {aim.value:.3g}, aim {bound}"


def _interval(interval: Interval) -> str:
    return f"{interval.value:.2f} (95 % interval {interval.low:.2f} to {interval.high:.2f})"


def _k(draft_length: int | None) -> str:
    return "adaptive" if draft_length is None else str(draft_length)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms"


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f}"
