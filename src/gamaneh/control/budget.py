"""What may be lost while finding out whether drafting pays: optimism with a price that is stated beforehand.

The controller believes the best that its measurements allow, as long as what that has cost so far, beside plain
decoding, stays within a budget; afterwards it believes what is likely, and in debt only what is nearly sure (a
conservative bandit: Wu, Shariff, Lattimore and Szepesvari 2016). Everything is counted in plain steps of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

GRANT_ROUNDS = 200
GRANT = 10.0
"""Plain steps that may be lost in the first rounds: 5 % of them."""

AT_ONCE = 3.0
"""Part of the grant that may be lost at once; the rest comes round by round, so that short runs lose little."""

INCOME = 0.006
"""Share of the time that may be lost in the long run."""

MOST_SAVED = 5.0
"""Plain steps that may be saved up after the first rounds."""

MOST_OWED = 2.0
"""Plain steps of debt; what is lost beyond that is not paid back, so that a disaster does not end all trials."""


@dataclass(slots=True)
class Budget:
    """Plain steps that may still be lost, and when each proposer was probed.

    Attributes:
        balance: below 0 nothing is tried.
        rounds: that were decided.
    """

    balance: float = AT_ONCE
    rounds: int = 0
    last_probe: int = 0
    tried: dict[str, int] = field(default_factory=dict)

    def earn(self) -> None:
        """One round goes by."""
        self.rounds += 1
        granted = (GRANT - AT_ONCE) / GRANT_ROUNDS if self.rounds <= GRANT_ROUNDS else INCOME
        self.balance = min(self.balance + granted, self.most)

    @property
    def most(self) -> float:
        """Plain steps that may be saved up."""
        return GRANT if self.rounds <= GRANT_ROUNDS else MOST_SAVED

    def book(self, gain: float) -> None:
        """A round with drafts gained so many plain steps over plain decoding; a loss is below 0."""
        self.balance = max(min(self.balance + gain, self.most), -MOST_OWED)

    def allows(self, loss: float) -> bool:
        """Whether a round that is likely to lose so much may be tried."""
        return self.balance >= max(loss, 0.0)

    def probe_is_due(self, loss: float, proposer: str) -> bool:
        """Whether time enough has gone by for a probe that loses so much. A proposer's first one is not waited for."""
        if self.balance <= 0.0:
            return False
        return proposer not in self.tried or INCOME * (self.rounds - self.last_probe) >= loss

    def probed(self, proposer: str, *, first: bool) -> None:
        """A probe of this proposer is made."""
        self.tried[proposer] = self.rounds
        if not first:
            self.last_probe = self.rounds
