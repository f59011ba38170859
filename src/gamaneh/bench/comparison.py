"""The outcome of a comparison of plain with speculative decoding, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Setup:
    """What was compared, for printing beside the numbers. `k` is None when it adapts."""

    model: str
    dtype: str
    device: str
    proposer: str
    k: int | None
    rule: str
    exact: bool
    invariant: bool
    threads: int


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where plain and speculative output of one prompt part.

    Args:
        position: first output position that differs.
        plain_token, speculative_token: None where that output had ended.
        logit_gap: between the target's two most likely tokens there; None if it could not be asked.
    """

    prompt: str
    position: int
    plain_token: int | None
    speculative_token: int | None
    logit_gap: float | None


@dataclass(frozen=True, slots=True)
class Failure:
    """A prompt that could not be answered."""

    prompt: str
    error: str


@dataclass(frozen=True, slots=True)
class Row:
    """The numbers of one category."""

    category: str
    prompts: int
    mismatches: int
    speedup: float | None
    acceptance_rate: float
    tokens_per_round: float
    plain_tokens_per_second: float
    speculative_tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict over all prompts.

    Args:
        identical: every speculative output, batched ones too, is token for token the plain one.
        identity_expected: the rule promises that; otherwise it promises the same distribution, or (not
            `exact`) neither.
        mismatches: prompts whose outputs differ, `mismatch_details` says where.
        speedup, speedup_low, speedup_high: None when no output had two tokens.
        batch, batch_mismatches: requests that ran at once in the batched check, and outputs that
            differed from plain in it; None without that check.
        peak_memory_bytes: largest resident size of the process.
    """

    identical: bool
    identity_expected: bool
    mismatches: int
    prompts: int
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    acceptance_rate: float
    tokens_per_round: float
    plain_tokens_per_second: float
    speculative_tokens_per_second: float
    setup: Setup
    categories: tuple[Row, ...]
    mismatch_details: tuple[Mismatch, ...]
    failures: tuple[Failure, ...]
    batch: int | None
    batch_mismatches: int | None
    peak_memory_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Plain data; the fields of `setup` stand beside the numbers."""
        values = asdict(self)
        return {**values.pop("setup"), **values}
