"""Counts of one request's tokens: what was read, what was written, and what became of a prediction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from gamaneh.core import Origin, StepOutput
from gamaneh.server.events import Answers, Event, Job

MATCH = 3
"""Tokens in a row that the prediction must hold too, for a candidate to count as taken from it."""


class PredictionCount:
    """Candidates that continue the text of a prediction: how many were accepted, how many refused."""

    def __init__(self, job: Job) -> None:
        reference = tuple(job.reference)
        self._known = {reference[at : at + MATCH] for at in range(len(reference) - MATCH + 1)}
        self._tail = tuple(job.prompt[-(MATCH - 1) :])
        self.accepted = 0
        self.rejected = 0

    def add(self, output: StepOutput) -> None:
        """Count the tokens that one step tells."""
        if not self._known:
            return
        for token, origin, refused in zip(output.tokens, output.origins, output.refused, strict=True):
            if origin is Origin.ACCEPTED:
                self.accepted += self._predicted(self._tail, token)
            before = self._tail
            for candidate in refused:
                self.rejected += self._predicted(before, candidate)
                before = self._after(before, candidate)
            self._tail = self._after(self._tail, token)

    def _predicted(self, before: tuple[int, ...], token: int) -> bool:
        return (*before, token) in self._known

    def _after(self, before: tuple[int, ...], token: int) -> tuple[int, ...]:
        return (*before, token)[-(MATCH - 1) :]


class Tally:
    """Counts events as they go by.

    Args:
        per_prompt: answers to each prompt; a prompt counts once.
        keep_text: keep what was said, for the log.
    """

    def __init__(self, answers: Answers, per_prompt: int, *, keep_text: bool = False) -> None:
        self._answers = answers
        self._firsts = range(0, len(answers.jobs), per_prompt)
        self._predictions = [PredictionCount(job) for job in answers.jobs]
        self.origins: Counter[Origin] = Counter()
        self.output_tokens = 0
        self.texts = [""] * len(answers.jobs)
        self._keep_text = keep_text

    def add(self, event: Event) -> None:
        """Count one event."""
        self.output_tokens += len(event.output.emitted)
        self.origins.update(event.output.emitted)
        self._predictions[event.choice].add(event.output)
        if self._keep_text:
            self.texts[event.choice] += event.output.text

    @property
    def prompt_tokens(self) -> int:
        return sum(len(self._answers.jobs[choice].prompt) for choice in self._firsts)

    def usage(self, reasoning_tokens: int) -> dict[str, Any]:
        """The object `usage` of a response."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.output_tokens,
            "total_tokens": self.prompt_tokens + self.output_tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens()},
            "completion_tokens_details": {
                "reasoning_tokens": reasoning_tokens,
                "accepted_prediction_tokens": sum(count.accepted for count in self._predictions),
                "rejected_prediction_tokens": sum(count.rejected for count in self._predictions),
            },
        }

    def _cached_tokens(self) -> int:
        timelines = [self._answers.streams[choice].timeline for choice in self._firsts]
        return sum(timeline.cached_tokens for timeline in timelines if timeline is not None)


def by_origin(origins: Counter[Origin]) -> dict[str, int]:
    """Emitted tokens by origin, all origins named."""
    return {origin.value: origins[origin] for origin in Origin}


def total(values: Sequence[float | None]) -> float | None:
    """Sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
