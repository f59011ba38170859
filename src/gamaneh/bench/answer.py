"""The verdict on a measurement: is the comparison fair, are the outputs the same, which known mistakes are in it?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from gamaneh.bench.measure import BenchPlan
from gamaneh.bench.record import MeasuredLoad, Record, Way
from gamaneh.bench.result import (
    Caution,
    Check,
    Difference,
    Equality,
    Point,
    Run,
    SideFigures,
    SideSetup,
    TokenSource,
)
from gamaneh.bench.time_limit import broke_off
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.prefix import common_prefix

CONDITIONS = (
    "target",
    "target_sha256",
    "precision",
    "invariant",
    "hardware",
    "sampling",
    "max_tokens",
    "batch",
    "requests",
    "warmups",
    "prompts_sha256",
)
"""Fields of `SideSetup` that must not differ."""

LENGTH_TOLERANCE = 0.02
"""Share by which output lengths may differ, as they do where outputs are sampled."""


def check_setups(plain: SideSetup, speculative: SideSetup) -> tuple[Check, ...]:
    """Return every condition with both values; what is not known on one side is neither equal nor different."""
    return tuple(_check(name, getattr(plain, name), getattr(speculative, name)) for name in CONDITIONS)


def _check(name: str, plain: Any, speculative: Any) -> Check:
    known = plain is not None and speculative is not None
    return Check(name, plain, speculative, plain == speculative if known else None)


def check_lengths(plain: SideFigures, speculative: SideFigures) -> Check:
    """Compare the output tokens for the same requests."""
    one, other = plain.output_tokens, speculative.output_tokens
    return Check("output_tokens", one, other, abs(one - other) <= LENGTH_TOLERANCE * max(one, other))


def refuse_unequal(checks: Sequence[Check]) -> None:
    """
    Raises:
        InvalidOption: a condition is known to differ.
    """
    for check in unequal(checks):
        rule = f"must be the same on both sides ({check.plain!r} plain) unless --allow-unequal is given"
        raise InvalidOption(check.name, rule, check.speculative)


def unequal(checks: Sequence[Check]) -> Iterator[Check]:
    """Yield the conditions that are known to differ."""
    return (check for check in checks if check.equal is False)


SHOWN = 60
"""Characters of each output that are shown from the difference on."""

MOST_ASKED = 20
"""Differences that are looked into."""

TIE_GAPS = {"bfloat16": 0.5, "float16": 0.0625, "float32": 0.001}
"""Largest gap that rounding explains, by type: two steps of the type between logits of 32 and 64; for
float32, whose steps are tiny, a bound on what the order of its additions does."""


def compare_outputs(loads: Sequence[MeasuredLoad], plan: BenchPlan, *, expected: bool) -> Equality | None:
    """Compare the outputs of both sides, request by request; None when no two can be expected to agree.

    Outputs are compared as tokens where both sides tell them, else as texts.

    Args:
        expected: the rule promises the same tokens.
    """
    if not plan.comparable:
        return None
    different = [_difference(*pair) for pair in _differing(loads)]
    compared = sum(1 for measured in loads for _ in measured.pairs())
    return Equality(
        expected=expected,
        compared=compared,
        equal=compared - len(different),
        ties=0,
        differences=tuple(different),
    )


def differs(plain: Record, other: Record) -> bool:
    """Whether two answers to one request are not the same."""
    if plain.ids and other.ids:
        return plain.ids != other.ids
    return plain.text != other.text


def _differing(loads: Sequence[MeasuredLoad]) -> list[tuple[Record, Record]]:
    return [pair for measured in loads for pair in measured.pairs() if differs(*pair)]


def _difference(plain: Record, speculative: Record) -> Difference:
    ours, theirs = plain.text, speculative.text
    position = common_prefix(ours, theirs)
    known = bool(plain.ids and speculative.ids)
    at = common_prefix(plain.ids, speculative.ids) if known else None
    return Difference(
        prompt=plain.asked.id,
        position=position,
        plain=ours[position : position + SHOWN],
        speculative=theirs[position : position + SHOWN],
        gap=None,
        tie=None,
        token_position=at,
        plain_token=_at(plain.ids, at),
        speculative_token=_at(speculative.ids, at),
    )


def _at(ids: Sequence[int], position: int | None) -> int | None:
    return None if position is None or position >= len(ids) else ids[position]


async def explain(equality: Equality, loads: Sequence[MeasuredLoad], plan: BenchPlan, plain: Way) -> Equality:
    """Ask the plain side again for each differing answer how close its two most likely tokens were there.

    Sampled outputs part where two noisy scores are close, which the probabilities do not tell; they are
    left as they are.
    """
    if not plan.params.greedy:
        return equality
    tolerance = TIE_GAPS.get(plain.setup.precision or "")
    explained: list[Difference] = []
    for difference, (record, _) in zip(equality.differences[:MOST_ASKED], _differing(loads), strict=False):
        gap = await _gap(plain, plan, record, difference)
        tie = None if gap is None or tolerance is None else gap <= tolerance
        explained.append(replace(difference, gap=gap, tie=tie))
    differences = (*explained, *equality.differences[MOST_ASKED:])
    return replace(equality, ties=sum(each.tie is True for each in differences), differences=differences)


async def _gap(plain: Way, plan: BenchPlan, record: Record, difference: Difference) -> float | None:
    """Return the gap of the token that differs, or the smallest of those that made the differing character."""
    ask = plan.ask(record.asked, record.key.slot, speculate=plain.speculate, salt="")
    ask = replace(ask, params=replace(ask.params, logprobs=2))
    length, seen = 0, 0
    gaps: list[float] = []
    try:
        async with aclosing(plain.client.stream(ask)) as deliveries:
            async for delivery in deliveries:
                at = difference.token_position
                if at is not None and at < seen + len(delivery.gaps):
                    return delivery.gaps[at - seen]
                seen += len(delivery.gaps)
                gaps += delivery.gaps
                length += len(delivery.text)
                if at is None and length > difference.position:
                    break
                gaps = [] if delivery.text else gaps
    except GamanehError:
        return None
    return None if difference.token_position is not None else min(gaps, default=None)


FEW_PROMPTS = 20
FEW_REQUESTS = 100
"""A P99 of fewer values is nearly the largest of them."""

SHORT_TOKENS = 32
PREFILL_SHARE = 0.5


def find_cautions(run: Run, *, reads_anew: bool, faults: Mapping[str, int]) -> tuple[Caution, ...]:
    """Return all that apply to a run, in a fixed order; none where nothing was measured.

    Args:
        reads_anew: prompts that came back in another round were read again.
        faults: failures of proposers, by name.
    """
    if not run.points:
        return ()
    found = {code: look(run) for code, look in _LOOKS.items()}
    told = ", ".join(f"{name} {count} times" for name, count in faults.items())
    if told:
        found["proposer_failed"] = (
            f"Proposers failed and were left out for a while ({told}): the figures are not theirs alone."
        )
    if not reads_anew:
        found["prefix_cache"] = (
            "The server may keep what it has read, and each prompt is asked several times: first tokens look too fast."
        )
    return tuple(Caution(code, text) for code in CODES if (text := found.get(code)) is not None)


def _sides(run: Run) -> Iterator[SideFigures]:
    """Yield both sides of every load."""
    for point in run.points:
        yield from (point.whole.plain, point.whole.speculative)


def _partial(run: Run) -> str | None:
    if run.complete:
        return None
    return "Not every request was answered: the figures are of those that both sides answered."


def _approximate(run: Run) -> str | None:
    if run.speculative.exact is not False:
        return None
    return (
        f"The rule {run.speculative.rule} is approximate: outputs do not follow the target's distribution, and every "
        "speculative figure is of other outputs."
    )


def _counted_by(source: TokenSource, text: str) -> Callable[[Run], str | None]:
    def look(run: Run) -> str | None:
        if all(figures.tokens_from != source for figures in _sides(run)):
            return None
        return f"A server does not say how many tokens it wrote: {text}."

    return look


def _unequal(run: Run) -> str | None:
    names = [check.name for check in unequal(run.fairness) if check.name != "sampling"]
    return f"The sides differ in more than speculation: {', '.join(names)}." if names else None


def _sampling(run: Run) -> str | None:
    differs = any(check.name == "sampling" for check in unequal(run.fairness))
    return "The sides sample differently: their outputs, and so their work, are not the same." if differs else None


def _unknown(run: Run) -> str | None:
    names = [check.name for check in run.fairness if check.equal is None]
    return f"Whether the sides agree in {', '.join(names)} is not known: make sure of it." if names else None


def _mean_only(run: Run) -> str | None:
    fewest = min(figures.requests for figures in _sides(run))
    if fewest >= FEW_REQUESTS:
        return None
    return f"{fewest} requests a load: their P99 is nearly their largest value, and says little of rare delays."


def _prefill(run: Run) -> str | None:
    worst = max(map(_prefill_share, _sides(run)), default=0.0)
    if worst <= PREFILL_SHARE:
        return None
    return f"Up to {worst:.0%} of the time goes to first tokens, which speculation does not make faster."


def _prefill_share(figures: SideFigures) -> float:
    """Return the first tokens' share of all latency."""
    if figures.ttft is None or figures.e2e is None or figures.e2e.mean == 0:
        return 0.0
    return figures.ttft.mean / figures.e2e.mean


