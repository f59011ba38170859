"""The verdict: use it, do not, or none at all, with reasons and the command that follows."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gamaneh.bench.advise.checklist import LEAST_DECODE_SHARE, Evidence, Phrase
from gamaneh.bench.advise.predict import SpeedPrediction
from gamaneh.bench.advise.validate import MOST_DEVIATION, Validation
from gamaneh.bench.result import Interval

LEAST_GAIN = 1.05
"""Below it a gain is not worth a second model, a second cache and another thing that can break."""

FIXED_MARGIN = 1.1
"""How much faster a fixed draft length must be than an adapting one to be advised: it does not withdraw by itself."""


class Outcome(StrEnum):
    """What to do."""

    USE = "use"
    DO_NOT = "do_not"
    NO_VERDICT = "no_verdict"


@dataclass(frozen=True, slots=True)
class AdviceVerdict:
    """What to do and why.

    Args:
        gain: measured speed-up of what is advised; None without a measurement.
        fixed_k: draft length that is advised; None for one that adapts.
        largest_batch: most requests at once for which a gain is predicted; 0 for none.
        command: that serves the model accordingly; empty without a verdict.
    """

    outcome: Outcome
    reasons: tuple[Phrase, ...]
    gain: Interval | None = None
    fixed_k: int | None = None
    largest_batch: int = 0
    command: tuple[str, ...] = ()

    @property
    def command_line(self) -> str:
        """The command as it is typed."""
        return shlex.join(self.command)


def judge(evidence: Evidence, by_batch: Sequence[SpeedPrediction], serve: Sequence[str]) -> AdviceVerdict:
    """The verdict about one pick.

    Args:
        by_batch: predictions for it by requests at once, ascending.
        serve: command that serves the target plain, as far as its own options go.
    """
    outcome = evidence.validation
    if not outcome.agrees:
        return AdviceVerdict(Outcome.NO_VERDICT, (_disagreement(evidence),))
    fixed = outcome.measured.value > FIXED_MARGIN * outcome.served.value
    gain = outcome.measured if fixed or _others_gain(outcome) else outcome.served
    if gain.low <= 1.0 and gain.value >= LEAST_GAIN:
        return AdviceVerdict(Outcome.NO_VERDICT, (_uncertainty(evidence, gain),), gain)
    against = tuple(_objections(evidence, gain))
    if against:
        reasons = (*against, *_causes(evidence, by_batch))
        return AdviceVerdict(Outcome.DO_NOT, reasons, gain, command=_instead(against, serve))
    k = evidence.prediction.k
    return AdviceVerdict(
        outcome=Outcome.USE,
        reasons=tuple(_grounds(evidence, gain)),
        gain=gain,
        fixed_k=k if fixed else None,
        largest_batch=max((one.batch for one in by_batch if one.speedup.value >= LEAST_GAIN), default=evidence.batch),
        command=(*serve, *evidence.pick.candidate.serve_options(k if fixed else None)),
    )


def unmeasured(reasons: Sequence[Phrase]) -> AdviceVerdict:
    """No verdict, as nothing could be measured."""
    return AdviceVerdict(Outcome.NO_VERDICT, tuple(reasons))


def _disagreement(evidence: Evidence) -> Phrase:
    outcome = evidence.validation
    values = {"predicted": outcome.predicted, "measured": outcome.measured.value}
    return Phrase("disagreement", {**values, "deviation": outcome.deviation, "most": MOST_DEVIATION})


def _uncertainty(evidence: Evidence, gain: Interval) -> Phrase:
    return Phrase("uncertain", {**_figures(gain), "requests": len(evidence.workload.requests)})


def _objections(evidence: Evidence, gain: Interval) -> list[Phrase]:
    """Each of them alone decides against it."""
    objections: list[Phrase] = []
    if evidence.invariant and evidence.validation.differing:
        objections.append(Phrase("differs", {"differing": evidence.validation.differing}))
    if evidence.memory.largest_batch < evidence.batch:
        objections.append(Phrase("no_memory", {"batch": evidence.batch, "largest": evidence.memory.largest_batch}))
    if gain.value < LEAST_GAIN:
        objections.append(_no_gain(evidence.validation, gain))
    return objections


def _no_gain(outcome: Validation, gain: Interval) -> Phrase:
    if _others_gain(outcome):
        return Phrase("others", {**_figures(gain), "served": outcome.served.value})
    return Phrase("no_gain", {**_figures(gain), "least": LEAST_GAIN})


def _others_gain(outcome: Validation) -> bool:
    """Whether service gains although the pick alone surely loses: it withdraws, and others draft instead."""
    return outcome.measured.high < 1.0 and outcome.served.value >= LEAST_GAIN


def _instead(against: Sequence[Phrase], serve: Sequence[str]) -> tuple[str, ...]:
    """Plain decoding; or, where nothing else speaks against speculating, what is served without the pick."""
    return tuple(serve) if against[0].key == "others" else (*serve, "--plain")


def _causes(evidence: Evidence, by_batch: Sequence[SpeedPrediction]) -> list[Phrase]:
    """Why it does not pay, as far as the figures tell."""
    causes: list[Phrase] = []
    share, found = evidence.plain.decode_share, evidence.prediction
    if share < LEAST_DECODE_SHARE:
        causes.append(Phrase("short", {"share": share, "most": 1.0 / (1.0 - share)}))
    if found.tokens_per_round <= found.break_even:
        causes.append(Phrase("too_few", {"tokens": found.tokens_per_round, "break_even": found.break_even}))
    alone = [one for one in by_batch if one.batch < evidence.batch and one.speedup.value >= LEAST_GAIN]
    if alone:
        causes.append(
            Phrase("load", {"batch": alone[-1].batch, "speedup": alone[-1].speedup.value, "now": evidence.batch})
        )
    return causes


def _grounds(evidence: Evidence, gain: Interval) -> list[Phrase]:
    found, outcome = evidence.prediction, evidence.validation
    values = {"predicted": outcome.predicted, "fixed": outcome.measured.value, "k": found.k, "batch": evidence.batch}
    return [
        Phrase("gains", {**_figures(gain), **values}),
        Phrase("pays_from", {"tokens": found.tokens_per_round, "break_even": found.break_even}),
    ]


def _figures(gain: Interval) -> dict[str, float]:
    return {"value": gain.value, "low": gain.low, "high": gain.high}
