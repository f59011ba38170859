"""Known mistakes of benchmarks, told where a run makes them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gamaneh.bench.result import Caution, Check, Figures, Memory, Mode, Point, PromptMark
from gamaneh.bench.run.fairness import unequal

FEW_PROMPTS = 20
FEW_REQUESTS = 100
"""A P99 of fewer values is nearly the largest of them."""

SHORT_TOKENS = 32
PREFILL_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Evidence:
    """What cautions are made from.

    Args:
        reads_anew: prompts that came back in another round were read again.
        faults: failures of proposers, by name.
    """

    mode: Mode
    prompts: PromptMark
    checks: Sequence[Check]
    points: Sequence[Point]
    speculative_memory: Memory
    reads_anew: bool
    complete: bool
    faults: Mapping[str, int]

    @property
    def sides(self) -> Iterator[Figures]:
        """Both sides of every load."""
        for point in self.points:
            yield from (point.whole.plain, point.whole.speculative)


def find_cautions(evidence: Evidence) -> tuple[Caution, ...]:
    """All that apply, in a fixed order; none where nothing was measured."""
    if not evidence.points:
        return ()
    found = ((code, look(evidence)) for code, look in _LOOKS.items())
    return tuple(Caution(code, text) for code, text in found if text is not None)


def _partial(evidence: Evidence) -> str | None:
    return None if evidence.complete else "Not every request was answered: the figures are of those that were."


def _faults(evidence: Evidence) -> str | None:
    told = ", ".join(f"{name} {count} times" for name, count in evidence.faults.items())
    return (
        f"Proposers failed and were left out for a while ({told}): the figures are not theirs alone." if told else None
    )


def _unequal(evidence: Evidence) -> str | None:
    names = [check.name for check in unequal(evidence.checks) if check.name != "sampling"]
    return f"The sides differ in more than speculation: {', '.join(names)}." if names else None


def _sampling(evidence: Evidence) -> str | None:
    differs = any(check.name == "sampling" for check in unequal(evidence.checks))
    return "The sides sample differently: their outputs, and so their work, are not the same." if differs else None


def _unknown(evidence: Evidence) -> str | None:
    names = [check.name for check in evidence.checks if check.equal is None]
    return f"Whether the sides agree in {', '.join(names)} is not known: make sure of it." if names else None


def _mean_only(evidence: Evidence) -> str | None:
    fewest = min(figures.requests for figures in evidence.sides)
    if fewest >= FEW_REQUESTS:
        return None
    return f"{fewest} requests a load: their P99 is nearly their largest value, and says little of rare delays."


def _prefill(evidence: Evidence) -> str | None:
    shares = [share for figures in evidence.sides if (share := _prefill_share(figures)) is not None]
    worst = max(shares, default=0.0)
    if worst <= PREFILL_SHARE:
        return None
    return f"Up to {worst:.0%} of the time goes to first tokens, which speculation does not make faster."


def _prefill_share(figures: Figures) -> float | None:
    """First tokens' share of all latency."""
    if figures.ttft is None or figures.e2e is None or figures.e2e.mean == 0:
        return None
    return figures.ttft.mean / figures.e2e.mean


def _few_prompts(evidence: Evidence) -> str | None:
    if evidence.prompts.count >= FEW_PROMPTS:
        return None
    return f"{evidence.prompts.count} prompts: too few to stand for what people ask."


def _one_kind(evidence: Evidence) -> str | None:
    if len(evidence.prompts.categories) > 1:
        return None
    return f"All prompts are of one category ({evidence.prompts.categories[0]}): how much is accepted depends on it."


def _one_language(evidence: Evidence) -> str | None:
    if len(evidence.prompts.languages) > 1:
        return None
    return f"All prompts are in one language ({evidence.prompts.languages[0]}): drafts fare worse in smaller ones."


def _short(evidence: Evidence) -> str | None:
    medians = [figures.output_length.p50 for figures in evidence.sides if figures.output_length is not None]
    if not medians or min(medians) >= SHORT_TOKENS:
        return None
    return f"Half of the outputs have at most {min(medians):.0f} tokens: too short to show what speculation does."


def _draft_memory(evidence: Evidence) -> str | None:
    if evidence.speculative_memory.proposers or evidence.mode == "offline":
        return None
    return "What the draft takes in memory is not known: count it before comparing costs or batch sizes."


def _noise(evidence: Evidence) -> str | None:
    drowned = [point.load.level for point in evidence.points if _drowned(point)]
    if not drowned:
        return None
    levels = ", ".join(f"{level:g}" for level in drowned)
    return f"The interval of the speed-up holds 1 at load {levels}: the effect is not larger than the noise."


def _drowned(point: Point) -> bool:
    speedup = point.whole.speedup
    return speedup is not None and speedup.low <= 1.0 <= speedup.high and not math.isclose(speedup.low, speedup.high)


def _prefix_cache(evidence: Evidence) -> str | None:
    if evidence.reads_anew:
        return None
    return "The server may keep what it has read, and each prompt is asked several times: first tokens look too fast."


def _repeated(evidence: Evidence) -> str | None:
    most = max(point.load.requests for point in evidence.points)
    if most <= evidence.prompts.count:
        return None
    return (
        f"{most} requests of {evidence.prompts.count} prompts in a round: whatever remembers texts knows the answers."
    )


def _saturated(evidence: Evidence) -> str | None:
    over = [f"{point.load.level:g}" for point in evidence.points if point.saturation and _any(point)]
    if not over:
        return None
    return f"Requests piled up at {', '.join(over)} a second: latencies there grow with the length of the run."


def _any(point: Point) -> bool:
    return point.saturation is not None and (point.saturation.plain or point.saturation.speculative)


_LOOKS: dict[str, Callable[[Evidence], str | None]] = {
    "partial": _partial,
    "proposer_failed": _faults,
    "unequal": _unequal,
    "different_sampling": _sampling,
    "unknown_conditions": _unknown,
    "noise": _noise,
    "short_outputs": _short,
    "prefill_dominated": _prefill,
    "few_prompts": _few_prompts,
    "one_category": _one_kind,
    "one_language": _one_language,
    "mean_only": _mean_only,
    "draft_memory": _draft_memory,
    "prefix_cache": _prefix_cache,
    "repeated_prompts": _repeated,
    "saturated": _saturated,
}
"""Code -> what tells whether it applies, and how."""
