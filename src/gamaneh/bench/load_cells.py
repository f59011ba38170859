"""Cells of the load benchmark: arms that answer the same requests in turns, and what each of them did."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.statistics import Interval, geometric_mean
from gamaneh.bench.traffic import Ask, Client, Traffic, closed_loop
from gamaneh.errors import InvalidOption
from gamaneh.metrics.percentiles import Percentiles, percentiles
from gamaneh.options import SamplingParams

KINDS: Mapping[str, str] = {"copy-like": "editing", "code": "code", "prose": "chat", "persian": "persian"}
"""Kind of prompt -> its category in the prompt set."""

SAMPLED = frozenset({"prose"})
"""Kinds that are answered at temperature 1; the others are greedy."""

PLAIN_ARM, ADAPTIVE_ARM, BARE_ARM = "plain", "adaptive", "bare"


@dataclass(frozen=True, slots=True)
class Arm:
    """One way of answering.

    Args:
        speculate: its requests speculate as the service does by default; otherwise they ask for plain decoding.
    """

    client: Client
    speculate: bool


Arms = Mapping[str, Arm]
"""By name, in the order of a run. `plain` is a service that can speculate and is told not to, `adaptive` the same
left to itself, `bare` one that was built without proposers. Plain is always among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is measured.

    Args:
        tokens: emitted in each answer.
        waves: requests of a run, as a multiple of the concurrency.
        pairs: of runs that are compared, beside a first one that is dropped.
    """

    tokens: int = 64
    waves: int = 2
    pairs: int = 3


QUICK = Effort(tokens=12, waves=1, pairs=1)
"""Shows that everything runs; the figures mean little."""


@dataclass(frozen=True, slots=True)
class Side:
    """What one arm did in a cell, all its runs together; times in seconds."""

    tokens_per_second: float
    ttft: Percentiles
    itl: Percentiles
    e2e: Percentiles


@dataclass(frozen=True, slots=True)
class Cell:
    """One kind of prompt at one concurrency; None for arms that did not run.

    Args:
        ratio: throughput of adaptive / throughput of plain, geometric mean over the pairs.
        off: throughput of plain / throughput of bare, likewise: what is left of it where speculation is switched off.
        differences: answers of the other arms whose text was not that of plain decoding.
    """

    kind: str
    concurrency: int
    requests: int
    plain: Side
    adaptive: Side | None
    bare: Side | None
    ratio: Interval | None
    off: Interval | None
    differences: int


async def measure_cell(arms: Arms, kind: str, prompts: Sequence[Prompt], concurrency: int, effort: Effort) -> Cell:
    """Run the arms in turns, in an order that is reversed from pair to pair."""
    runs: dict[str, list[Traffic]] = {name: [] for name in arms}
    for pair in range(1 + effort.pairs):
        for name in arms if pair % 2 else reversed(list(arms)):
            asks = make_asks(
                kind,
                prompts,
                concurrency * effort.waves,
                effort.tokens,
                speculate=arms[name].speculate,
                salt=uuid.uuid4().hex,
            )
            runs[name].append(await closed_loop(arms[name].client, asks, concurrency))
    return _cell(kind, concurrency, {name: own[1:] for name, own in runs.items()})


def make_asks(
    kind: str, prompts: Sequence[Prompt], count: int, tokens: int, *, speculate: bool, salt: str = ""
) -> list[Ask]:
    """`count` requests of this kind, each of exactly `tokens` tokens; the same ones whether they speculate or not.

    Args:
        salt: of a run. The same requests come back in the next one, which must not know them by heart.

    Raises:
        InvalidOption: no prompt is of this kind.
    """
    texts = [prompt.prompt for prompt in prompts if prompt.category == KINDS[kind]]
    if not texts:
        raise InvalidOption("prompts", f"must hold one of category {KINDS[kind]}", len(prompts))
    temperature = 1.0 if kind in SAMPLED else 0.0
    return [
        Ask(text, SamplingParams(max_tokens=tokens, ignore_eos=True, temperature=temperature, seed=at), speculate, salt)
        for at, text in enumerate(itertools.islice(itertools.cycle(texts), count))
    ]


def _cell(kind: str, concurrency: int, runs: Mapping[str, Sequence[Traffic]]) -> Cell:
    texts = {name: [answer.text for run in own for answer in run.answers] for name, own in runs.items()}
    sides = {name: _side(own) for name, own in runs.items()}
    return Cell(
        kind=kind,
        concurrency=concurrency,
        requests=len(texts[PLAIN_ARM]),
        plain=sides[PLAIN_ARM],
        adaptive=sides.get(ADAPTIVE_ARM),
        bare=sides.get(BARE_ARM),
        ratio=_ratio(runs, ADAPTIVE_ARM, PLAIN_ARM),
        off=_ratio(runs, PLAIN_ARM, BARE_ARM),
        differences=sum(one != two for own in texts.values() for one, two in zip(own, texts[PLAIN_ARM], strict=True)),
    )


def _ratio(runs: Mapping[str, Sequence[Traffic]], upper: str, lower: str) -> Interval | None:
    """Throughput of one arm / throughput of another, pair by pair."""
    if upper not in runs or lower not in runs:
        return None
    pairs = zip(runs[upper], runs[lower], strict=True)
    return geometric_mean([one.tokens_per_second / two.tokens_per_second for one, two in pairs])


def _side(runs: Sequence[Traffic]) -> Side:
    answers = [answer for run in runs for answer in run.answers]
    return Side(
        tokens_per_second=sum(answer.tokens for answer in answers) / sum(run.seconds for run in runs),
        ttft=percentiles(answer.ttft for answer in answers),
        itl=percentiles(gap for answer in answers for gap in answer.gaps),
        e2e=percentiles(answer.e2e for answer in answers),
    )
