"""A run as a whole: from what was measured to what is written down."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gamaneh.bench.counters import Counters
from gamaneh.bench.result import (
    FORMAT,
    VERSION,
    Check,
    Equality,
    Failure,
    Memory,
    ModelMark,
    Point,
    Provenance,
    Run,
)
from gamaneh.bench.run.cautions import Evidence, find_cautions
from gamaneh.bench.run.equality import compare_outputs, explain
from gamaneh.bench.run.fairness import check_lengths, check_setups
from gamaneh.bench.run.formulas import FORMULAS
from gamaneh.bench.run.groups import make_point
from gamaneh.bench.run.measure import Bench, Measured
from gamaneh.bench.run.provenance import describe_provenance
from gamaneh.bench.run.sides import SIDE_NAMES, Sides

TARGET = "target"


class Writer:
    """Makes the document of a bench, as often as wanted while it runs.

    Args:
        name: what to call the run.
        models: those that took part.
    """

    def __init__(self, name: str, models: Sequence[ModelMark]) -> None:
        self.name, self.models = name, models
        self.memory = dict.fromkeys(SIDE_NAMES, Memory(None, None, None, None, {}))
        self._equality: Equality | None = None

    async def finish(self, bench: Bench) -> None:
        """Look at memory, and ask about differences, which takes more requests."""
        for side in bench.sides.both:
            self.memory[side.name] = _memory(await side.counters())
        equality = _outputs(bench)
        self._equality = equality and await explain(equality, bench.measured, bench.plan, bench.sides.plain)

    def document(self, bench: Bench) -> Run:
        """What there is so far."""
        plan, sides = bench.plan, bench.sides
        points = tuple(make_point(measured, plan.slo, plan.price) for measured in bench.measured if _any(measured))
        provenance = describe_provenance(plan, self.models)
        checks = _checks(sides, points)
        failures = tuple(_failures(bench.measured))
        complete = not failures and bench.stopped is None
        evidence = self._evidence(bench, provenance, checks, points, complete=complete)
        return Run(
            format=FORMAT,
            version=VERSION,
            name=self.name,
            mode=sides.mode,
            provenance=provenance,
            plain=sides.plain.setup,
            speculative=sides.speculative.setup,
            fairness=checks,
            points=points,
            plain_memory=self.memory["plain"],
            speculative_memory=self.memory["speculative"],
            equality=self._equality or _outputs(bench),
            cautions=find_cautions(evidence),
            failures=failures,
            slo=plan.slo,
            price=plan.price,
            formulas=dict(FORMULAS),
            complete=complete,
            stopped=bench.stopped,
        )

    def _evidence(
        self,
        bench: Bench,
        provenance: Provenance,
        checks: Sequence[Check],
        points: Sequence[Point],
        *,
        complete: bool,
    ) -> Evidence:
        return Evidence(
            mode=bench.sides.mode,
            prompts=provenance.prompts,
            checks=checks,
            points=points,
            speculative_memory=self.memory["speculative"],
            reads_anew=all(side.reads_anew for side in bench.sides.both),
            complete=complete,
            faults=bench.sides.speculative.faults(),
        )


def _any(measured: Measured) -> bool:
    """Both sides had a turn."""
    return all(measured.stretches[name] for name in SIDE_NAMES)


def _outputs(bench: Bench) -> Equality | None:
    setup = bench.sides.speculative.setup
    expected = setup.rule == "match" or (bench.plan.params.greedy and setup.exact is not False)
    return compare_outputs(bench.measured, bench.plan, expected=expected)


def _checks(sides: Sides, points: Sequence[Point]) -> tuple[Check, ...]:
    lengths = (check_lengths(point.whole.plain, point.whole.speculative) for point in points)
    worst = sorted(lengths, key=lambda check: check.equal is True)
    return (*check_setups(sides.plain.setup, sides.speculative.setup), *worst[:1])


def _failures(loads: Sequence[Measured]) -> Iterator[Failure]:
    for measured in loads:
        for side in SIDE_NAMES:
            for record in measured.records(side):
                if record.answer.error is not None:
                    yield Failure(side, record.prompt.id, record.answer.error)


def _memory(counters: Counters | None) -> Memory:
    if counters is None:
        return Memory(None, None, None, None, {})
    models = dict(counters.models)
    return Memory(
        peak_resident=counters.resident,
        peak_device=counters.device,
        target=models.pop(TARGET, None),
        target_kv=counters.target_kv,
        proposers=models,
    )
