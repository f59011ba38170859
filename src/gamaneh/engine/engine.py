"""The engine: continuous batching with speculation. `Engine.step` is the whole system on one screen."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from torch import Tensor

from gamaneh.core import (
    AUTO,
    PLAIN,
    BatchReport,
    Draft,
    FinishReason,
    Proposer,
    StepOutput,
    StepReport,
    Verdict,
)
from gamaneh.engine.admission import SupportsText, make_sequence
from gamaneh.engine.drafting import Clock, Drafts
from gamaneh.engine.emission import add_prompt_logprobs, cut_off, emit
from gamaneh.engine.reporting import batch_report, shares
from gamaneh.engine.scheduler import PREFILL, Scheduled, Scheduler
from gamaneh.engine.sequence import SequenceState
from gamaneh.engine.steering import Steering
from gamaneh.errors import GamanehError, InvalidRequest
from gamaneh.kv.manager import KVManager
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.models.batch import Feed
from gamaneh.models.runner import Forward, Runner
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.sampling.edits import MaskSource
from gamaneh.sampling.rows import Trial, judge

Plan = list[Scheduled]


@dataclass(slots=True)
class Round:
    """What happened in one step, request by request."""

    verdicts: dict[str, Verdict] = field(default_factory=dict)
    emitted: dict[str, int] = field(default_factory=dict)
    outputs: list[StepOutput] = field(default_factory=list)


class Engine:
    """Requests in, tokens out, one `step` at a time.

    Args:
        target: runs the target model.
        kv: manages the target's cache.
        tokenizer: turns emitted tokens into text.
        proposers: those that requests may use, by name.
        speculation: how requests speculate that do not say otherwise.
        options: limits.
        clock: seconds by which costs are measured.
    """

    def __init__(
        self,
        target: Runner,
        kv: KVManager,
        tokenizer: SupportsText,
        *,
        proposers: Mapping[str, Proposer] | None = None,
        speculation: SpeculationOptions | None = None,
        options: EngineOptions | None = None,
        clock: Clock = time.perf_counter,
    ) -> None:
        self.target, self.kv, self.tokenizer = target, kv, tokenizer
        self.proposers = dict(proposers or {})
        self.speculation = speculation or SpeculationOptions()
        self.options = options or EngineOptions()
        self.clock = clock
        self.steering = Steering(target, self.proposers, clock)
        self.drafting, self.quarantine, self.cost = self.steering.drafting, self.steering.quarantine, self.steering.cost
        self.scheduler = Scheduler(kv, self.options)
        self.observers: list[Callable[[StepReport], None]] = []
        self.batch_observers: list[Callable[[BatchReport], None]] = []
        self.request_observers: list[Callable[[RequestTimeline], None]] = []
        self._sequences: dict[str, SequenceState] = {}
        self._names = itertools.count()

    @property
    def max_context(self) -> int:
        """Most tokens of one request, by the model, the options and the size of the cache."""
        room = self.kv.pool.num_blocks * self.kv.pool.block_size
        return min(self.target.max_context, self.options.max_context or room, room)

    @property
    def vocab_size(self) -> int:
        """Ids from here on are never emitted or accepted: rows beyond the tokenizer are padding."""
        return min(self.target.vocab_size, self.tokenizer.vocab_size)

    @property
    def invariant(self) -> bool:
        """Whether the target's bits do not depend on what is computed beside a row."""
        return self.target.invariant

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def salts(self) -> dict[str, str]:
        """Salt of each request at hand, by its id."""
        return {request_id: sequence.salt for request_id, sequence in self._sequences.items()}

    def gives_probs(self, speculation: SpeculationOptions) -> bool:
        """Whether drafts under these options come with the probabilities that they were drawn from."""
        names = self.proposers if speculation.proposer == AUTO else [speculation.proposer]
        gives = any(name in self.proposers and self.proposers[name].needs.probs for name in names)
        return gives and speculation.draft_sampling == "request"

    def register(self, proposer: Proposer) -> None:
        """Let requests use one more proposer, by its name."""
        self.proposers[proposer.name] = proposer
        self.steering.register(proposer.name, proposer)

    def add(
        self,
        prompt: Sequence[int],
        params: SamplingParams | None = None,
        *,
        request_id: str | None = None,
        speculation: SpeculationOptions | None = None,
        mask: MaskSource | None = None,
        reference: Sequence[int] = (),
        salt: str = "",
        priority: int = 0,
        arrived: float | None = None,
    ) -> str:
        """Queue a request and return its id.

        Args:
            prompt: token ids, at least one.
            mask: restricts the output, for example a `Grammar`.
            reference: token ids of a text that the output is likely to repeat, for prompt lookup.
            salt: requests with different salts share no cached prefixes.
            priority: larger goes first, and is preempted last.
            arrived: when the request came in, by `time.perf_counter`; None for now.

        Raises:
            InvalidRequest: the prompt or a parameter breaks a rule. Nothing else is disturbed.
        """
        request_id = f"request-{next(self._names)}" if request_id is None else request_id
        if request_id in self._sequences:
            raise InvalidRequest("request_id", "must not be in use", request_id)
        speculation = self.speculation if speculation is None else speculation
        if speculation.proposer not in (PLAIN, AUTO, *self.proposers):
            known = ", ".join([PLAIN, AUTO, *self.proposers])
            raise InvalidRequest("proposer", f"must be one of {known}", speculation.proposer)
        sequence = make_sequence(
            request_id,
            list(prompt),
            params or SamplingParams(),
            speculation,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            max_context=self.max_context,
            draft_has_probs=self.gives_probs(speculation),
            arrived=time.perf_counter() if arrived is None else arrived,
            mask=mask,
            reference=reference,
            salt=salt,
            priority=priority,
        )
        self._sequences[request_id] = sequence
        self.scheduler.add(sequence)
        return request_id

    def abort(self, request_id: str) -> StepOutput | None:
        """Stop a request and free what it holds.

        Returns:
            Its last output, with the text that was held back; None when there is no such request.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None:
            return None
        sequence.finish_reason = FinishReason.ABORT
        self._finish(sequence)
        return cut_off(sequence)

    def step(self) -> list[StepOutput]:
        """One round: every scheduled request gets a prefill chunk, or emits one token or more."""
        started = time.perf_counter()
        plan = self.scheduler.plan(self.steering.decide)
        drafts = self.drafting.propose(plan)
        drafted = self.clock()
        forward, seconds = self._verify(plan, drafts)
        round_ = self._judge(plan, drafts, forward)
        self._commit(plan, round_, forward)
        self._observe(plan, drafts, round_, (seconds, self.clock() - drafted))
        self._deliver(round_)
        self._let_go(plan)
        self._report_batch(plan, drafts, round_, (started, seconds))
        return round_.outputs

    def _verify(self, plan: Plan, drafts: Drafts) -> tuple[Forward, float]:
        feeds = [self._feed(item, drafts.of(item.sequence.request_id)) for item in plan]
        started = self.clock()
        forward = self.target.forward(feeds, taps=self.drafting.taps) if feeds else Forward([], [])
        return forward, self.clock() - started

    def _feed(self, item: Scheduled, draft: Draft) -> Feed:
        sequence = item.sequence
        start, table = sequence.cached_len, self.kv.table(sequence.request_id)
        stop = start + item.count
        logit_rows = 1 + len(draft) if item.samples else 0
        return Feed(
            tokens=[*sequence.tokens[start:stop], *draft.tokens],
            start=start,
            prompt_len=sequence.prompt_len,
            slots=table.slots(0, stop + len(draft)),
            first_slot=table.run(),
            parents=draft.parents,
            logit_rows=item.count if sequence.wants_prompt_logprobs and start < sequence.prompt_len else logit_rows,
        )

    def _judge(self, plan: Plan, drafts: Drafts, forward: Forward) -> Round:
        round_ = Round()
        sampled = [
            (item, logits)
            for item, logits in zip(plan, forward.logits, strict=True)
            if item.samples and item.sequence.remaining > 0
        ]
        trials = [self._trial(item.sequence, drafts, logits) for item, logits in sampled]
        judged = {
            item.sequence.request_id: found
            for (item, _), found in zip(sampled, judge(trials, self.vocab_size), strict=True)
        }
        for item, logits in zip(plan, forward.logits, strict=True):
            request_id = item.sequence.request_id
            try:
                self._conclude(item, drafts.of(request_id), logits, judged.get(request_id), round_)
            except Exception as error:  # whatever one request raises ends that request alone
                item.sequence.finish_reason = FinishReason.ERROR
                message = str(error) if isinstance(error, GamanehError) else f"{type(error).__name__}: {error}"
                round_.outputs.append(replace(cut_off(item.sequence), error=message))
        return round_

    def _trial(self, sequence: SequenceState, drafts: Drafts, logits: Tensor) -> Trial:
        draft = drafts.of(sequence.request_id)
        return Trial(sequence.rule, draft, logits[-(1 + len(draft)) :], sequence.sampler, len(sequence.tokens))

    def _conclude(
        self, item: Scheduled, draft: Draft, logits: Tensor, found: Verdict | Exception | None, round_: Round
    ) -> None:
        """From a verdict to what the request gets; None where no token was due."""
        sequence = item.sequence
        if sequence.wants_prompt_logprobs and sequence.cached_len < sequence.prompt_len:
            add_prompt_logprobs(sequence, sequence.cached_len, logits)
        if not item.samples:
            return
        if isinstance(found, Exception):
            raise found
        prompt_logprobs = tuple(sequence.prompt_logprobs) if sequence.wants_prompt_logprobs else None
        if found is None:
            sequence.finish_reason = FinishReason.LENGTH
            output = StepOutput(sequence.request_id, finish_reason=FinishReason.LENGTH)
        else:
            emission = emit(sequence, draft, found, logits[-(1 + len(draft)) :])
            round_.verdicts[sequence.request_id], round_.emitted[sequence.request_id] = found, emission.emitted
            output = emission.output
        round_.outputs.append(replace(output, prompt_logprobs=prompt_logprobs))

    def _commit(self, plan: Plan, round_: Round, forward: Forward) -> None:
        """Accepted slots stay, the rest and the unused reservation are freed."""
        for at, item in enumerate(plan):
            sequence = item.sequence
            verdict = round_.verdicts.get(sequence.request_id)
            path = verdict.path if verdict and not sequence.finish_reason else ()
            if forward.hidden:
                kept = [*range(item.count), *(item.count + node for node in path)]
                self.drafting.keep_hidden(sequence, forward.hidden[at][kept])
            self.kv.commit(sequence.request_id, sequence.tokens, item.count, path)
            sequence.cached_len = self.kv.length(sequence.request_id)

    def _observe(self, plan: Plan, drafts: Drafts, round_: Round, times: tuple[float, float]) -> None:
        """Proposers, cost model and everybody who reads step reports learn what happened.

        Args:
            times: seconds of the target's forward, and of everything after the drafts.
        """
        seconds, cost = times
        decoding = [
            item for item in plan if item.sequence.request_id in round_.verdicts and item.decision is not PREFILL
        ]
        reports = [self._report(item, drafts, round_, seconds, len(decoding)) for item in decoding]
        self.drafting.observe(drafts, round_.verdicts)
        self.steering.observe(drafts, reports, cost if len(decoding) == len(plan) else None)
        for report in reports:
            for observer in self.observers:
                observer(report)

    def _report(self, item: Scheduled, drafts: Drafts, round_: Round, seconds: float, batch_size: int) -> StepReport:
        request_id = item.sequence.request_id
        draft, verdict = drafts.of(request_id), round_.verdicts[request_id]
        accepted = min(verdict.accepted, round_.emitted[request_id])
        return StepReport(
            request_id=request_id,
            proposer=item.decision.proposer,
            rule=item.sequence.rule.name,
            drafted=len(draft),
            depth=draft.depth,
            accepted=accepted,
            emitted=round_.emitted[request_id],
            batch_size=batch_size,
            context_len=item.sequence.cached_len,
            draft_seconds=drafts.seconds.get(item.decision.proposer, 0.0),
            verify_seconds=seconds,
            decision=item.decision.depth,
            reason=item.decision.reason,
            reason_code=item.decision.code,
            shares=shares(draft, verdict.path[:accepted]),
            details=item.decision.details,
            beyond=verdict.accepted - accepted,
        )

    def _deliver(self, round_: Round) -> None:
        """Everything that a round emits is handed out at once, when it ends."""
        now = time.perf_counter()
        for output in round_.outputs:
            self._sequences[output.request_id].timeline.deliver(len(output.emitted), now)

    def _let_go(self, plan: Plan) -> None:
        """Free what finished requests hold, and what proposers keep for preempted ones."""
        for item in plan:
            if item.sequence.finish_reason is not None:
                self._finish(item.sequence)
        if self.scheduler.preempted:
            self.drafting.drop([sequence.request_id for sequence in self.scheduler.preempted])

    def _report_batch(self, plan: Plan, drafts: Drafts, round_: Round, times: tuple[float, float]) -> None:
        if not plan or not self.batch_observers:
            return
        started, verify_seconds = times
        report = batch_report(
            plan,
            drafts,
            round_.outputs,
            self.cost,
            preempted=len(self.scheduler.preempted),
            verify_seconds=verify_seconds,
            step_seconds=time.perf_counter() - started,
        )
        for observer in self.batch_observers:
            observer(report)

    def _finish(self, sequence: SequenceState) -> None:
        self.scheduler.remove(sequence)
        self.steering.finished(sequence)
        del self._sequences[sequence.request_id]
        assert sequence.finish_reason is not None, f"{sequence.request_id} is let go but has not ended"
        sequence.timeline.finish(sequence.finish_reason)
        for observer in self.request_observers:
            observer(sequence.timeline)

    def check_integrity(self) -> None:
        """Raise AssertionError when the cache's books do not agree with the requests at hand."""
        self.kv.check_integrity()
        running = {sequence.request_id for sequence in self.scheduler.running}
        assert len(self.kv) == len(running), f"{len(self.kv)} sequences in the cache, {len(running)} running"
