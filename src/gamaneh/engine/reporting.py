"""What one step of the engine comes to, all its requests together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gamaneh.control.cost import CostModel
from gamaneh.core import BatchReport, Stopwatch
from gamaneh.engine.scheduler import PREFILL
from gamaneh.engine.turn import Turn


def batch_report(
    turns: Sequence[Turn],
    cost: CostModel,
    watch: Stopwatch,
    *,
    preempted: int,
) -> BatchReport:
    """Sum a step up."""
    prompt_rows = sum(turn.count for turn in turns if turn.decision is PREFILL)
    draft_rows = sum(len(turn.draft) for turn in turns)
    origins = Counter(origin for turn in turns if turn.output for origin in turn.output.emitted)
    return BatchReport(
        requests=len(turns),
        prompt_rows=prompt_rows,
        draft_rows=draft_rows,
        rows=sum(turn.count for turn in turns) + draft_rows,
        preempted=preempted,
        origins=origins,
        draft_seconds=dict(watch.draft_seconds),
        verify_seconds=watch.verify_seconds,
        step_seconds=watch.clock() - watch.started,
        plain_seconds=None if prompt_rows else _plain_seconds(turns, origins.total(), cost),
    )


def _plain_seconds(turns: Sequence[Turn], tokens: int, cost: CostModel) -> float | None:
    """tokens / requests plain steps of this batch, each as long as the cost model expects."""
    if not cost.verify:
        return None
    size, context = len(turns), sum(turn.sequence.cached_len for turn in turns)
    return tokens / size * cost.verify_seconds(size, batch=size, context=context)
