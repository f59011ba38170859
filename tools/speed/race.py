"""Two ways of doing the same decoding, alternated, and the ratio of their speeds.

Formulas
    tokens/s    (tokens - 1) / (E2E seconds - seconds to the first token): the prompt's time is left out
    ratio       tokens/s of the first / tokens/s of the second, of one prompt; their geometric mean over
                the pairs, with a 95 % bootstrap interval
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from gamaneh.bench.compare import Case, Generator, compare
from gamaneh.bench.comparison import Mismatch, Setup
from gamaneh.bench.statistics import Interval, geometric_mean
from gamaneh.engine.llm import Generation
from gamaneh.errors import InvalidRequest
from gamaneh.options import SamplingParams
from tools.speed.configuration import Effort, fixed_length


@dataclass(frozen=True, slots=True)
class Race:
    """The outcome of a race.

    Args:
        first_tokens_per_second, second_tokens_per_second: medians over the pairs.
        ratio: speed of the first relative to the second.
        differences: where the outputs of a pair part; rounding may do that.
    """

    first: str
    second: str
    pairs: int
    first_tokens_per_second: float
    second_tokens_per_second: float
    ratio: Interval
    differences: tuple[Mismatch, ...]


@dataclass(frozen=True, slots=True)
class Runner:
    """Who takes part in a race."""

    name: str
    generator: Generator


def race(first: Runner, second: Runner, cases: Sequence[Case], effort: Effort, setup: Setup) -> Race:
    """Let both answer the cases in turns, the order swapped from pair to pair, the first pair dropped.

    Raises:
        InvalidRequest: a case could not be answered.
    """
    track = list(itertools.islice(itertools.cycle(cases), effort.repeats))
    lanes = _Lane(first.generator), _Lane(second.generator)
    outcome = compare(*lanes, track, fixed_length(effort.tokens), setup)
    if outcome.failures:
        failure = outcome.failures[0]
        raise InvalidRequest(f"prompt {failure.prompt}", "must be one the model can answer", failure.error)
    # The first answer is the warm-up; those after the last pair were asked for to explain differences.
    speeds, other_speeds = (
        [_tokens_per_second(answer) for answer in lane.answers[1 : 1 + len(track)]] for lane in lanes
    )
    return Race(
        first=first.name,
        second=second.name,
        pairs=len(track),
        first_tokens_per_second=statistics.median(speeds),
        second_tokens_per_second=statistics.median(other_speeds),
        ratio=geometric_mean([one / other for one, other in zip(speeds, other_speeds, strict=True)]),
        differences=outcome.mismatch_details,
    )


class _Lane:
    """Passes prompts on to a generator and keeps its answers."""

    def __init__(self, generator: Generator) -> None:
        self._generator = generator
        self.answers: list[Generation] = []

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams,
        *,
        references: Sequence[str | None] | None = None,
        salt: str = "",
    ) -> list[Generation]:
        answers = self._generator.generate(prompts, params, references=references, salt=salt)
        self.answers += answers
        return answers


def _tokens_per_second(answer: Generation) -> float:
    return (len(answer.tokens) - 1) / (answer.seconds - answer.first_token_seconds)
