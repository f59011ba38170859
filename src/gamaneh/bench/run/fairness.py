"""Is it a fair comparison? Everything but the speculation must be the same on both sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from gamaneh.bench.result import Check, Figures, SideSetup
from gamaneh.errors import InvalidOption

CONDITIONS = (
    "target",
    "target_sha256",
    "precision",
    "invariant",
    "hardware",
    "sampling",
    "max_tokens",
    "batch",
    "requests",
    "warmups",
    "prompts_sha256",
)
"""Fields of `SideSetup` that must not differ."""

LENGTH_TOLERANCE = 0.02
"""Share by which output lengths may differ, as they do where outputs are sampled."""


def check_setups(plain: SideSetup, speculative: SideSetup) -> tuple[Check, ...]:
    """Every condition, with both values; what is not known on one side is neither equal nor different."""
    return tuple(_check(name, getattr(plain, name), getattr(speculative, name)) for name in CONDITIONS)


def check_lengths(plain: Figures, speculative: Figures) -> Check:
    """Output tokens for the same requests."""
    one, other = plain.output_tokens, speculative.output_tokens
    return Check("output_tokens", one, other, abs(one - other) <= LENGTH_TOLERANCE * max(one, other))


def refuse_unequal(checks: Sequence[Check]) -> None:
    """
    Raises:
        InvalidOption: a condition is known to differ.
    """
    for check in unequal(checks):
        rule = f"must be the same on both sides ({check.plain!r} plain) unless --allow-unequal is given"
        raise InvalidOption(check.name, rule, check.speculative)


def unequal(checks: Sequence[Check]) -> Iterator[Check]:
    """Conditions that are known to differ."""
    return (check for check in checks if check.equal is False)


def _check(name: str, plain: Any, speculative: Any) -> Check:
    known = plain is not None and speculative is not None
    return Check(name, plain, speculative, plain == speculative if known else None)
