"""A proposer that takes more than it saves over a window is found out."""

from __future__ import annotations

from gamaneh.control.fallback import LEDGER_WINDOW, Account, Ledger


def verdicts(account: Account, rounds: int = LEDGER_WINDOW) -> list[bool]:
    ledger = Ledger()
    return [ledger.add(account) for _ in range(rounds)]


def account(spent: float, saved: int, *, batch_size: int = 1, patience: int = 0) -> Account:
    return Account(spent, saved, plain_seconds=1.0, batch_size=batch_size, patience=patience)


def test_a_loss_is_found_once_it_is_larger_than_a_window_may_have() -> None:
    assert verdicts(account(0.5, 0), 17) == [False] * 16 + [True]
    assert verdicts(account(50.0, 0), 1) == [True]


def test_after_a_verdict_a_new_window_begins() -> None:
    assert sum(verdicts(account(0.5, 0), 51)) == 3


def test_only_a_window_counts() -> None:
    ledger = Ledger()
    ledger.add(account(6.0, 0))
    assert not any(ledger.add(account(0.0, 0)) for _ in range(LEDGER_WINDOW))
    assert not ledger.add(account(6.0, 0))


def test_what_is_saved_is_set_off() -> None:
    assert not any(verdicts(account(2.0, 2)))
    assert any(verdicts(account(2.0, 1)))


def test_in_a_batch_a_saved_round_is_one_requests_share() -> None:
    assert not any(verdicts(account(0.5, 2, batch_size=4)))
    assert any(verdicts(account(1.0, 2, batch_size=4)))


def test_a_small_loss_is_tolerated() -> None:
    assert not any(verdicts(account(0.2, 0)))


def test_whoever_fixes_the_draft_length_may_lose_within_reason() -> None:
    assert not any(verdicts(account(8.0, 0, patience=8)))
    assert any(verdicts(account(40.0, 0, patience=8)))
