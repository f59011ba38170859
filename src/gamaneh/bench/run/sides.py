"""The two sides of a comparison, whoever answers for them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from gamaneh.bench.counters import Counters
from gamaneh.bench.result import Mode, SideSetup
from gamaneh.bench.traffic import Client

SideName = Literal["plain", "speculative"]
SIDE_NAMES: tuple[SideName, SideName] = ("plain", "speculative")


async def _nothing() -> Counters | None:
    return None


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two.

    Args:
        speculate: what its requests say.
        reads_anew: prompts that come back in another round are read again.
        counters: reads what whoever answers counts about itself.
        faults: failures of its proposers so far, by name.
    """

    name: SideName
    client: Client
    speculate: bool
    setup: SideSetup
    reads_anew: bool = True
    counters: Callable[[], Awaitable[Counters | None]] = _nothing
    faults: Callable[[], Mapping[str, int]] = field(default=dict)


@dataclass(frozen=True, slots=True)
class Sides:
    """Both, and where they are."""

    mode: Mode
    plain: Side
    speculative: Side

    @property
    def both(self) -> tuple[Side, Side]:
        return self.plain, self.speculative
