"""Seconds of one verify behind a warm context, by the number of its positions."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gamaneh.bench.result import Interval
from gamaneh.bench.stats import geometric_mean
from gamaneh.core import EMPTY_DRAFT, Draft, Feed
from gamaneh.engine.engine import Engine

POSITIONS = (1, 2, 4, 8, 16)
_REQUEST = "warm"


@dataclass(frozen=True, slots=True)
class VerifyTime:
    """One verify: the pending token and `positions` - 1 candidates in a chain.

    Args:
        invariant: whether it ran in shape-invariant execution.
        seconds: median.
        ratio: to a verify of one position in the same execution and round.
    """

    invariant: bool
    positions: int
    seconds: float
    ratio: Interval


def verify_times(engines: Mapping[bool, Engine], context: Sequence[int], repeats: int) -> list[VerifyTime]:
    """Time forwards of all sizes on all engines in turns; the first round is dropped.

    Args:
        engines: by whether they are shape-invariant; nothing else may be running on them.
        context: token ids to stand before the verified positions.
    """
    warm = {invariant: _WarmContext(engine, context) for invariant, engine in engines.items()}
    lanes = [(invariant, positions) for invariant in warm for positions in POSITIONS]
    seconds: dict[tuple[bool, int], list[float]] = {lane: [] for lane in lanes}
    for number in range(1 + repeats):
        for lane in lanes if number % 2 == 0 else reversed(lanes):
            invariant, positions = lane
            seconds[lane].append(warm[invariant].verify_seconds(positions))
    measured = {lane: values[1:] for lane, values in seconds.items()}
    return [
        VerifyTime(*lane, statistics.median(values), _ratio(values, measured[lane[0], 1]))
        for lane, values in measured.items()
    ]


def _ratio(seconds: Sequence[float], of_one: Sequence[float]) -> Interval:
    return geometric_mean([whole / one for whole, one in zip(seconds, of_one, strict=True)])


class _WarmContext:
    """A sequence in the cache, to verify behind again and again."""

    def __init__(self, engine: Engine, tokens: Sequence[int]) -> None:
        self._backend, self._tokens = engine.backend, list(tokens)
        cached = self._backend.admit(_REQUEST, tokens, prompt_len=len(tokens))
        read = self._feed(len(tokens) - cached)
        self._backend.verify([read])
        self._backend.commit([read])
        self._tokens.append(self._tokens[0])

    def verify_seconds(self, positions: int) -> float:
        feed = self._feed(1, Draft.chain(self._tokens[: positions - 1]))
        started = time.perf_counter()
        self._backend.verify([feed])
        return time.perf_counter() - started

    def _feed(self, count: int, draft: Draft = EMPTY_DRAFT) -> Feed:
        self._backend.reserve(_REQUEST, count + len(draft))
        return Feed(
            request_id=_REQUEST,
            tokens=self._tokens,
            count=count,
            prompt_len=len(self._tokens),
            draft=draft,
            logit_rows=1 + len(draft),
        )
