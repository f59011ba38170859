"""What one request breaks is taken from that request alone; what a proposer breaks is the proposer's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import cast

import pytest

from gamaneh.control.fallback import Fault, Quarantine
from gamaneh.core import Draft, Needs, ProposalRow, Proposer, Sampler, Stopwatch
from gamaneh.proposers.guard import Guarded

VOCAB = 10


class Fragile(Proposer):
    """Drafts 1, 2; fails where a request breaks it."""

    name = "drafting"

    def __init__(self, breaks: Callable[[ProposalRow], bool] = lambda row: False, reads: int | None = None) -> None:
        self.needs, self.breaks = Needs(reads=reads), breaks
        self.asked: list[list[str]] = []
        self.forgotten: list[str] = []

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        self.asked.append([row.request_id for row in rows])
        if any(map(self.breaks, rows)):
            raise IndexError("no such token")
        return [Draft.chain([1, 2]) for _ in rows]

    def forget(self, request_id: str) -> None:
        self.forgotten.append(request_id)

    def memory_bytes(self) -> int:
        return 0


def row(name: str, *tokens: int, depth: int = 2) -> ProposalRow:
    return ProposalRow(name, [1, *tokens], depth, depth, cast(Sampler, None))


def lengths(guard: Guarded, *rows: ProposalRow) -> list[int]:
    return [len(draft) for draft in guard.propose(rows, [False] * len(rows))]


def test_a_hostile_request_ends_its_own_drafts_and_no_others() -> None:
    quarantine = Quarantine()
    proposer = Fragile(lambda row: 9 in row.tokens)
    guard = Guarded(proposer, VOCAB, quarantine)
    for _ in range(3):
        assert lengths(guard, row("good"), row("hostile", 9), row("fine")) == [2, 0, 2]
    assert quarantine.reason("drafting") == ""
    assert proposer.asked[-1] == ["good", "fine"]
    guard.forget("hostile")
    assert lengths(guard, row("hostile")) == [2]


def test_a_token_that_cannot_be_read_never_reaches_the_proposer() -> None:
    quarantine = Quarantine()
    proposer = Fragile(lambda row: 9 in row.tokens, reads=9)
    guard = Guarded(proposer, VOCAB, quarantine)
    assert lengths(guard, row("hostile", 9)) == [0]
    assert lengths(guard, row("hostile", 9), row("good")) == [0, 2]
    assert quarantine.reason("drafting") == ""
    assert proposer.asked == [["good"]]


def test_a_proposer_that_fails_for_all_is_reported_once_a_round() -> None:
    quarantine = Quarantine()
    proposer = Fragile(lambda row: True)
    guard = Guarded(proposer, VOCAB, quarantine)
    assert lengths(guard, row("a"), row("b")) == [0, 0]
    assert quarantine.counts == {("drafting", Fault.ERROR): 1}
    assert set(proposer.forgotten) == {"a", "b"}


def test_lack_of_memory_is_not_tried_again() -> None:
    quarantine = Quarantine()

    class Full(Fragile):
        def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
            self.asked.append([row.request_id for row in rows])
            raise MemoryError

    proposer = Full()
    assert lengths(Guarded(proposer, VOCAB, quarantine), row("a"), row("b")) == [0, 0]
    assert (quarantine.counts, len(proposer.asked)) == ({("drafting", Fault.MEMORY): 1}, 1)


@pytest.mark.parametrize(("vocab", "depth"), [(2, 2), (VOCAB, 1)], ids=["ids", "depth"])
def test_a_draft_that_breaks_a_rule_is_nonsense(vocab: int, depth: int) -> None:
    quarantine = Quarantine()
    assert lengths(Guarded(Fragile(), vocab, quarantine), row("a", depth=depth)) == [0]
    assert quarantine.counts == {("drafting", Fault.NONSENSE): 1}


def test_a_watch_learns_what_the_proposer_took_and_had_to_read() -> None:
    now = iter([0.0, 1.0, 3.5])
    watch, guard = Stopwatch(lambda: next(now)), Guarded(Fragile(), VOCAB, Quarantine())
    guard.propose([row("a", 5, 6)], [False], watch)
    assert (watch.draft_seconds, watch.lag) == ({"drafting": 2.5}, {"drafting": 3})
    assert guard.lag("a", 5) == 2
