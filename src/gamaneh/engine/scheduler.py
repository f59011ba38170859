"""Who runs in the next step: one token budget for prefill chunks and for decode rows with drafts."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence

from gamaneh.core import PLAIN, Backend, Decision, FinishReason, ReasonCode
from gamaneh.engine.sequence import SequenceState
from gamaneh.engine.turn import Turn
from gamaneh.options import EngineOptions

PREFILL = Decision(PLAIN, 0, 0, "the prompt is still being read", ReasonCode.PREFILL)
NO_ROOM = Decision(PLAIN, 0, 0, "no room in the KV cache or the step for a draft", ReasonCode.NO_ROOM)


class Scheduler:
    """Holds the waiting and the running requests and plans each step.

    Attributes:
        preempted: requests that gave their blocks back in the last plan.
    """

    def __init__(self, backend: Backend, options: EngineOptions) -> None:
        self.backend, self.options = backend, options
        self.waiting: deque[SequenceState] = deque()
        self.running: list[SequenceState] = []
        self.preempted: list[SequenceState] = []

    def __iter__(self) -> Iterator[SequenceState]:
        yield from self.running
        yield from self.waiting

    @property
    def decoding(self) -> list[SequenceState]:
        """Running requests that have read their prompt, oldest first."""
        return [sequence for sequence in self.running if sequence.decoding]

    def add(self, sequence: SequenceState) -> None:
        """Queue a request behind those of its priority."""
        behind = (at for at, other in enumerate(self.waiting) if other.request.priority < sequence.request.priority)
        self.waiting.insert(next(behind, len(self.waiting)), sequence)

    def remove(self, sequence: SequenceState) -> None:
        """Forget a request and free its blocks; one that failed leaves no prefix behind."""
        if sequence in self.running:
            self.running.remove(sequence)
            failed = sequence.finish_reason is FinishReason.ERROR
            self.backend.release([sequence.request_id], publish=not failed)
        else:
            self.waiting.remove(sequence)

    def schedule(self, decisions: Sequence[Decision], now: float) -> list[Turn]:
        """Choose who runs in this step and how many rows each feeds, and reserve room for them.

        Decoding requests come first, oldest first, so that a long prompt never holds them up; then
        prompts by priority, in the order of arrival. Short of blocks, drafts go first, then the
        youngest request of the lowest priority.

        Args:
            decisions: one for each request in `decoding`.
            now: seconds, by which admission and preemption are told.
        """
        self.preempted = []
        plan: list[Turn] = []
        for sequence, decision in zip(self.decoding, decisions, strict=True):
            self._plan_decode(plan, sequence, decision)
        for sequence in [s for s in self.running if not s.decoding]:
            self._plan_prefill(plan, sequence)
        while self._can_admit(plan):
            self._admit(plan, now)
        for sequence in self.preempted:
            sequence.timeline.preempt(now)
        return plan

    def _plan_decode(self, plan: list[Turn], sequence: SequenceState, decision: Decision) -> None:
        room = self._room(plan) - 1
        if room < 0 or sequence not in self.running:
            return
        if decision.nodes > room or not self.backend.reserve(sequence.request_id, 1 + decision.nodes):
            if not self._reserve(plan, sequence, 1):
                return
            decision = decision if decision.nodes == 0 else NO_ROOM
        plan.append(_turn(sequence, 1, decision))

    def _plan_prefill(self, plan: list[Turn], sequence: SequenceState) -> None:
        count = min(sequence.num_pending, self._room(plan))
        if count > 0 and sequence in self.running and self._reserve(plan, sequence, count):
            plan.append(_turn(sequence, count, PREFILL))

    def _room(self, plan: list[Turn]) -> int:
        return self.options.step_tokens - sum(turn.count + turn.decision.nodes for turn in plan)

    def _reserve(self, plan: list[Turn], sequence: SequenceState, count: int) -> bool:
        """Reserve blocks, preempting the least and youngest requests that are not in the plan yet."""
        planned = {turn.request_id for turn in plan}
        while not self.backend.reserve(sequence.request_id, count):
            unplanned = [s for s in reversed(self.running) if s.request_id not in planned]
            victim = min(unplanned, key=lambda s: s.request.priority)
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _preempt(self, sequence: SequenceState) -> None:
        """Give all blocks back; the request is read again from its tokens when there is room."""
        self.running.remove(sequence)
        self.backend.release([sequence.request_id])
        sequence.cached_len = 0
        if sequence.hidden is not None:
            sequence.hidden.clear()
        sequence.prompt_logprobs.clear()
        before = (at for at, other in enumerate(self.waiting) if other.request.priority <= sequence.request.priority)
        self.waiting.insert(next(before, len(self.waiting)), sequence)
        self.preempted.append(sequence)

    def _can_admit(self, plan: list[Turn]) -> bool:
        """Room for the first waiting request, whole: half of one would only be preempted again."""
        if not self.waiting or self.preempted or len(self.running) >= self.options.max_batch or self._room(plan) <= 0:
            return False
        first = self.waiting[0]
        return self.backend.room().fits(min(len(first.tokens) + 1, first.limit))

    def _admit(self, plan: list[Turn], now: float) -> None:
        sequence = self.waiting.popleft()
        self.running.append(sequence)
        sequence.cached_len = self.backend.admit(
            sequence.request_id, sequence.tokens, prompt_len=sequence.prompt_len, salt=sequence.salt
        )
        sequence.timeline.admit(sequence.cached_len, now)
        self._plan_prefill(plan, sequence)


def _turn(sequence: SequenceState, count: int, decision: Decision) -> Turn:
    samples = count == sequence.num_pending
    wants_all = sequence.wants_prompt_logprobs and sequence.cached_len < sequence.prompt_len
    return Turn(
        request_id=sequence.request_id,
        tokens=sequence.tokens,
        count=count,
        prompt_len=sequence.prompt_len,
        logit_rows=count if wants_all else int(samples),
        sequence=sequence,
        decision=decision,
        samples=samples,
    )
