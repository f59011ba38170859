"""What was measured of one target, as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gamaneh.bench.result import Interval

ALL = "all"
"""The category of all prompts together."""


@dataclass(frozen=True, slots=True)
class Row:
    """One method on one category at one temperature.

    Args:
        speedup: plain seconds per token / the method's, draft length adapting; None where answers were too short.
        tokens_per_round: emitted / rounds, draft length adapting.
        survival: element i: share of the drafts with at least i + 1 candidates whose first i + 1 were kept; fixed
            draft length.
        draft_cost: seconds of a round's draft / seconds of a plain forward, medians; fixed draft length. None
            where nothing was drafted.
        verify_cost: seconds of a round's verify / seconds of a plain forward, in the same way.
        differing: answers that differ from those of plain decoding, of either draft length.
    """

    method: str
    category: str
    temperature: float
    prompts: int
    speedup: Interval | None
    tokens_per_round: float
    survival: tuple[float, ...]
    draft_cost: float | None
    verify_cost: float | None
    differing: int


@dataclass(frozen=True, slots=True)
class TargetFigures:
    """All methods of one target.

    Args:
        memory_bytes: what each method holds beside the target: weights, caches and tables.
        left_out: methods that could not be measured, and why.
        plain_tokens_per_second: by temperature.
    """

    target: str
    drafts: Sequence[str]
    dtype: str
    invariant: bool
    threads: int
    rows: Sequence[Row]
    memory_bytes: Mapping[str, int]
    left_out: Mapping[str, str]
    plain_tokens_per_second: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return asdict(self)
