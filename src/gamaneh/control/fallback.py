"""Fallback: a proposer that fails or is too slow is left out for a while, and requests go on plain."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum

FIRST_ROUNDS = 16
LONGEST_ROUNDS = 4096

PROBATION = 32
"""Rounds without failure after a quarantine that clear the record."""


class Fault(StrEnum):
    """How a proposer failed."""

    ERROR = "error"
    """It raised an exception."""
    NONSENSE = "nonsense"
    """Its draft breaks a rule: tokens that do not exist, too many of them, probabilities that are none."""
    MEMORY = "memory"
    """It ran out of memory."""
    SLOW = "slow"
    """It takes more time than it saves."""


@dataclass(slots=True)
class _Case:
    fault: Fault
    reason: str
    rounds: int
    left: int
    passed: int = 0


class Quarantine:
    """Counts rounds, doubling the stay at each further failure until a probation is passed.

    Attributes:
        leaves_out_slow: a proposer that takes more time than it saves is left out. Measurements that are to find out
            how slow it is switch that off.
    """

    def __init__(self) -> None:
        self.leaves_out_slow = True
        self.counts: Counter[tuple[str, Fault]] = Counter()
        self._cases: dict[str, _Case] = {}
        self._ledgers: dict[str, Ledger] = {}

    @property
    def failures(self) -> int:
        """Failures of all proposers."""
        return self.counts.total()

    def report(self, proposer: str, reason: str, fault: Fault = Fault.ERROR) -> None:
        """The proposer failed in this round."""
        self.counts[proposer, fault] += 1
        known = self._cases.get(proposer)
        rounds = FIRST_ROUNDS if known is None else min(known.rounds * 2, LONGEST_ROUNDS)
        self._cases[proposer] = _Case(fault, reason, rounds, rounds)

    def weigh(self, proposer: str, account: Account) -> None:
        """Enter what a round of a proposer cost and saved; a proposer that costs too much goes into quarantine."""
        if self.leaves_out_slow and self._ledgers.setdefault(proposer, Ledger()).add(account):
            self.report(proposer, "it takes more time than it saves", Fault.SLOW)

    def note(self, proposer: str, fault: Fault) -> None:
        """The proposer failed on one request, which does without it; it goes on for the others."""
        self.counts[proposer, fault] += 1

    def passed(self, proposer: str) -> None:
        """The proposer made drafts without fault in this round."""
        case = self._cases.get(proposer)
        if case is None or case.left > 0:
            return
        case.passed += 1
        if case.passed >= PROBATION:
            del self._cases[proposer]

    def tick(self) -> None:
        """One round went by."""
        for case in self._cases.values():
            case.left = max(case.left - 1, 0)

    def allows(self, proposer: str, *, slow: bool = False) -> bool:
        """Whether the proposer may be used; with `slow` also one whose only fault is that it takes time."""
        return self.rounds_left(proposer) == 0 or (slow and self.fault(proposer) is Fault.SLOW)

    def rounds_left(self, proposer: str) -> int:
        """Rounds until the proposer is tried again; 0 when it may be used."""
        return self._cases[proposer].left if proposer in self._cases else 0

    def on_probation(self, proposer: str) -> bool:
        """Whether the proposer is used again, and its last failure is not forgotten yet."""
        return proposer in self._cases and self.allows(proposer)

    def fault(self, proposer: str) -> Fault | None:
        """Of which kind the proposer's last failure was; None with a clear record."""
        return self._cases[proposer].fault if proposer in self._cases else None

    def reason(self, proposer: str) -> str:
        """What the proposer's last failure was; empty with a clear record."""
        return self._cases[proposer].reason if proposer in self._cases else ""


LEDGER_WINDOW = 32
"""Rounds that are weighed together."""

LONG_LAG = 64
"""Tokens that a proposer has to catch up with from which on a round is not weighed: that pays only later."""

TOLERATED_LOSS = 0.25
"""Share of the time of plain decoding that a proposer may lose over a window. A long draft of a slow draft model that
is refused costs three plain steps: two of them are bad luck, and whether drafting pays is the controller's to say."""

PATIENCE = 2.0
"""Plain steps that one candidate may take where the draft length is fixed: who fixes it may accept a loss."""


@dataclass(frozen=True, slots=True)
class Account:
    """One proposer in one round.

    Args:
        spent: seconds of its drafts.
        saved: plain rounds of one request that its drafts stood for, all its requests together.
        plain_seconds: expected seconds of a plain step of the batch.
        batch_size: requests in the batch.
        patience: candidates whose draft length was fixed, on the longest path.
    """

    spent: float
    saved: int
    plain_seconds: float
    batch_size: int
    patience: int = 0

    @property
    def loss(self) -> float:
        """Seconds that it cost beyond what it saved: a round saved is one request's share of a step."""
        saved = self.saved * self.plain_seconds / self.batch_size
        return self.spent - saved - PATIENCE * self.patience * self.plain_seconds


@dataclass(slots=True)
class Ledger:
    """What one proposer lost in each round of a window, in seconds."""

    losses: deque[float] = field(default_factory=lambda: deque(maxlen=LEDGER_WINDOW))

    def add(self, account: Account) -> bool:
        """Enter one round; true when more is lost than may be lost in a whole window. Then a new one begins."""
        self.losses.append(account.loss)
        too_slow = sum(self.losses) > TOLERATED_LOSS * LEDGER_WINDOW * account.plain_seconds
        if too_slow:
            self.losses.clear()
        return too_slow
