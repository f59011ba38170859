"""Request router: plain decoding or which proposer, per request, and why."""

from __future__ import annotations

from gamaneh.control.quarantine import Quarantine
from gamaneh.core import PLAIN, ReasonCode


class Router:
    """Chooses the proposer that was asked for, as long as it is healthy."""

    def __init__(self, quarantine: Quarantine) -> None:
        self.quarantine = quarantine

    def choose(self, wanted: str) -> tuple[str, str, ReasonCode]:
        """Name of the proposer to use for a request that asks for `wanted`, and why."""
        if wanted == PLAIN:
            return PLAIN, "plain decoding was asked for", ReasonCode.ASKED_PLAIN
        if not self.quarantine.allows(wanted):
            return PLAIN, f"{wanted} is in quarantine: {self.quarantine.reason(wanted)}", ReasonCode.QUARANTINE
        return wanted, f"{wanted} was asked for", ReasonCode.PAYS
