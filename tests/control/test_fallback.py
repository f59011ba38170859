"""A proposer that fails is left out for a while, longer each time."""

from __future__ import annotations

from gamaneh.control.fallback import FIRST_ROUNDS, LONGEST_ROUNDS, PROBATION, Fault, Quarantine


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


def test_a_probation_without_failure_clears_the_record() -> None:
    quarantine = Quarantine()
    quarantine.report("drafter", "broken")
    rounds_left_out(quarantine)
    for _ in range(PROBATION):
        assert quarantine.on_probation("drafter")
        quarantine.passed("drafter")
    assert not quarantine.on_probation("drafter")
    quarantine.report("drafter", "broken again")
    assert rounds_left_out(quarantine) == FIRST_ROUNDS


def test_a_proposer_that_fails_now_and_then_is_left_out_longer_each_time() -> None:
    quarantine = Quarantine()
    stays = []
    for _ in range(3):
        quarantine.report("drafter", "broken")
        stays.append(rounds_left_out(quarantine))
        quarantine.passed("drafter")
    assert stays == sorted(set(stays))


def test_failures_are_counted_by_proposer_and_fault() -> None:
    quarantine = Quarantine()
    quarantine.report("drafter", "broken")
    quarantine.report("drafter", "no memory", Fault.MEMORY)
    quarantine.report("other", "no memory", Fault.MEMORY)
    assert quarantine.counts == {("drafter", Fault.ERROR): 1, ("drafter", Fault.MEMORY): 1, ("other", Fault.MEMORY): 1}
    assert quarantine.failures == 3
