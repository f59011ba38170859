"""Request router: plain decoding or which proposer, per request, and why."""

from __future__ import annotations

from collections.abc import Collection

from gamaneh.control.quarantine import Quarantine
from gamaneh.core import PLAIN


class Router:
    """Chooses among the proposers that are configured and healthy."""

    def __init__(self, proposers: Collection[str], quarantine: Quarantine) -> None:
        self.proposers, self.quarantine = proposers, quarantine

    def choose(self, wanted: str) -> tuple[str, str]:
        """Name of the proposer to use for a request that asks for `wanted`, and the reason."""
        if wanted == PLAIN:
            return PLAIN, "plain decoding was asked for"
        if not self.quarantine.allows(wanted):
            return PLAIN, f"{wanted} is in quarantine: {self.quarantine.reason(wanted)}"
        return wanted, f"{wanted} was asked for"