def _few_prompts(run: Run) -> str | None:
    if run.provenance.prompts.count >= FEW_PROMPTS:
        return None
    return f"{run.provenance.prompts.count} prompts: too few to stand for what people ask."


def _one_kind(run: Run) -> str | None:
    if len(run.provenance.prompts.categories) > 1:
        return None
    return (
        f"All prompts are of one category ({run.provenance.prompts.categories[0]}): how much is accepted depends on it."
    )


def _one_language(run: Run) -> str | None:
    if len(run.provenance.prompts.languages) > 1:
        return None
    return (
        f"All prompts are in one language ({run.provenance.prompts.languages[0]}): drafts fare worse in smaller ones."
    )


def _short(run: Run) -> str | None:
    medians = [figures.output_length.p50 for figures in _sides(run) if figures.output_length is not None]
    if not medians or min(medians) >= SHORT_TOKENS:
        return None
    return f"Half of the outputs have at most {min(medians):.0f} tokens: too short to show what speculation does."


def _draft_memory(run: Run) -> str | None:
    if run.speculative_memory.proposers or run.mode == "offline":
        return None
    return "What the draft takes in memory is not known: count it before comparing costs or batch sizes."


def _noise(run: Run) -> str | None:
    drowned = [point.load.level for point in run.points if _drowned(point)]
    if not drowned:
        return None
    levels = ", ".join(f"{level:g}" for level in drowned)
    return f"The interval of the speed-up holds 1 at load {levels}: the effect is not larger than the noise."


