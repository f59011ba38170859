"""The turn of one request in one step: it starts as rows to feed and a decision, and gains the rest as it moves."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from torch import Tensor

from gamaneh.core import Decision, Draft, Feed, ProposalRow, Share, StepOutput, StepReport, Stopwatch, Verdict
from gamaneh.engine.sequence import SequenceState
from gamaneh.errors import BadLogits
from gamaneh.sampling.rows import Trial


@dataclass(slots=True, eq=False, kw_only=True)
class Turn(Feed):
    """One request's part of a step.

    Args:
        sequence: the request's state.
        decision: how far it may draft, with what, and why.
        samples: all of its pending tokens are fed, so that the turn emits.
        row: what its proposer was asked; None where none was.
        verdict: what the rule decided; None where no token was due, or after an error.
        emitted: tokens up to the end of the output, an end token included.
        output: what the request gets; None where there is nothing to tell.
        error: what it raised; it ends its request.
    """

    sequence: SequenceState
    decision: Decision
    samples: bool
    row: ProposalRow | None = None
    verdict: Verdict | None = None
    emitted: int = 0
    output: StepOutput | None = None
    error: Exception | None = None

    def take(self, draft: Draft) -> None:
        """Feed this draft behind the pending token; each of its nodes is scored."""
        self.draft, self.logit_rows = draft, 1 + len(draft)

    def forget_broken_rows(self) -> None:
        """Refuse pending rows whose numbers are not finite; forget the candidates from the first such node on.

        Plain decoding would not have fed a candidate before it was emitted: the tokens before it are sound, and where
        the target wants it all the same, its row is pending in the next round.
        """
        if not self.broken:
            return
        first = min(self.broken)
        if first < self.count:
            position = self.sequence.cached_len + first
            self.error = BadLogits(f"the model's numbers must be finite, got NaN or infinity at position {position}")
        else:
            self.draft = self.draft.first(first - self.count)

    def trial(self) -> Trial:
        """Return the draft and what decides about it."""
        sequence = self.sequence
        return Trial(sequence.rule, self.draft, self.sampled_scores(), sequence.sampler, len(sequence.tokens))

    def sampled_scores(self) -> Tensor:
        """Return the rows of the first token to emit and behind each node, `[1 + len(draft), vocab]`."""
        assert self.scores is not None, f"{self.request_id} has no scores"
        root = self.logit_rows - 1 if self.row is None else 0
        return self.scores[root : root + 1 + len(self.draft)]

    def report(self, batch_size: int, watch: Stopwatch) -> StepReport:
        """Return the event of this turn, one of `batch_size` that were decoding; it must have a verdict."""
        verdict, decision = self.verdict, self.decision
        assert verdict is not None, f"{self.request_id} has no verdict to report"
        told = verdict.path[: self.emitted]  # candidates behind the end of the output were never emitted
        return StepReport(
            request_id=self.request_id,
            proposer=decision.proposer,
            rule=self.sequence.rule.name,
            drafted=len(self.draft),
            depth=self.draft.depth,
            accepted=len(told),
            emitted=self.emitted,
            batch_size=batch_size,
            context_len=self.sequence.cached_len,
            draft_seconds=watch.draft_seconds.get(decision.proposer, 0.0),
            verify_seconds=watch.verify_seconds,
            decision=decision.depth,
            reason=decision.reason,
            reason_code=decision.code,
            shares=self._shares(told),
            details=decision.details,
            beyond=verdict.accepted - len(told),
        )

    def _shares(self, told: tuple[int, ...]) -> tuple[Share, ...]:
        """Whose candidates were verified, and whose were emitted; empty where one proposer made the draft."""
        sources = self.draft.sources
        drafted, accepted = Counter(sources), Counter(sources[node] for node in told if sources)
        return tuple(Share(name, drafted[name], accepted[name]) for name in sorted(drafted))
