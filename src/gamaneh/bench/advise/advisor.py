"""From a question to advice: measure, predict, rank, validate the best, check, judge."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from statistics import fmean, median
from typing import Any

import numpy as np

from gamaneh.bench.advise.advice import FORMAT, VERSION, Advice, PlainFigures, Ranked, Setting, cells_of
from gamaneh.bench.advise.advise_checks import check_caches, check_fallback
from gamaneh.bench.advise.advise_measure import Effort, Measured, Measurements, Say
from gamaneh.bench.advise.candidate import NO_PARTS, CandidateParts, CandidateWorkshop, Unusable
from gamaneh.bench.advise.checklist import Evidence, Phrase, make_checklist, not_measured
from gamaneh.bench.advise.memory_cost import Footprint, footprint
from gamaneh.bench.advise.predict import SpeedPrediction
from gamaneh.bench.advise.recording import PlainRecording
from gamaneh.bench.advise.timing import RecordedSteps, fixed
from gamaneh.bench.advise.trace import tally
from gamaneh.bench.advise.validate import FIXED_WAY, PLAIN_WAY, SERVED_WAY, Validation, validate
from gamaneh.bench.advise.verdict import judge, unmeasured
from gamaneh.bench.advise.workload import Workload
from gamaneh.bench.machine import describe_machine
from gamaneh.bench.time_limit import INTERRUPTED, OUT_OF_TIME, TimeLimit
from gamaneh.engine.llm import LLM
from gamaneh.options import SamplingParams, SpeculationOptions

CONTEXT_PERCENTILE = 95
"""Of the requests' lengths: what the memory of a full batch is reckoned with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdviceQuestion:
    """What advice is asked about.

    Args:
        params: of every request; they should be greedy or carry a seed, so that outputs can be compared.
        batch: requests at once in the service; `stated` by the user or assumed.
        batches: numbers of requests at once to predict for.
        parts: draft models and heads to choose from, beside proposers that need nothing.
        only: names of the proposers to choose from; empty for all.
        memory_limit: bytes that weights and caches may take together.
        serve: command that serves the target, as far as its own options go.
    """

    workload: Workload
    params: SamplingParams
    batch: int
    stated: bool
    batches: tuple[int, ...]
    parts: tuple[CandidateParts, ...]
    only: tuple[str, ...]
    memory_limit: int
    serve: tuple[str, ...]
    effort: Effort


Keep = Callable[[PlainRecording], None]
"""Called with the plain answers."""


def advise(
    workshop: CandidateWorkshop,
    question: AdviceQuestion,
    say: Say = lambda what: None,
    keep: Keep = lambda plain: None,
    limit: TimeLimit | None = None,
) -> Advice:
    """Measure and conclude.

    Args:
        say: told what goes on.
        keep: given the plain answers as soon as they are there.
        limit: of the whole run; None sets none. Fewer requests are answered where it would not suffice for all.

    Raises:
        KeyboardInterrupt: before any candidate was measured; later it ends the run with what there is.
        GamanehError: a request cannot be answered, or an option is wrong. Candidates that fail do not raise.
    """
    return _Advisor(workshop, question, say, keep, limit or TimeLimit()).advice()


