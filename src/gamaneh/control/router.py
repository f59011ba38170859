"""Request router: plain decoding or which proposers, per request, and why.

The router says which proposers a request may use and what kind of request it is. Which of several pays in
a round is measured by the kind (`Controller`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from gamaneh.control.fallback import Fault, Quarantine
from gamaneh.core import AUTO, NO_DETAILS, PLAIN, Failure, Needs, ReasonCode, ReasonDetails

LONG_PROMPT = 512
"""Tokens from which on a prompt counts as long: there is much to copy from, and much for a draft model to read."""

SHORTEST = 2
"""Tokens still to be emitted below which no draft can help."""

HISTORY_FADE = 0.95
USUAL_OUTPUT = 128.0
"""Tokens of an output, expected before any was seen."""


@dataclass(frozen=True, slots=True)
class Features:
    """What is known about a request before it is answered.

    Args:
        prompt_len: tokens of its prompt.
        emitted: tokens emitted so far.
        limit: tokens that may be emitted in all.
        greedy: its temperature is 0.
        grammar: its output is restricted.
        trees: its drafts may branch.
        repeatable: its tokens depend on its draft lengths and have to be the same again, so that no time may decide.
    """

    prompt_len: int
    emitted: int
    limit: int
    greedy: bool
    grammar: bool = False
    trees: bool = True
    repeatable: bool = False

    @property
    def traits(self) -> tuple[str, ...]:
        """What matters for how well drafts are accepted."""
        choice = "greedy" if self.greedy else "sampled"
        length = "long prompt" if self.prompt_len >= LONG_PROMPT else "short prompt"
        return (choice, length, "grammar") if self.grammar else (choice, length)

    @property
    def kind(self) -> str:
        """Requests of one kind are expected to be drafted equally well."""
        return ", ".join(self.traits)


@dataclass(frozen=True, slots=True)
class Route:
    """A proposer that a request may use.

    Args:
        proposer: its name; `PLAIN` for none.
        reason: why, in words.
        code: the same, to count by.
        instant: its drafts cost next to nothing and can be looked at first.
        branching: candidates per level of its drafts.
        max_depth: longest draft that it can make; None for any length.
        details: what the words are made of.
    """

    proposer: str
    reason: str
    code: ReasonCode
    instant: bool = False
    branching: int = 1
    max_depth: int | None = None
    details: ReasonDetails = NO_DETAILS

    def allowed(self, depth: int) -> int:
        """This draft length, or the longest one that the proposer can make."""
        return depth if self.max_depth is None else min(depth, self.max_depth)


class Router:
    """Knows the proposers, their health, and how long outputs have been.

    Args:
        proposers: what each needs, in the order of preference among equals.
    """

    def __init__(self, quarantine: Quarantine, proposers: Mapping[str, Needs]) -> None:
        self.quarantine, self.proposers = quarantine, proposers
        self._usual_output = USUAL_OUTPUT

    def routes(self, wanted: str, features: Features, unfit: Collection[str] = ()) -> tuple[Route, ...]:
        """Proposers for a request that asks for `wanted`, at least one; a single plain one where none is left.

        Args:
            unfit: proposers that failed on this request.
        """
        if wanted == PLAIN:
            return (Route(PLAIN, "plain decoding was asked for", ReasonCode.ASKED_PLAIN),)
        if features.limit - features.emitted < SHORTEST:
            return (Route(PLAIN, "the next token is the last", ReasonCode.SHORT),)
        names = self._names(wanted, features)
        if not names and wanted != AUTO:
            return (_only_under_a_grammar(wanted),)
        healthy = [name for name in names if self.quarantine.allows(name, slow=features.repeatable)]
        healthy = [name for name in healthy if name not in unfit]
        if not healthy:
            return (self._no_route(names, unfit),)
        return tuple(self._route(name, features, chosen=wanted == AUTO) for name in healthy)

    def expected_tokens(self, features: Features) -> float:
        """Tokens that the request is expected still to emit: the usual output, the output so far again, its limit."""
        usual = max(self._usual_output - features.emitted, features.emitted, 1.0)
        return min(usual, features.limit - features.emitted)

    def finished(self, emitted: int) -> None:
        """An output of `emitted` tokens came to its end."""
        self._usual_output += (1.0 - HISTORY_FADE) * (emitted - self._usual_output)

    def _names(self, wanted: str, features: Features) -> list[str]:
        names = list(self.proposers) if wanted == AUTO else [wanted]
        return [name for name in names if features.grammar or not self.proposers[name].grammar]

    def _route(self, name: str, features: Features, *, chosen: bool) -> Route:
        needs = self.proposers[name]
        branching = needs.branching if features.trees else 1
        reason = f"{name} {'chosen for' if chosen else 'asked for by'} a request ({features.kind})"
        details = ReasonDetails((name,), kind=features.traits, chosen=chosen)
        return Route(name, reason, ReasonCode.PAYS, needs.instant, branching, needs.max_depth, details)

    def _no_route(self, names: list[str], unfit: Collection[str]) -> Route:
        failures = tuple(
            Failure(name, Fault.ERROR, "it failed on this request")
            if name in unfit
            else Failure(name, self.quarantine.fault(name) or "", self.quarantine.reason(name))
            for name in names
        )
        reasons = (f"{each.proposer} is in quarantine: {each.words}" for each in failures)
        reason = "; ".join(reasons) or "there is no proposer"
        return Route(PLAIN, reason, ReasonCode.QUARANTINE, details=ReasonDetails(tuple(names), failures=failures))


def _only_under_a_grammar(proposer: str) -> Route:
    reason = f"{proposer} drafts for requests with a grammar only"
    return Route(PLAIN, reason, ReasonCode.NO_DRAFT, details=ReasonDetails((proposer,), kind=("grammar",)))
