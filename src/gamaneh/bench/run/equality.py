"""Did speculation change the output? Where it did, was it a tie between two tokens?"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace

from gamaneh.bench.result import Difference, Equality
from gamaneh.bench.run.measure import Measured, Record
from gamaneh.bench.run.plan import Plan
from gamaneh.bench.run.sides import Side
from gamaneh.errors import GamanehError
from gamaneh.prefix import common_prefix

SHOWN = 60
"""Characters of each output that are shown from the difference on."""

MOST_ASKED = 20
"""Differences that are looked into."""

TIE_GAPS = {"bfloat16": 0.5, "float16": 0.0625, "float32": 0.001}
"""Largest gap that rounding explains, by type: two steps of the type between logits of 32 and 64; for
float32, whose steps are tiny, a bound on what the order of its additions does."""


def compare_outputs(loads: Sequence[Measured], plan: Plan, *, expected: bool) -> Equality | None:
    """The outputs of both sides, request by request; None when no two can be expected to agree.

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


def _differing(loads: Sequence[Measured]) -> list[tuple[Record, Record]]:
    pairs = (pair for measured in loads for pair in measured.pairs())
    return [pair for pair in pairs if pair[0].answer.text != pair[1].answer.text]


def _difference(plain: Record, speculative: Record) -> Difference:
    ours, theirs = plain.answer.text, speculative.answer.text
    position = common_prefix(ours, theirs)
    return Difference(
        prompt=plain.prompt.id,
        position=position,
        plain=ours[position : position + SHOWN],
        speculative=theirs[position : position + SHOWN],
        gap=None,
        tie=None,
    )


async def explain(equality: Equality, loads: Sequence[Measured], plan: Plan, plain: Side) -> Equality:
    """Ask the plain side again for each differing answer how close its two most likely tokens were there.

    Sampled outputs part where two noisy scores are close, which the probabilities do not tell; they are
    left as they are.
    """
    if not plan.params.greedy:
        return equality
    tolerance = TIE_GAPS.get(plain.setup.precision or "")
    explained: list[Difference] = []
    for difference, (record, _) in zip(equality.differences[:MOST_ASKED], _differing(loads), strict=False):
        gap = await _gap(plain, plan, record, difference.position)
        tie = None if gap is None or tolerance is None else gap <= tolerance
        explained.append(replace(difference, gap=gap, tie=tie))
    differences = (*explained, *equality.differences[MOST_ASKED:])
    return replace(equality, ties=sum(each.tie is True for each in differences), differences=differences)


async def _gap(plain: Side, plan: Plan, record: Record, position: int) -> float | None:
    """The smallest gap among the tokens that made the character at `position`; None if it cannot be had."""
    ask = plan.ask(record.prompt, record.key.slot, speculate=plain.speculate, salt="")
    ask = replace(ask, params=replace(ask.params, logprobs=2))
    length = 0
    gaps: list[float] = []
    try:
        async with aclosing(plain.client.stream(ask)) as deliveries:
            async for delivery in deliveries:
                gaps += delivery.gaps
                length += len(delivery.text)
                if length > position:
                    return min(gaps, default=None)
                gaps = [] if delivery.text else gaps
    except GamanehError:
        return None
    return min(gaps, default=None)