class _Advisor:
    def __init__(
        self, workshop: CandidateWorkshop, question: AdviceQuestion, say: Say, keep: Keep, limit: TimeLimit
    ) -> None:
        self.workshop, self.question, self.say, self.keep, self.limit = workshop, question, say, keep, limit
        self.batches = tuple(sorted({*question.batches, question.batch}))

    def advice(self) -> Advice:
        question = self.question
        candidates = list(self.workshop.candidates(question.parts, question.only))
        measurements = Measurements(
            self.workshop, question.workload, question.params, self.batches, question.effort, self.say, self.limit
        )
        steps, plain = measurements.plain(candidates)
        self.keep(plain)
        stopped = None if len(plain.answers) == len(question.workload.requests) else OUT_OF_TIME
        requests = tuple(one.request for one in plain.answers)
        self.question = replace(question, workload=replace(question.workload, requests=requests))
        found: list[Measured | Unusable] = []
        try:
            for one in measurements.proposers(candidates, steps, plain):
                found.append(one)  # noqa: PERF402 - what is there is kept when the next one is interrupted
        except KeyboardInterrupt:
            if not any(isinstance(one, Measured) for one in found):
                raise
            stopped = INTERRUPTED
        self.say("predictions")
        context = int(np.percentile(plain.context_lengths, CONTEXT_PERCENTILE))
        pairs = [(one, self._ranked(one, context)) for one in found if isinstance(one, Measured)]
        pairs.sort(key=lambda pair: pair[1].prediction.speedup.value, reverse=True)
        unusable = tuple(one for one in found if isinstance(one, Unusable))
        empty = replace(
            self._advice(steps, plain, tuple(ranked for _, ranked in pairs), unusable),
            stopped=stopped or (OUT_OF_TIME if any(one.requests < len(requests) for _, one in pairs) else None),
        )
        if not pairs:
            return empty
        if stopped != INTERRUPTED:
            with contextlib.suppress(KeyboardInterrupt):
                return self._concluded(empty, pairs[0], plain, context)
        return replace(empty, verdict=unmeasured([Phrase("interrupted", {})]), stopped=INTERRUPTED)

    def _ranked(self, one: Measured, context: int) -> Ranked:
        predictor, candidate, batch = one.predictor, one.candidate, self.question.batch
        best = predictor.predict(batch)
        costs = predictor.costs
        return Ranked(
            title=candidate.title,
            proposer=candidate.proposer,
            draft_model=candidate.parts.draft_model,
            heads=candidate.parts.heads,
            tokenizer=candidate.tokenizer,
            weight_bytes=candidate.weight_bytes,
            token_bytes=candidate.token_bytes,
            largest_batch=self._footprint(one, context).largest_batch,
            draft_token_seconds=one.draft_step_ratio * costs.step.seconds(1, 0),
            draft_step_ratio=one.draft_step_ratio,
            survival=tally([round_ for trace in predictor.traces for round_ in trace.rounds]).survival,
            acceptance_rate_macro=fmean(predictor.tally(best.k, [trace]).acceptance_rate for trace in predictor.traces),
            prediction=best,
            by_batch=tuple(predictor.predict(at) for at in self.batches),
            by_k={at: {k: predictor.speedup(at, k) for k in range(1, predictor.largest + 1)} for at in self.batches},
            by_category=_by_group(one, best.k, "category"),
            by_language=_by_group(one, best.k, "language"),
            differing=one.recording.differing,
            requests=len(predictor.traces),
            rounds=sum(len(trace.rounds) for trace in predictor.traces),
        )

    def _footprint(self, one: Measured, context: int) -> Footprint:
        return footprint(self.workshop.target, one.candidate, context, self.question.memory_limit)

    def _advice(
        self, steps: RecordedSteps, plain: PlainRecording, ranked: tuple[Ranked, ...], unusable: tuple[Unusable, ...]
    ) -> Advice:
        """Without a conclusion."""
        failures = [Phrase("unusable", {"title": one.title, "reason": one.reason}) for one in unusable]
        return Advice(
            format=FORMAT,
            version=VERSION,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            package=version("gamaneh"),
            machine=describe_machine(),
            setting=self._setting(),
            plain=PlainFigures(
                step_seconds=steps.whole.seconds(1, 0),
                overhead_seconds=steps.overhead,
                decode_share=plain.decode_share,
                median_tokens=median(plain.lengths),
                median_prompt_tokens=median(len(one.request.prompt) for one in plain.answers),
            ),
            steps=cells_of(steps.whole),
            candidates=ranked,
            unusable=unusable,
            memory=None,
            validation=None,
            checklist=not_measured(),
            verdict=unmeasured(failures or [Phrase("nothing", {})]),
        )

    def _setting(self) -> Setting:
        question, target = self.question, self.workshop.target
        requests, params = question.workload.requests, question.params
        return Setting(
            model=target.name,
            dtype=str(target.dtype).removeprefix("torch."),
            device=str(target.device),
            requests=len(requests),
            categories=tuple(dict.fromkeys(request.category for request in requests)),
            languages=question.workload.languages,
            own=question.workload.own,
            recorded=question.workload.recorded,
            sampling={name: getattr(params, name) for name in ("temperature", "top_p", "top_k", "min_p", "seed")},
            batch=question.batch,
            batch_stated=question.stated,
        )

    def _concluded(self, advice: Advice, pick: tuple[Measured, Ranked], plain: PlainRecording, context: int) -> Advice:
        measured, ranked = pick
        self.say(f"validation of {ranked.title} at k = {ranked.prediction.k}, alternated with plain decoding")
        ways = self._ways(measured, ranked.prediction)
        outcome = self._validation(ways, ranked.prediction)
        evidence = Evidence(
            workload=self.question.workload,
            params=self.question.params,
            plain=plain,
            pick=measured,
            prediction=ranked.prediction,
            by_language={name: one.speedup.value for name, one in ranked.by_language.items()},
            validation=outcome,
            memory=self._footprint(measured, context),
            caches=check_caches(ways.values()),
            fallback=check_fallback(ways[PLAIN_WAY], plain.answers[0], self.question.params),
            batch=self.question.batch,
            stated=self.question.stated,
            invariant=ways[PLAIN_WAY].engine.invariant,
        )
        return replace(
            advice,
            memory=evidence.memory,
            validation=outcome,
            stopped=outcome.stopped or advice.stopped,
            checklist=make_checklist(evidence),
            verdict=judge(evidence, ranked.by_batch, self.question.serve),
        )

    def _ways(self, measured: Measured, best: SpeedPrediction) -> dict[str, LLM]:
        """Engines of the pick with its fixed draft length, and as `gamaneh serve` would have it; and a plain one."""
        gc.collect()  # engines of the measurements may lie in reference cycles
        candidate = measured.candidate
        options = replace(self.workshop.options, max_batch=self.question.batch)
        return {
            PLAIN_WAY: self.workshop.build(NO_PARTS, SpeculationOptions(), options),
            FIXED_WAY: self.workshop.build(candidate.parts, fixed(candidate.proposer, best.k), options),
            SERVED_WAY: self.workshop.build(candidate.parts, candidate.served, options, leaves_out_slow=True),
        }

    def _validation(self, ways: Mapping[str, LLM], best: SpeedPrediction) -> Validation:
        requests = self.question.workload.requests
        return validate(ways, requests, self.question.params, self.question.batch, best.speedup.value, self.limit)


def _by_group(one: Measured, k: int, field: str) -> dict[str, SpeedPrediction]:
    """One request at a time, for the requests of each category or language."""
    traces = one.predictor.traces
    names = dict.fromkeys(getattr(trace, field) for trace in traces)
    chosen: dict[str, Sequence[Any]] = {
        name: [trace for trace in traces if getattr(trace, field) == name] for name in names
    }
    return {name: one.predictor.predict(1, k, group) for name, group in chosen.items()}
