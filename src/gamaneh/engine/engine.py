"""The step loop: schedule, propose, verify, judge, commit, learn, deliver."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import torch

from gamaneh.control.controller import Controller
from gamaneh.control.cost import CostModel
from gamaneh.control.fallback import Quarantine
from gamaneh.control.router import Eligible, Router
from gamaneh.control.snapshot import SpeculationSnapshot, take_snapshot
from gamaneh.core import (
    AUTO,
    PLAIN,
    Backend,
    BatchReport,
    Clock,
    FinishReason,
    Proposer,
    Request,
    StepOutput,
    StepReport,
    Stopwatch,
)
from gamaneh.engine.admission import make_sequence
from gamaneh.engine.detokenizer import SupportsText
from gamaneh.engine.drafting import Drafters
from gamaneh.engine.emission import add_prompt_logprobs, cut_off, emit
from gamaneh.engine.reporting import batch_report
from gamaneh.engine.scheduler import PREFILL, Scheduler
from gamaneh.engine.sequence import SequenceState
from gamaneh.engine.turn import Turn
from gamaneh.errors import GamanehError, InvalidRequest
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.options import Drafting, EngineOptions, SpeculationOptions, asked_drafting
from gamaneh.sampling.rows import judge


class Engine:
    """Requests in, tokens out, one `step` at a time. `engine.assembly` builds the parts and puts them together.

    Args:
        tokenizer: turns emitted tokens into text.
        scheduler: who runs; it holds the backend, where the target runs.
        drafting: the proposers.
        router, controller: with what each request drafts, and how far.
        speculation: how requests speculate that do not say otherwise.
        options: limits.
        clock: seconds; every time that the engine tells or measures is its.
    """

    def __init__(
        self,
        tokenizer: SupportsText,
        *,
        scheduler: Scheduler,
        drafting: Drafters,
        router: Router,
        controller: Controller,
        speculation: SpeculationOptions,
        options: EngineOptions,
        clock: Clock,
    ) -> None:
        self.tokenizer, self.scheduler, self.drafting = tokenizer, scheduler, drafting
        self.router, self.controller = router, controller
        self.speculation, self.options, self.clock = speculation, options, clock
        self.observers: list[Callable[[StepReport], None]] = []
        self.batch_observers: list[Callable[[BatchReport], None]] = []
        self.request_observers: list[Callable[[RequestTimeline], None]] = []
        self._sequences: dict[str, SequenceState] = {}
        self._names = itertools.count()

    @property
    def backend(self) -> Backend:
        """Where the target runs."""
        return self.scheduler.backend

    @property
    def proposers(self) -> Mapping[str, Proposer]:
        """Those that requests may use, by name."""
        return self.drafting.proposers

    @property
    def quarantine(self) -> Quarantine:
        """Proposers that are left out for a while."""
        return self.controller.quarantine

    @property
    def cost(self) -> CostModel:
        """What steps and drafts cost."""
        return self.controller.cost

    @property
    def max_context(self) -> int:
        """Most tokens of one request, by the model, the options and the size of the cache."""
        room = self.backend.room().total
        return min(self.backend.caps.max_context, self.options.max_context or room, room)

    @property
    def vocab_size(self) -> int:
        """Ids from here on are never emitted or accepted: rows beyond the tokenizer are padding."""
        return min(self.backend.caps.vocab_size, self.tokenizer.vocab_size)

    @property
    def invariant(self) -> bool:
        """Whether the target's bits do not depend on what is computed beside a row."""
        return self.backend.caps.invariant

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    def salts(self) -> dict[str, str]:
        """Salt of each request at hand, by its id."""
        return {request_id: sequence.request.salt for request_id, sequence in self._sequences.items()}

    def gives_probs(self, speculation: Drafting) -> bool:
        """Whether drafts under these options come with the probabilities that they were drawn from."""
        names = self.proposers if speculation.proposer == AUTO else [speculation.proposer]
        gives = any(name in self.proposers and self.proposers[name].needs.probs for name in names)
        return gives and speculation.draft_sampling == "request"

    def register(self, proposer: Proposer) -> None:
        """Let requests use one more proposer, by its name."""
        self.drafting.register(proposer)
        self.router.register(proposer.name, proposer.needs)
        self.controller.survival.expect(proposer.name, proposer.needs.expected_survival)

    def add(self, request: Request) -> str:
        """Queue a request and return its id.

        Raises:
            InvalidRequest: the prompt or a parameter breaks a rule. Nothing else is disturbed.
        """
        request = replace(request, id=request.id or f"request-{next(self._names)}")
        if request.id in self._sequences:
            raise InvalidRequest("request_id", "must not be in use", request.id)
        drafting = asked_drafting(request.drafting, self.speculation)
        if drafting.proposer not in (PLAIN, AUTO, *self.proposers):
            known = ", ".join([PLAIN, AUTO, *self.proposers])
            raise InvalidRequest("proposer", f"must be one of {known}", drafting.proposer)
        sequence = make_sequence(
            request,
            drafting,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            max_context=self.max_context,
            draft_has_probs=self.gives_probs(drafting),
            now=self.clock(),
        )
        self._sequences[request.id] = sequence
        self.scheduler.add(sequence)
        return request.id

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
        """Do one round: every scheduled request gets a prefill chunk, or emits one token or more."""
        with _torch_threads(self.backend.caps.own_threads):
            watch = Stopwatch(self.clock)
            requests = self._eligible()  # who may draft, and with what
            glimpses = self.drafting.glimpse(self.controller.wanted(requests), self._sequences, watch)  # instant drafts
            decisions = self.controller.decide(requests, glimpses)  # how long a draft, with what, and why
            turns = self.scheduler.schedule(decisions, self.clock())  # who runs, and how many rows
            self.drafting.propose(turns, glimpses, watch)  # turn.draft
            self._verify(turns, watch)  # turn.scores, turn.hidden: one forward
            self._judge(turns)  # turn.verdict, turn.output: the rule over the sampled rows
            self._commit(turns)  # accepted rows stay, the rest is freed
            self._learn(turns, watch)  # survival, costs, reports
            return self._deliver(turns, watch)  # outputs out, finished requests leave

    def snapshot(self) -> SpeculationSnapshot:
        """What speculation is doing, in words and numbers; to be taken between two steps."""
        return take_snapshot(self.controller, self.proposers)

    def _eligible(self) -> list[Eligible]:
        """What each decoding request may draft, and with what."""
        decoding = self.scheduler.decoding
        if decoding:
            self.quarantine.tick()
        return [
            self.router.eligible(
                sequence.request_id,
                sequence.drafting,
                sequence.features,
                emitted=sequence.num_emitted,
                context=sequence.cached_len,
                lag=partial(self.drafting.lag, sequence.request_id, len(sequence.tokens)),
                unfit=self.drafting.unfit(sequence.request_id),
            )
            for sequence in decoding
        ]

    def _verify(self, turns: Sequence[Turn], watch: Stopwatch) -> None:
        self.backend.verify(turns, taps=self.drafting.taps(turns))
        watch.verified = self.clock()

    def _judge(self, turns: Sequence[Turn]) -> None:
        """Put the rules over all sampled rows in one call, then see what each request gets."""
        for turn in turns:
            turn.forget_broken_rows()
        due = [turn for turn in turns if turn.samples and turn.error is None and turn.sequence.remaining > 0]
        verdicts = judge([turn.trial() for turn in due], self.vocab_size)
        for turn, found in zip(due, verdicts, strict=True):
            if isinstance(found, Exception):
                turn.error = found
            else:
                turn.verdict = found
        for turn in turns:
            try:
                self._conclude(turn)
            except Exception as error:  # whatever one request raises ends that request alone
                message = str(error) if isinstance(error, GamanehError) else f"{type(error).__name__}: {error}"
                turn.error, turn.verdict = error, None
                turn.sequence.finish_reason = FinishReason.ERROR
                turn.output = replace(cut_off(turn.sequence), error=message)

    def _conclude(self, turn: Turn) -> None:
        """From a verdict to what the request gets."""
        sequence, scores = turn.sequence, turn.scores
        if turn.error is not None:
            raise turn.error
        assert scores is not None, f"{turn.request_id} has no scores"
        if sequence.wants_prompt_logprobs and sequence.cached_len < sequence.prompt_len:
            add_prompt_logprobs(sequence, sequence.cached_len, scores)
        if not turn.samples:
            return
        prompt_logprobs = tuple(sequence.prompt_logprobs) if sequence.wants_prompt_logprobs else None
        if turn.verdict is None:
            sequence.finish_reason = FinishReason.LENGTH
            output = StepOutput(turn.request_id, finish_reason=FinishReason.LENGTH)
        else:
            output, turn.emitted = emit(sequence, turn.draft, turn.verdict, turn.sampled_scores())
        turn.output = replace(output, prompt_logprobs=prompt_logprobs)

    def _commit(self, turns: Sequence[Turn]) -> None:
        """Keep accepted rows; what a failed turn wrote goes with its request, and nobody finds it."""
        sound = [turn for turn in turns if turn.error is None]
        for turn in sound:
            turn.kept = turn.verdict.path if turn.verdict and not turn.sequence.finish_reason else ()
            self.drafting.keep_hidden(turn, [*range(turn.count), *(turn.count + node for node in turn.kept)])
        self.backend.commit(sound)
        for turn in sound:
            turn.sequence.cached_len = self.backend.length(turn.request_id)

    def _learn(self, turns: Sequence[Turn], watch: Stopwatch) -> None:
        """Tell proposers, controller and everybody who reads step reports what happened."""
        decoding = [turn for turn in turns if turn.verdict is not None and turn.decision is not PREFILL]
        reports = [turn.report(len(decoding), watch) for turn in decoding]
        seconds = self.clock() - watch.drafted if len(decoding) == len(turns) else None
        self.controller.learn(reports, [turn.draft.grade for turn in decoding], watch, seconds)
        for report in reports:
            for observer in self.observers:
                observer(report)

    def _deliver(self, turns: Sequence[Turn], watch: Stopwatch) -> list[StepOutput]:
        """Hand out at once all that the round brought, and let finished and preempted requests go."""
        now = self.clock()
        for turn in turns:
            if turn.output is not None:
                turn.sequence.timeline.deliver(len(turn.output.emitted), now)
            if turn.sequence.finish_reason is not None:
                self._finish(turn.sequence)
        for sequence in self.scheduler.preempted:
            self.drafting.forget(sequence.request_id)
        self._report_step(turns, watch)
        return [turn.output for turn in turns if turn.output is not None]

    def _report_step(self, turns: Sequence[Turn], watch: Stopwatch) -> None:
        if not turns or not self.batch_observers:
            return
        report = batch_report(turns, self.cost, watch, preempted=len(self.scheduler.preempted))
        for observer in self.batch_observers:
            observer(report)

    def _finish(self, sequence: SequenceState) -> None:
        request_id = sequence.request_id
        assert sequence.finish_reason is not None, f"{request_id} is let go but has not ended"
        self.scheduler.remove(sequence)
        self.router.finished(sequence.num_emitted)
        self.controller.drop(request_id)
        self.controller.keep(self.clock())
        complete = sequence.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)
        self.drafting.let_go(sequence, complete=complete)
        del self._sequences[request_id]
        sequence.timeline.finish(sequence.finish_reason, self.clock())
        for observer in self.request_observers:
            observer(sequence.timeline)

    def check_integrity(self) -> None:
        """Raise AssertionError when the backend's books do not agree with the requests at hand."""
        self.backend.check_integrity()
        for sequence in self.scheduler.running:
            length = self.backend.length(sequence.request_id)
            assert length == sequence.cached_len, f"{sequence.request_id}: {sequence.cached_len} tokens, not {length}"


@contextmanager
def _torch_threads(alone: bool) -> Iterator[None]:
    """With `alone`, let torch compute on this thread only.

    Threads of torch wait for work by turning, and so take the cores from the threads of the backend; and each call of
    torch waits in turn for a thread that gets no core.
    """
    usual = torch.get_num_threads()
    if alone:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if alone:
            torch.set_num_threads(usual)
