"""One run from beginning to end: connect, check, measure, explain, write down. What ends it early loses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from gamaneh.bench.result import Run
from gamaneh.bench.run.document import Writer
from gamaneh.bench.run.fairness import check_setups, refuse_unequal
from gamaneh.bench.run.measure import Bench, Tick
from gamaneh.bench.run.plan import Plan
from gamaneh.bench.run.sides import Sides

INTERRUPTED = "interrupted"

Connect = Callable[[], AbstractAsyncContextManager[Sides]]


def conduct(
    connect: Connect,
    plan: Plan,
    writer: Writer,
    tick: Tick,
    keep: Callable[[Run], None],
    *,
    allow_unequal: bool,
) -> Run:
    """Measure `plan`; an interrupt ends it with what there is.

    Args:
        keep: given the run as far as it is, after each load.
        allow_unequal: go on where the sides differ in more than speculation.

    Raises:
        InvalidOption: they do, and must not.
        KeyboardInterrupt: before anything was measured.
    """
    begun: list[Bench] = []

    async def go() -> None:
        async with connect() as sides:
            if not allow_unequal:
                refuse_unequal(check_setups(sides.plain.setup, sides.speculative.setup))
            bench = Bench(sides, plan, tick, lambda bench: keep(writer.document(bench)))
            begun.append(bench)
            await bench.run()
            await writer.finish(bench)

    try:
        asyncio.run(go())
    except KeyboardInterrupt:
        if not begun:
            raise
        begun[0].stopped = INTERRUPTED
    return writer.document(begun[0])