def _drowned(point: Point) -> bool:
    speedup = point.whole.speedup
    return speedup is not None and speedup.low <= 1.0 <= speedup.high and not math.isclose(speedup.low, speedup.high)


def _repeated(run: Run) -> str | None:
    most, count = max(point.load.requests for point in run.points), run.provenance.prompts.count
    if most <= count:
        return None
    return f"{most} requests of {count} prompts in a round: whatever remembers texts knows the answers."


def _saturated(run: Run) -> str | None:
    found = [point for point in run.points if point.saturation is not None]
    over = [point for point in found if point.saturation and (point.saturation.plain or point.saturation.speculative)]
    if not over:
        return None
    levels = ", ".join(f"{point.load.level:g}" for point in over)
    return f"Requests piled up at {levels} a second: latencies there grow with the length of the run."


_LOOKS: dict[str, Callable[[Run], str | None]] = {
    "partial": _partial,
    "approximate": _approximate,
    "tokens_by_delivery": _counted_by(
        "deliveries", "each delivery counts as one token, and a delivery may hold several"
    ),
    "tokens_by_tokenizer": _counted_by("tokenizer", "the tokenizer counted them in its text"),
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
    "repeated_prompts": _repeated,
    "saturated": _saturated,
}
"""Code -> what tells whether it applies, and how."""

_LEADING = ("partial", "approximate", "tokens_by_delivery", "tokens_by_tokenizer", "proposer_failed")
CODES = (*_LEADING, *(code for code in _LOOKS if code not in _LEADING), "prefix_cache")
"""In the order in which they are told."""


def went_wrong(run: Run) -> bool:
    """Whether something is missing from the figures, or an output is not what it must be."""
    failed = any(caution.code == "proposer_failed" for caution in run.cautions)
    return broke_off(run.stopped) or bool(run.failures) or failed or unexplained(run.equality) > 0


def unexplained(equality: Equality | None) -> int:
    """Return the differing outputs that the rule does not allow and no tie explains."""
    if equality is None or not equality.expected:
        return 0
    return equality.compared - equality.equal - equality.ties
