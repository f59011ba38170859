"""Request router: plain decoding or which proposers, per request, and why.

The router says which proposers a request may use and what kind of request it is. Which of several pays in
a round is measured by the kind (`Controller`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from gamaneh.control.fallback import Fault, Quarantine
from gamaneh.core import AUTO, NO_DETAILS, PLAIN, Failure, Needs, ReasonCode, ReasonDetails
from gamaneh.options import Drafting

LONG_PROMPT = 512
"""Tokens from which on a prompt counts as long: there is much to copy from, and much for a draft model to read."""

SHORTEST = 2
"""Tokens still to be emitted below which no draft can help."""

HISTORY_FADE = 0.95
USUAL_OUTPUT = 128.0
"""Tokens of an output, expected before any was seen."""


@dataclass(frozen=True)
class Features:
    """What is known about a request before it is answered.

    Args:
        prompt_len: tokens of its prompt.
        limit: tokens that may be emitted in all.
        text: the kind of text, by which survival is told apart; empty where nobody says.
        greedy: its temperature is 0.
        grammar: its output is restricted.
        trees: its drafts may branch.
        repeatable: its tokens depend on its draft lengths and have to be the same again, so that no time may decide.
    """

    prompt_len: int
    limit: int
    greedy: bool
    grammar: bool = False
    trees: bool = True
    repeatable: bool = False
    text: str = ""

    @cached_property
    def traits(self) -> tuple[str, ...]:
        """What matters for how well drafts are accepted."""
        choice = "greedy" if self.greedy else "sampled"
        length = "long prompt" if self.prompt_len >= LONG_PROMPT else "short prompt"
        return (choice, length, "grammar") if self.grammar else (choice, length)

    @cached_property
    def kind(self) -> str:
        """Requests of one kind are expected to be drafted equally well."""
        return ", ".join((*self.traits, self.text) if self.text else self.traits)


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

    def __hash__(self) -> int:
        return hash(self.reason)

    def allowed(self, depth: int) -> int:
        """This draft length, or the longest one that the proposer can make."""
        return depth if self.max_depth is None else min(depth, self.max_depth)


@dataclass(frozen=True, slots=True)
class Eligible:
    """A request that may draft.

    Args:
        routes: proposers that it may use, from the router; at least one.
        most: longest draft that the request's limits allow.
        fixed: draft length asked for; None adapts it.
        kind: of request; what is learned about one helps the others.
        context: its tokens in the cache.
        lag: tokens that a proposer has not read yet, by proposer.
        expected: tokens that the request is expected still to emit.
    """

    request_id: str
    routes: tuple[Route, ...]
    most: int
    fixed: int | None = None
    kind: str = ""
    context: int = 0
    lag: Mapping[str, int] = field(default_factory=dict)
    expected: float = 64.0

    @property
    def adapts(self) -> bool:
        """Whether the controller chooses its draft length."""
        return self.fixed is None and self.most > 0 and self.routes[0].proposer != PLAIN


ASKED_PLAIN = (Route(PLAIN, "plain decoding was asked for", ReasonCode.ASKED_PLAIN),)
SHORT = (Route(PLAIN, "the next token is the last", ReasonCode.SHORT),)


class Router:
    """Knows the proposers, their health, and how long outputs have been.

    Args:
        proposers: what each needs, in the order of preference among equals.
    """

    def __init__(self, quarantine: Quarantine, proposers: Mapping[str, Needs] | None = None) -> None:
        self.quarantine, self.proposers = quarantine, dict(proposers or {})
        self._usual_output = USUAL_OUTPUT
        self._routes: dict[tuple[str, bool, bool, tuple[str, ...]], Route] = {}

    def register(self, name: str, needs: Needs) -> None:
        """Route requests to one more proposer."""
        self.proposers[name] = needs
        self._routes.clear()

    def eligible(
        self,
        request_id: str,
        drafting: Drafting,
        features: Features,
        *,
        emitted: int,
        context: int,
        lag: Callable[[str], int],
        unfit: Collection[str],
    ) -> Eligible:
        """Return what a decoding request may draft in this round.

        Args:
            drafting: how it speculates.
            emitted: tokens emitted so far.
            context: its tokens in the cache.
            lag: tokens that a proposer has not read yet, by its name.
            unfit: proposers that failed on this request.
        """
        routes = self.routes(drafting.proposer, features, emitted, unfit)
        return Eligible(
            request_id,
            routes,
            min(drafting.max_draft_length, features.limit - emitted - 1),
            drafting.draft_length,
            features.kind,
            context,
            {route.proposer: lag(route.proposer) for route in routes if route.proposer != PLAIN},
            self.expected_tokens(features, emitted),
        )

    def routes(
        self, wanted: str, features: Features, emitted: int = 0, unfit: Collection[str] = ()
    ) -> tuple[Route, ...]:
        """Proposers for a request that asks for `wanted`, at least one; a single plain one where none is left.

        Args:
            emitted: tokens emitted so far.
            unfit: proposers that failed on this request.
        """
        if wanted == PLAIN:
            return ASKED_PLAIN
        if features.limit - emitted < SHORTEST:
            return SHORT
        names = self._names(wanted, features)
        if not names and wanted != AUTO:
            return (_only_under_a_grammar(wanted),)
        healthy = [name for name in names if self.quarantine.allows(name, slow=features.repeatable)]
        healthy = [name for name in healthy if name not in unfit]
        if not healthy:
            return (self._no_route(names, unfit),)
        return tuple([self._route(name, features, chosen=wanted == AUTO) for name in healthy])

    def expected_tokens(self, features: Features, emitted: int = 0) -> float:
        """Tokens that the request is expected still to emit: the usual output, the output so far again, its limit."""
        usual = max(self._usual_output - emitted, emitted, 1.0)
        return min(usual, features.limit - emitted)

    def finished(self, emitted: int) -> None:
        """An output of `emitted` tokens came to its end."""
        self._usual_output += (1.0 - HISTORY_FADE) * (emitted - self._usual_output)

    def _names(self, wanted: str, features: Features) -> list[str]:
        names = list(self.proposers) if wanted == AUTO else [wanted]
        return [name for name in names if features.grammar or not self.proposers[name].grammar]

    def _route(self, name: str, features: Features, *, chosen: bool) -> Route:
        key = name, chosen, features.trees, features.traits
        if key not in self._routes:
            self._routes[key] = self._new_route(name, features, chosen=chosen)
        return self._routes[key]

    def _new_route(self, name: str, features: Features, *, chosen: bool) -> Route:
        needs = self.proposers[name]
        branching = needs.branching if features.trees else 1
        reason = f"{name} {'chosen for' if chosen else 'asked for by'} a request ({', '.join(features.traits)})"
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
