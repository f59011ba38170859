"""What a proposer's drafts cost and what they save, to find those that are too slow."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

WINDOW = 32
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
    """The accounts of one proposer over a window of rounds."""

    accounts: deque[Account] = field(default_factory=lambda: deque(maxlen=WINDOW))

    def add(self, account: Account) -> bool:
        """Enter one round; true when more is lost than may be lost in a whole window. Then a new one begins."""
        self.accounts.append(account)
        loss = sum(entry.loss for entry in self.accounts)
        too_slow = loss > TOLERATED_LOSS * WINDOW * account.plain_seconds
        if too_slow:
            self.accounts.clear()
        return too_slow
