"""The figures of one configuration, and which aims they meet."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from gamaneh.bench.comparison import Comparison
from gamaneh.bench.result import Setup
from tools.speed.overhead import Overhead
from tools.speed.race import Race
from tools.speed.verify import VerifyTime

PLAIN_AIM = 1.2
OVERHEAD_AIM = 0.1
SPECULATION_AIMS = {("draft_model", "code"): 1.4, ("lookup", "editing"): 2.0}
"""Least speed-up over plain decoding, by proposer and category."""

LARGE_WEIGHT_BYTES = 2 * 10**9
"""The aim of the overhead is for models of at least this size."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. The peak is that of the process before `transformers` comes into it."""

    peak_resident: int
    target_weights: int
    target_kv: int
    target_kv_per_token: int
    draft_weights: int
    draft_kv: int


@dataclass(frozen=True, slots=True)
class Speculation:
    """Speculative against plain decoding of one category of prompts."""

    category: str
    outcome: Comparison


@dataclass(frozen=True, slots=True)
class Aim:
    """One figure and the bound that it is held against."""

    figure: str
    value: float
    bound: float
    at_least: bool

    @property
    def met(self) -> bool:
        return self.value >= self.bound if self.at_least else self.value <= self.bound


@dataclass(frozen=True, slots=True)
class Figures:
    """All that is measured of one configuration.

    Args:
        peer: our plain decoding against that of `transformers`.
        invariance: plain decoding without against with shape-invariant execution: the ratio is the
            time per token that it costs.
    """

    title: str
    setup: Setup
    peer: Race
    verify: tuple[VerifyTime, ...]
    invariance: Race
    overhead: tuple[Overhead, ...]
    speculation: tuple[Speculation, ...]
    memory: Memory

    def aims(self) -> Iterator[Aim]:
        """The aims that this configuration is held against."""
        yield Aim("plain against transformers", self.peer.ratio.value, PLAIN_AIM, at_least=True)
        if self.memory.target_weights >= LARGE_WEIGHT_BYTES:
            worst = max(row.share for row in self.overhead)
            yield Aim("largest overhead share", worst, OVERHEAD_AIM, at_least=False)
        for row in self.speculation:
            bound = SPECULATION_AIMS.get((row.outcome.setup.proposer, row.category))
            if bound is not None and row.outcome.speedup is not None:
                yield Aim(f"{row.outcome.setup.proposer} on {row.category}", row.outcome.speedup, bound, at_least=True)

    def to_json(self) -> dict[str, Any]:
        """Plain data; each aim with whether it is met."""
        values = asdict(self)
        values["speculation"] = [{"category": row.category, **row.outcome.to_json()} for row in self.speculation]
        values["aims"] = [{**asdict(aim), "met": aim.met} for aim in self.aims()]
        return values
