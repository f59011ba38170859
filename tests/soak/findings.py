"""How much a soak does, and what it finds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

SHOWN = 5
"""Names that are printed of each kind of finding."""

WARM_UP = 0.25
"""Share of the requests after which memory has to be flat."""

FLAT_BYTES = 64 << 20
FLAT_SHARE = 0.05
"""Growth that counts as flat: either of the two."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is done.

    Args:
        requests: in all.
        shapes: different requests, each of which is answered plainly first.
        concurrency: requests at once.
        tokens: of the longest answer.
        abort_share, error_share, fault_share: of the requests that are aborted or break a rule, and of
            the proposers' calls that fail.
        patience: seconds without any answer after which a request hangs.
    """

    requests: int = 2000
    shapes: int = 40
    concurrency: int = 16
    tokens: int = 48
    abort_share: float = 0.1
    error_share: float = 0.05
    fault_share: float = 0.02
    patience: float = 600.0
    seed: int = 1


QUICK = Effort(requests=40, shapes=6, concurrency=4, tokens=12)
"""Shows that everything runs."""


@dataclass(slots=True)
class Findings:
    """What happened.

    Args:
        outcomes: requests by how they ended: finished, aborted, refused.
        wrong, hung, failed: requests whose tokens were not those of plain decoding; that never ended; that
            ended with an error.
        memory: bytes of the process's own, caches left out where that is known, sampled as requests end.
        leaked_blocks: still in use when nothing runs, in the caches of target and draft model; None where a server
            does not tell.
        broken_books: what the check of the cache's books found; empty if they agree.
        faults: injected into proposers; caught: failures that were counted.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    hung: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)
    leaked_blocks: int | None = 0
    broken_books: str = ""
    faults: dict[str, int] = field(default_factory=dict)
    caught: dict[str, int] = field(default_factory=dict)

    @property
    def growth(self) -> int:
        """Bytes by which memory grew after the warm-up."""
        warm = self.memory[int(len(self.memory) * WARM_UP) :]
        return warm[-1] - warm[0] if warm else 0

    @property
    def memory_is_flat(self) -> bool:
        return self.growth <= max(FLAT_BYTES, FLAT_SHARE * self.memory[-1]) if self.memory else True

    @property
    def passed(self) -> bool:
        clean = not (self.wrong or self.hung or self.failed or self.leaked_blocks or self.broken_books)
        return clean and self.memory_is_flat


def describe(findings: Findings) -> str:
    """What happened, in words and numbers."""
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(findings.outcomes.items()))
    memory = "not looked at"
    if findings.memory:
        flat = "flat" if findings.memory_is_flat else "NOT flat"
        memory = f"{flat}: {findings.memory[-1] / 1e6:.0f} MB, {findings.growth / 1e6:+.1f} MB after the warm-up"
    lines = [
        f"requests    {outcomes}",
        f"hung        {len(findings.hung)} {' '.join(findings.hung[:SHOWN])}",
        f"wrong       {len(findings.wrong)} {' '.join(findings.wrong[:SHOWN])}",
        f"failed      {len(findings.failed)} {'; '.join(findings.failed[:SHOWN])}",
        f"blocks      {_blocks(findings.leaked_blocks)} {findings.broken_books}",
        f"memory      {memory}",
        f"faults      {_counts(findings.faults)}",
        f"caught      {_counts(findings.caught)}",
        "passed" if findings.passed else "FAILED",
    ]
    return "\n".join(line.rstrip() for line in lines)


def _blocks(leaked: int | None) -> str:
    return "not looked at" if leaked is None else f"{leaked} still in use"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items())) or "none"
