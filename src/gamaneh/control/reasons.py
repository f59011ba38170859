"""Decisions with their reasons: a code to count by, words for a person, and what the words are made of."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from gamaneh.control.router import Route
from gamaneh.core import NO_DETAILS, PLAIN, Decision, ReasonCode, ReasonDetails


@lru_cache
def routed_plain(route: Route) -> Decision:
    """The router leaves no choice."""
    return _plain(route.reason, route.code, route.details)


@lru_cache
def fixed(route: Route, length: int) -> Decision:
    """The draft length was asked for."""
    return _draft(route, length, "draft length fixed by option", ReasonCode.FIXED)


@lru_cache
def pays(route: Route, length: int) -> Decision:
    """Drafting is the fastest by measurement."""
    details = replace(route.details, draft_length=length)
    return _draft(route, length, f"{route.reason}; best measured rate at {length}", ReasonCode.PAYS, details)


@lru_cache
def trial(route: Route, length: int) -> Decision:
    """Drafting may pay, and finding out is within the budget."""
    words = f"{route.proposer} may pay and is not known well yet: tried within the budget"
    return _draft(route, length, words, ReasonCode.TRIAL, ReasonDetails((route.proposer,)))


@lru_cache
def probe(route: Route, length: int) -> Decision:
    """Drafting does not pay, and a short draft checks that."""
    return _draft(route, length, f"{route.proposer} is probed", ReasonCode.PROBE, ReasonDetails((route.proposer,)))


@lru_cache
def nothing_offered(routes: tuple[Route, ...]) -> Decision:
    """No proposer has a draft here."""
    names = tuple(route.proposer for route in routes)
    words = f"{' and '.join(names)}: nothing to offer, or not promising"
    return _plain(words, ReasonCode.NO_DRAFT, ReasonDetails(names))


@lru_cache
def measure() -> Decision:
    """What drafts are compared with has to be known."""
    return _plain("a plain step is timed, to compare drafts with", ReasonCode.MEASURE)


@lru_cache
def load() -> Decision:
    """The batch leaves no room for what would pay alone."""
    return _plain("drafting would pay for this request alone, but not in this batch", ReasonCode.LOAD)


@lru_cache
def no_gain() -> Decision:
    """Plain decoding is the fastest."""
    return _plain("plain decoding is faster by measurement", ReasonCode.NO_GAIN)


def _draft(route: Route, length: int, words: str, code: ReasonCode, details: ReasonDetails = NO_DETAILS) -> Decision:
    return Decision(route.proposer if length else PLAIN, length, length * route.branching, words, code, details)


def _plain(words: str, code: ReasonCode, details: ReasonDetails = NO_DETAILS) -> Decision:
    return Decision(PLAIN, 0, 0, words, code, details)
