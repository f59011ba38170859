"""Predicted speed-up of a proposer: by requests at once, draft length, category and language, with intervals.

Formulas
    plain seconds         sum over units of (prefills + one round for each token)
    speculative seconds   sum over units of (prefills + prompts read by the proposer + rounds with drafts)
    speed-up              plain seconds / speculative seconds: whole latency, prompts included
    interval              95 % of the speed-ups with prompts and timings drawn again with replacement (Efron 1979)
    break-even            tokens per round at which rounds earn what they cost:
                          mean seconds of a round / seconds of a plain round
A unit is one request, or with B at once the requests that keep B places filled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from gamaneh.bench.advise.costs import Costs
from gamaneh.bench.advise.simulate import Alone, SimulatedJob, make_units, simulate
from gamaneh.bench.advise.trace import Tally, Trace, Walker, tally
from gamaneh.bench.result import Interval

RESAMPLES = 200
FEW_RESAMPLES = 40
"""Where many requests run at once and a simulation takes its time."""

AS_GOOD = 0.99
"""Share of the best expected speed-up from which on a draft length counts as good as the best."""

_SEED = 20250101


@dataclass(frozen=True, slots=True)
class SpeedPrediction:
    """What one proposer brings.

    Args:
        batch: requests at once.
        k: longest draft.
        break_even: tokens per round that it takes to lose nothing.
    """

    batch: int
    k: int
    speedup: Interval
    acceptance_rate: float
    tokens_per_round: float
    break_even: float


class Predictor:
    """Predicts from the traces of one proposer and its costs.

    Args:
        traces: at least one, recorded at the largest draft length.
    """

    def __init__(self, traces: Sequence[Trace], costs: Costs) -> None:
        self.traces, self.costs = tuple(traces), costs
        self.largest = max(trace.largest for trace in traces)
        self._walker = Walker(traces)
        self._speedups: dict[tuple[int, int], float] = {}

    def speedup(self, batch: int, k: int, traces: Sequence[Trace] | None = None) -> float:
        """Expected speed-up on these traces; None takes all."""
        if traces is not None and traces != self.traces:
            return self._speedup(traces, batch, k)
        if (batch, k) not in self._speedups:
            self._speedups[batch, k] = self._speedup(self.traces, batch, k)
        return self._speedups[batch, k]

    def best_k(self, batch: int, traces: Sequence[Trace] | None = None) -> int:
        """The shortest draft length that is as good as the best: longer ones cost more rows where there is load."""
        speedups = {k: self.speedup(batch, k, traces) for k in range(1, self.largest + 1)}
        enough = AS_GOOD * max(speedups.values())
        return next(k for k, speedup in speedups.items() if speedup >= enough)

    def predict(self, batch: int, k: int | None = None, traces: Sequence[Trace] | None = None) -> SpeedPrediction:
        """The prediction with this draft length, None for the best, on these traces, None for all."""
        chosen = self.traces if traces is None else tuple(traces)
        k = self.best_k(batch, chosen) if k is None else k
        counts = self.tally(k, chosen)
        return SpeedPrediction(
            batch=batch,
            k=k,
            speedup=self._interval(chosen, batch, k),
            acceptance_rate=counts.acceptance_rate,
            tokens_per_round=counts.tokens_per_round,
            break_even=self.break_even(batch, k, chosen),
        )

    def tally(self, k: int, traces: Iterable[Trace] | None = None) -> Tally:
        """Counts over the rounds with this draft length."""
        chosen = self.traces if traces is None else traces
        return tally([round_ for trace in chosen for round_ in self._walker.walk(trace, k)])

    def break_even(self, batch: int, k: int, traces: Iterable[Trace] | None = None) -> float:
        """Tokens per round at which the rounds take as long as plain decoding of their tokens."""
        chosen = self.traces if traces is None else traces
        rounds = [round_ for trace in chosen for round_ in self._walker.walk(trace, k)]
        seconds = [self.costs.round_seconds(batch, batch * one.rows, one.depth) for one in rounds]
        return fmean(seconds) / self.costs.plain.round_seconds(batch, 0, 0) if seconds else 1.0

    def _interval(self, traces: Sequence[Trace], batch: int, k: int) -> Interval:
        draws = np.random.default_rng(_SEED)
        value = self.speedup(batch, k, traces)
        again = self._alone_again(traces, k, draws) if batch == 1 else self._again(traces, batch, k, draws)
        low, high = np.quantile(list(again), [0.025, 0.975])
        return Interval(value, min(float(low), value), max(float(high), value))

    def _again(self, traces: Sequence[Trace], batch: int, k: int, draws: np.random.Generator) -> Iterator[float]:
        """Speed-ups with traces and timings drawn again."""
        for _ in range(FEW_RESAMPLES):
            chosen = [traces[at] for at in draws.integers(len(traces), size=len(traces))]
            yield self._together(chosen, batch, k, self.costs.resampled(draws))

    def _alone_again(self, traces: Sequence[Trace], k: int, draws: np.random.Generator) -> Iterator[float]:
        plain, drafted = self._alone(traces, k)
        for _ in range(RESAMPLES):
            costs = self.costs.resampled(draws)
            chosen = draws.integers(len(traces), size=len(traces))
            yield float(plain.seconds(costs.plain)[chosen].sum() / drafted.seconds(costs)[chosen].sum())

    def _speedup(self, traces: Sequence[Trace], batch: int, k: int) -> float:
        if batch > 1:
            return self._together(traces, batch, k, self.costs)
        plain, drafted = self._alone(traces, k)
        return float(plain.seconds(self.costs.plain).sum() / drafted.seconds(self.costs).sum())

    def _alone(self, traces: Sequence[Trace], k: int) -> tuple[Alone, Alone]:
        return Alone([SimulatedJob.plain(trace) for trace in traces]), Alone([self._job(trace, k) for trace in traces])

    def _together(self, traces: Sequence[Trace], batch: int, k: int, costs: Costs) -> float:
        units = make_units(traces, batch)
        plain = sum(simulate([SimulatedJob.plain(trace) for trace in unit], batch, costs.plain) for unit in units)
        return plain / sum(simulate([self._job(trace, k) for trace in unit], batch, costs) for unit in units)

    def _job(self, trace: Trace, k: int) -> SimulatedJob:
        return SimulatedJob(trace.prefill_seconds, trace.prompt_tokens, self._walker.walk(trace, k))
