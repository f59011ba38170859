"""A proposer that fails is left out for a while, longer each time."""

from __future__ import annotations

from gamaneh.control.quarantine import FIRST_ROUNDS, LONGEST_ROUNDS, Quarantine
from gamaneh.control.router import Router
from gamaneh.core import PLAIN, ReasonCode


def rounds_left_out(quarantine: Quarantine) -> int:
    rounds = 0
    while not quarantine.allows("drafter"):
        quarantine.tick()
        rounds += 1
    return rounds


def test_each_failure_in_a_row_doubles_the_stay() -> None:
    quarantine = Quarantine()
    stays = []
    for _ in range(3):
        quarantine.report("drafter", "broken")
        stays.append(rounds_left_out(quarantine))
    assert stays == [FIRST_ROUNDS, 2 * FIRST_ROUNDS, 4 * FIRST_ROUNDS]


def test_the_stay_has_a_limit() -> None:
    quarantine = Quarantine()
    for _ in range(40):
        quarantine.report("drafter", "broken")
    assert rounds_left_out(quarantine) == LONGEST_ROUNDS


def test_success_after_the_stay_clears_the_record() -> None:
    quarantine = Quarantine()
    quarantine.report("drafter", "broken")
    rounds_left_out(quarantine)
    quarantine.passed("drafter")
    quarantine.report("drafter", "broken again")
    assert rounds_left_out(quarantine) == FIRST_ROUNDS


def test_the_router_goes_plain_and_says_why() -> None:
    quarantine = Quarantine()
    router = Router(quarantine)
    assert router.choose("drafter") == ("drafter", "drafter was asked for", ReasonCode.PAYS)
    quarantine.report("drafter", "RuntimeError: broken")
    proposer, reason, code = router.choose("drafter")
    assert (proposer, code) == (PLAIN, ReasonCode.QUARANTINE)
    assert "RuntimeError: broken" in reason


def test_the_router_goes_plain_where_that_was_asked_for() -> None:
    assert Router(Quarantine()).choose(PLAIN) == (PLAIN, "plain decoding was asked for", ReasonCode.ASKED_PLAIN)
