"""What is measured: prompts, loads, rounds. Both sides are given the same requests."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date

from gamaneh.bench.arrivals import offsets, recorded_rate
from gamaneh.bench.prompt_set import Prompt, hash_prompts
from gamaneh.bench.result import Load, Pattern, Price, Slo
from gamaneh.bench.traffic import Ask
from gamaneh.errors import InvalidOption
from gamaneh.options import SamplingParams

SWEEP_STEPS = 12
"""Most loads of a sweep; each has twice the rate of the one before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """One run.

    Args:
        source: where the prompts came from.
        params: of every request; with a seed, request number i has the seed plus i.
        loads: one after the other.
        sweep: stop after the first load that neither side can serve.
        warmups: requests of each side and load that are asked before and dropped.
        seed: of the order of the prompts and of the arrivals.
        recorded: seconds at which each prompt was recorded, for `replay`.
    """

    source: str
    prompts: Sequence[Prompt]
    params: SamplingParams
    loads: Sequence[Load]
    sweep: bool = False
    warmups: int = 1
    seed: int = 0
    recorded: Sequence[float] = ()
    slo: Slo | None = None
    price: Price | None = None

    def __post_init__(self) -> None:
        if not self.prompts:
            raise InvalidOption("prompts", "must be at least one", 0)
        if self.warmups < 0:
            raise InvalidOption("warmups", "must be at least 0", self.warmups)

    @property
    def comparable(self) -> bool:
        """Whether two exact sides can be expected to agree token for token."""
        return self.params.greedy or self.params.seed is not None

    @property
    def prompts_sha256(self) -> str:
        return hash_prompts(prompt.prompt for prompt in self.prompts)

    @property
    def requests(self) -> int:
        """Measured on each side, all loads together."""
        return sum(load.requests * load.rounds for load in self.loads)

    def order(self, load: Load) -> list[Prompt]:
        """Prompts of one round, shuffled so that categories mix; a recording keeps its order."""
        chosen = list(self.prompts)
        if load.pattern != "replay":
            random.Random(self.seed).shuffle(chosen)
        return list(itertools.islice(itertools.cycle(chosen), load.requests))

    def ask(self, prompt: Prompt, number: int, *, speculate: bool, salt: str) -> Ask:
        """Request number `number` of a round.

        Args:
            salt: of the round and side. Prompts come back in each round: a cached prefix, or a store of
                earlier answers, would know them, as it knows nothing that is asked once.
        """
        seed = None if self.params.seed is None else self.params.seed + number
        return Ask(prompt.prompt, replace(self.params, seed=seed), speculate, salt)

    def arrivals(self, load: Load) -> list[float]:
        """Seconds after the start of a round at which its requests come; for loads by the clock."""
        return offsets(load, self.seed, self.recorded)


def closed_loads(concurrencies: Sequence[int], requests: int, rounds: int) -> list[Load]:
    """Closed loops.

    Raises:
        InvalidOption: a number is not at least 1.
    """
    return [_checked(Load("closed", float(level), max(requests, level), rounds)) for level in concurrencies]


def open_loads(
    pattern: Pattern, rates: Sequence[float], requests: int, rounds: int, burstiness: float, *, sweep: bool
) -> list[Load]:
    """Loads by the clock; a sweep goes on from its last rate by doubling it.

    Raises:
        InvalidOption: a number is out of range.
    """
    levels = list(rates)
    if sweep:
        levels += itertools.islice(_doubled(levels[-1]), SWEEP_STEPS - len(levels))
    return [_checked(Load(pattern, rate, requests, rounds, burstiness)) for rate in levels]


def replay_load(recorded: Sequence[float], rounds: int) -> Load:
    """The load of a recording, as it was.

    Raises:
        InvalidOption: the prompts carry no times.
    """
    if len(recorded) < 2:
        raise InvalidOption("trace", "must have prompts with the key at, two or more", len(recorded))
    return _checked(Load("replay", recorded_rate(recorded), len(recorded), rounds))


def _doubled(rate: float) -> Iterator[float]:
    while True:
        rate *= 2
        yield rate


def _checked(load: Load) -> Load:
    name = "concurrency" if load.pattern == "closed" else "rate"
    for field, value in ((name, load.level), ("burstiness", load.burstiness)):
        if not 0 < value < float("inf"):
            raise InvalidOption(field, "must be a number above 0", value)
    for field, count in (("requests", load.requests), ("rounds", load.rounds)):
        if count < 1:
            raise InvalidOption(field, "must be at least 1", count)
    return load


def make_price(per_hour: float, currency: str, day: str | None) -> Price:
    """
    Raises:
        InvalidOption: the price is not above 0, or its date is missing or none.
    """
    if not 0 < per_hour < float("inf"):
        raise InvalidOption("price", "must be a number above 0", per_hour)
    try:
        date.fromisoformat(day or "")
    except ValueError as error:
        raise InvalidOption("price_date", "must be the day of the price, as YYYY-MM-DD", day) from error
    return Price(per_hour, currency, str(day))
