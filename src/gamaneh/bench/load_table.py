"""The cells of the load benchmark as a table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gamaneh.bench.load_cells import ADAPTIVE_ARM, BARE_ARM, PLAIN_ARM, Cell, Side
from gamaneh.bench.statistics import Interval
from gamaneh.metrics.percentiles import Percentiles

OFF = "plain / bare"
"""Names the ratio that does not compare with plain."""


def describe(cells: Sequence[Cell]) -> str:
    """A line for each arm of each cell: throughput, and medians and tails of the times in milliseconds."""
    header = (
        f"{'kind':10} {'conc.':>5} {'arm':8} {'tok/s':>8} {'ratio':>6} {'95 % interval':>14}"
        f"  {'TTFT P50/P95/P99':>23} {'ITL P50/P95/P99':>20} {'E2E P50/P95/P99':>23} {'differ':>6}"
    )
    return "\n".join([header, *(line for cell in cells for line in _lines(cell))])


def headline(cell: Cell) -> str:
    """The ratios of a cell in a line."""
    ratios = [("ratio", cell.ratio), (OFF, cell.off)]
    told = [f"{name} {ratio.value:.3f}" for name, ratio in ratios if ratio is not None]
    return f"{cell.kind}, {cell.concurrency} at once: {', '.join(told)}"


def _lines(cell: Cell) -> Iterator[str]:
    yield f"{cell.kind:10} {cell.concurrency:5} {_arm(PLAIN_ARM, cell.plain, None)} {cell.differences:6}"
    if cell.adaptive is not None:
        yield f"{'':16} {_arm(ADAPTIVE_ARM, cell.adaptive, cell.ratio)}"
    if cell.bare is not None:
        yield f"{'':16} {_arm(BARE_ARM, cell.bare, cell.off)} {OFF}"


def _arm(name: str, side: Side, ratio: Interval | None) -> str:
    compared = "" if ratio is None else f"{ratio.value:6.3f} {ratio.low:5.3f} to {ratio.high:5.3f}"
    return f"{name:8} {side.tokens_per_second:8.1f} {compared:21}  {_times(side)}"


def _times(side: Side) -> str:
    return f"{_ms(side.ttft):>23} {_ms(side.itl):>20} {_ms(side.e2e):>23}"


def _ms(values: Percentiles) -> str:
    return "/".join(f"{seconds * 1e3:.0f}" for seconds in (values.p50, values.p95, values.p99))
