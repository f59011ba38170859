"""What one step of the engine comes to, all its requests together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gamaneh.control.cost import CostModel
from gamaneh.core import BatchReport, Draft, Share, StepOutput
from gamaneh.engine.drafting import Drafts
from gamaneh.engine.scheduler import PREFILL, Scheduled


def batch_report(
    plan: Sequence[Scheduled],
    drafts: Drafts,
    outputs: Sequence[StepOutput],
    cost: CostModel,
    *,
    preempted: int,
    verify_seconds: float,
    step_seconds: float,
) -> BatchReport:
    """Sum a step up."""
    prompt_rows = sum(item.count for item in plan if item.decision is PREFILL)
    draft_rows = sum(len(draft) for draft in drafts.by_request.values())
    origins = Counter(origin for output in outputs for origin in output.emitted)
    return BatchReport(
        requests=len(plan),
        prompt_rows=prompt_rows,
        draft_rows=draft_rows,
        rows=sum(item.count for item in plan) + draft_rows,
        preempted=preempted,
        origins=origins,
        draft_seconds=drafts.seconds,
        verify_seconds=verify_seconds,
        step_seconds=step_seconds,
        plain_seconds=None if prompt_rows else _plain_seconds(plan, origins.total(), cost),
    )


def shares(draft: Draft, emitted: Sequence[int]) -> tuple[Share, ...]:
    """Whose candidates were verified, and whose nodes `emitted` were; empty where one proposer made the draft."""
    drafted, accepted = Counter(draft.sources), Counter(draft.sources[node] for node in emitted if draft.sources)
    return tuple(Share(name, drafted[name], accepted[name]) for name in sorted(drafted))


def _plain_seconds(plan: Sequence[Scheduled], tokens: int, cost: CostModel) -> float | None:
    """tokens / requests plain steps of this batch, each as long as the cost model expects."""
    if not cost.verify:
        return None
    size, context = len(plan), sum(item.sequence.cached_len for item in plan)
    return tokens / size * cost.verify_seconds(size, batch=size, context=context)
