"""Who runs in the next step: one token budget for prefill chunks and for decode rows with drafts."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from gamaneh.core import PLAIN, Decision, ReasonCode
from gamaneh.engine.sequence import SequenceState
from gamaneh.kv.manager import KVManager
from gamaneh.options import EngineOptions

Decide = Callable[[Sequence[SequenceState]], Sequence[Decision]]

PREFILL = Decision(PLAIN, 0, 0, "the prompt is still being read", ReasonCode.PREFILL)
NO_ROOM = Decision(PLAIN, 0, 0, "no room in the KV cache or the step for a draft", ReasonCode.NO_ROOM)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """One request's part of a step.

    Args:
        count: pending tokens to feed.
        samples: they are all of the pending tokens, so the round emits.
    """

    sequence: SequenceState
    count: int
    decision: Decision
    samples: bool


class Scheduler:
    """Holds the waiting and the running requests and plans each step."""

    def __init__(self, kv: KVManager, options: EngineOptions) -> None:
        self.kv, self.options = kv, options
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        self.preempted: list[SequenceState] = []

    def __iter__(self) -> Iterator[SequenceState]:
        yield from self.running
        yield from self.waiting

    def add(self, sequence: SequenceState) -> None:
        """Queue a request behind those of its priority."""
        behind = (at for at, other in enumerate(self.waiting) if other.priority < sequence.priority)
        self.waiting.insert(next(behind, len(self.waiting)), sequence)

    def remove(self, sequence: SequenceState) -> None:
        """Forget a request and free its blocks."""
        if sequence in self.running:
            self.running.remove(sequence)
            self.kv.free(sequence.request_id)
        else:
            self.waiting.remove(sequence)

    def plan(self, decide: Decide) -> list[Scheduled]:
        """Choose rows for one step and reserve their blocks.

        Decoding requests come first, oldest first, so that a long prompt never holds them up; then
        prompts by priority, in the order of arrival. Short of blocks, drafts go first, then the
        youngest request of the lowest priority.
        """
        self.preempted = []
        plan: list[Scheduled] = []
        decoding = [sequence for sequence in self.running if sequence.decoding]
        decisions = dict(zip((s.request_id for s in decoding), decide(decoding), strict=True)) if decoding else {}
        for sequence in decoding:
            self._plan_decode(plan, sequence, decisions[sequence.request_id])
        for sequence in [s for s in self.running if not s.decoding]:
            self._plan_prefill(plan, sequence)
        while self._can_admit(plan):
            self._admit(plan)
        return plan

    def _plan_decode(self, plan: list[Scheduled], sequence: SequenceState, decision: Decision) -> None:
        room = self._room(plan) - 1
        if room < 0 or sequence not in self.running:
            return
        if decision.nodes > room or not self.kv.reserve(sequence.request_id, 1 + decision.nodes):
            if not self._reserve(plan, sequence, 1):
                return
            decision = decision if decision.nodes == 0 else NO_ROOM
        plan.append(Scheduled(sequence, 1, decision, samples=True))

    def _plan_prefill(self, plan: list[Scheduled], sequence: SequenceState) -> None:
        count = min(sequence.num_pending, self._room(plan))
        if count > 0 and sequence in self.running and self._reserve(plan, sequence, count):
            plan.append(Scheduled(sequence, count, PREFILL, samples=count == sequence.num_pending))

    def _room(self, plan: list[Scheduled]) -> int:
        return self.options.step_tokens - sum(item.count + item.decision.nodes for item in plan)

    def _reserve(self, plan: list[Scheduled], sequence: SequenceState, count: int) -> bool:
        """Reserve blocks, preempting the least and youngest requests that are not in the plan yet."""
        planned = {item.sequence.request_id for item in plan}
        while not self.kv.reserve(sequence.request_id, count):
            unplanned = [s for s in reversed(self.running) if s.request_id not in planned]
            victim = min(unplanned, key=lambda s: s.priority)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: SequenceState) -> None:
        """Give all blocks back; the request is read again from its tokens when there is room."""
        self.running.remove(sequence)
        self.kv.free(sequence.request_id)
        sequence.cached_len = 0
        if sequence.hidden is not None:
            sequence.hidden.clear()
        sequence.prompt_logprobs.clear()
        sequence.timeline.preempt()
        before = (at for at, other in enumerate(self.waiting) if other.priority <= sequence.priority)
        self.waiting.insert(next(before, len(self.waiting)), sequence)
        self.preempted.append(sequence)

    def _can_admit(self, plan: list[Scheduled]) -> bool:
        """Room for the first waiting request, whole: half of one would only be preempted again."""
        if not self.waiting or self.preempted or len(self.running) >= self.options.max_batch or self._room(plan) <= 0:
            return False
        first = self.waiting[0]
        blocks = -(-min(len(first.tokens) + 1, first.limit) // self.kv.pool.block_size)
        return blocks <= self.kv.pool.available

    def _admit(self, plan: list[Scheduled]) -> None:
        sequence = self.waiting.popleft()
        self.running.append(sequence)
        sequence.cached_len = self.kv.admit(
            sequence.request_id, sequence.tokens, sequence.prompt_len, salt=sequence.salt
        )
        sequence.timeline.admit(sequence.cached_len)
        self._plan_prefill(plan, sequence)
