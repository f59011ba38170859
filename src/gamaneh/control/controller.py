"""Adaptive draft length: how far each request may draft in the next round, 0 included, and why.

The controller maximises expected emitted tokens per second over the whole batch,

    sum over requests of (1 + s_1 + ... + s_k) / (verify(rows) + draft(depth)),

with survival s_i and costs as measured here (Leviathan et al. 2023, theorem 3.8, without its
assumption of independent acceptance). Exactness never depends on what it decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gamaneh.control.acceptance import AcceptanceTracker
from gamaneh.control.cost import CostModel
from gamaneh.core import PLAIN, Decision, ReasonCode, StepReport

PROBE_EVERY = 32
"""Rounds between two probes of a request whose draft length is 0: at most one small draft in 32 rounds."""

PROBE_DEPTH = 2
MIN_GAIN = 1.02
"""Drafting has to promise this much over plain decoding; below it noise would decide."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A request that may draft.

    Args:
        proposer: chosen by the router.
        max_depth: longest draft that the request's limits allow; 0 forbids drafting.
        fixed: draft length asked for; None adapts it.
        reason: why the router chose this proposer, in words.
        code: the same, to count by.
    """

    request_id: str
    proposer: str
    max_depth: int
    fixed: int | None
    reason: str
    code: ReasonCode


class Controller:
    """Decides from measured survival and measured costs."""

    def __init__(self, acceptance: AcceptanceTracker, cost: CostModel) -> None:
        self.acceptance, self.cost = acceptance, cost
        self._rounds_off: dict[str, int] = {}

    def decide(self, candidates: Sequence[Candidate]) -> list[Decision]:
        """One decision per candidate, all of them together being one batch."""
        free = [c for c in candidates if c.fixed is None and c.max_depth > 0 and c.proposer != PLAIN]
        depths = self._best_depths(free, len(candidates)) if free else {}
        return [self._decision(candidate, depths) for candidate in candidates]

    def observe(self, report: StepReport) -> None:
        self.acceptance.observe(report.proposer, report.request_id, report.depth, report.accepted)

    def drop(self, request_id: str) -> None:
        self.acceptance.drop(request_id)
        self._rounds_off.pop(request_id, None)

    def _best_depths(self, candidates: Sequence[Candidate], base_rows: int) -> dict[str, int]:
        """Take draft tokens in the order of their survival as long as the rate grows.

        Survival falls along a path, so every prefix of that order is a valid set of drafts, and
        the best prefix is the best choice overall.
        """
        offers = sorted(
            (
                (-survival, depth, candidate)
                for candidate in candidates
                for depth, survival in enumerate(self._survival(candidate), 1)
            ),
            key=lambda offer: offer[:2],
        )
        depths: dict[str, int] = {}
        best, best_rate = dict(depths), MIN_GAIN * base_rows / self.cost.round_seconds(base_rows, {})
        by_proposer: dict[str, int] = {}
        expected = float(base_rows)
        for taken, (negative, depth, candidate) in enumerate(offers, 1):
            expected -= negative
            depths[candidate.request_id] = depth
            by_proposer[candidate.proposer] = max(by_proposer.get(candidate.proposer, 0), depth)
            rate = expected / self.cost.round_seconds(base_rows + taken, by_proposer)
            if rate > best_rate:
                best, best_rate = dict(depths), rate
        return best

    def _survival(self, candidate: Candidate) -> list[float]:
        return self.acceptance.survival(candidate.proposer, candidate.request_id, candidate.max_depth)

    def _decision(self, candidate: Candidate, depths: dict[str, int]) -> Decision:
        if candidate.proposer == PLAIN:
            return Decision(PLAIN, 0, 0, candidate.reason, candidate.code)
        if candidate.max_depth <= 0:
            return Decision(PLAIN, 0, 0, "the next token is the last", ReasonCode.SHORT)
        if candidate.fixed is not None:
            depth = min(candidate.fixed, candidate.max_depth)
            return _chosen(candidate.proposer, depth, "draft length fixed by option", ReasonCode.FIXED)
        depth = depths.get(candidate.request_id, 0)
        if depth > 0:
            self._rounds_off.pop(candidate.request_id, None)
            reason = f"{candidate.reason}; best measured rate at {depth}"
            return _chosen(candidate.proposer, depth, reason, ReasonCode.PAYS)
        return self._off_or_probe(candidate)

    def _off_or_probe(self, candidate: Candidate) -> Decision:
        rounds = self._rounds_off.get(candidate.request_id, 0) + 1
        self._rounds_off[candidate.request_id] = rounds
        if rounds % PROBE_EVERY == 0:
            depth = min(PROBE_DEPTH, candidate.max_depth)
            return _chosen(candidate.proposer, depth, f"probe after {rounds} plain rounds", ReasonCode.PROBE)
        return Decision(PLAIN, 0, 0, "plain decoding is faster by measurement", ReasonCode.NO_GAIN)


def _chosen(proposer: str, depth: int, reason: str, code: ReasonCode) -> Decision:
    return Decision(proposer if depth else PLAIN, depth, depth, reason, code)
