from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import cast

import pytest
import torch

from gamaneh.core import EMPTY_DRAFT, ROOT, Draft, Needs, ProposalRow, Proposer, Sampler
from gamaneh.proposers.portfolio import PortfolioProposer


@dataclass
class Fixed:
    """Drafts the same for every request, cut to what is allowed, and notes what it is told."""

    name: str
    draft: Draft
    needs: Needs = field(default_factory=Needs)
    asked: list[ProposalRow] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        self.asked += rows
        return [self.draft.cut(row.max_depth) for row in rows]

    def end(self, request_id: str) -> None:
        self.dropped.append(request_id)

    def forget(self, request_id: str) -> None:
        self.dropped.append(request_id)

    def memory_bytes(self) -> int:
        return 100


def make_row(depth: int = 3, nodes: int = 6, **more: object) -> ProposalRow:
    return ProposalRow("a", [1, 2], depth, nodes, cast(Sampler, None), **more)  # type: ignore[arg-type]


def portfolio(**drafts: Draft) -> tuple[PortfolioProposer, dict[str, Fixed]]:
    members = {name: Fixed(name, draft) for name, draft in drafts.items()}
    return PortfolioProposer(members), members


def play(proposer: PortfolioProposer, tokens: tuple[int, ...], row: ProposalRow | None = None) -> Draft:
    """One round in which the target would emit `tokens`."""
    row = row or make_row()
    (draft,) = proposer.propose([row])
    path: list[int] = []
    for token in tokens:
        children = [node for node in draft.children(path[-1] if path else ROOT) if draft.tokens[node] == token]
        path += children[:1]
        if not children:
            break
    cast(list[int], row.tokens).extend(tokens[: len(path) + 1])
    proposer.end(row.request_id)
    return draft


def accepted(proposer: PortfolioProposer, name: str, grade: int = 0) -> tuple[int, int]:
    """Positions of a member's only draft that were reached, and that were accepted."""
    (pool,) = (
        pool
        for pool in proposer.survival.learned()
        if (pool["proposer"], pool["grade"], pool["kind"]) == (name, grade, None)
    )
    return sum(map(bool, pool["reached"])), sum(map(bool, pool["accepted"]))


def test_the_portfolio_follows_the_protocol() -> None:
    proposer: Proposer = portfolio(a=EMPTY_DRAFT)[0]
    assert (proposer.name, proposer.needs.probs, proposer.needs.branching) == ("portfolio", False, 2)


def test_the_drafts_of_all_members_are_in_one_tree() -> None:
    proposer, _ = portfolio(a=Draft.chain([5, 6]), b=Draft.chain([5, 7]))
    (draft,) = proposer.propose([make_row()])
    assert sorted(draft.path_tokens(node) for node in range(len(draft))) == [(5,), (5, 6), (5, 7)]
    assert set(draft.sources) == {"a", "b"}


def test_without_any_draft_the_draft_is_empty() -> None:
    proposer, _ = portfolio(a=EMPTY_DRAFT, b=EMPTY_DRAFT)
    assert proposer.propose([make_row()]) == [EMPTY_DRAFT]


def test_no_more_nodes_than_allowed() -> None:
    proposer, _ = portfolio(a=Draft.chain([5, 6, 7]), b=Draft.chain([8, 9, 10]))
    assert len(proposer.propose([make_row(nodes=4)])[0]) == 4


def test_a_chain_is_drafted_where_the_rule_wants_one() -> None:
    proposer, members = portfolio(a=Draft.chain([5, 6, 7]), b=Draft.chain([8, 9, 10]))
    (draft,) = proposer.propose([make_row(depth=3, nodes=3)])
    assert draft.is_chain
    assert [row.max_nodes for member in members.values() for row in member.asked] == [3, 3]


def test_members_are_asked_for_points_and_their_probabilities_are_left_out() -> None:
    probs = torch.full((2, 9), 1 / 9)
    proposer, members = portfolio(a=Draft.chain([5, 6], probs))
    (draft,) = proposer.propose([make_row(want_probs=True)])
    assert draft.probs is None
    assert not members["a"].asked[0].want_probs


def test_the_member_that_was_right_gets_the_room() -> None:
    proposer, _ = portfolio(right=Draft.chain([5, 6, 7]), wrong=Draft.chain([8, 9, 10]))
    for _ in range(20):
        play(proposer, (5, 6, 7, 1))
    (draft,) = proposer.propose([make_row(nodes=4)])
    assert draft.sources.count("right") == 3
    (chain,) = proposer.propose([make_row(depth=3, nodes=3)])
    assert chain.tokens == (5, 6, 7)


def test_a_member_learns_how_far_its_own_draft_was_right() -> None:
    proposer, _ = portfolio(a=Draft.chain([5, 6, 7]), b=Draft.chain([5, 8]), c=Draft.chain([9]))
    play(proposer, (5, 6, 7, 1), make_row(nodes=12))
    assert accepted(proposer, "a") == (3, 3)
    assert accepted(proposer, "b") == (2, 1)
    assert accepted(proposer, "c") == (1, 0)


def test_what_found_no_place_in_the_tree_says_nothing_about_a_member() -> None:
    proposer, _ = portfolio(a=Draft.chain([5, 6, 7]), b=Draft.chain([5, 8, 9]))
    draft = play(proposer, (5, 8, 9, 1), make_row(nodes=4))
    assert 9 not in draft.tokens
    assert accepted(proposer, "b") == (2, 2)
    assert accepted(proposer, "a") == (2, 1)


def test_a_member_that_fails_is_left_out_and_the_others_go_on() -> None:
    """It is asked once more for the request alone, and then no more."""
    proposer, members = portfolio(good=Draft.chain([5]), bad=Draft.chain([6]))
    members["bad"].draft = cast(Draft, None)
    for _ in range(3):
        assert proposer.propose([make_row()])[0].tokens == (5,)
    assert len(members["bad"].asked) == 2


def test_a_member_that_fails_for_several_requests_rests() -> None:
    proposer, members = portfolio(good=Draft.chain([5]), bad=Draft.chain([6]))
    members["bad"].draft = cast(Draft, None)
    rows = [make_row(), replace(make_row(), request_id="b")]
    proposer.propose(rows)
    asked = len(members["bad"].asked)
    assert [draft.tokens for draft in proposer.propose(rows)] == [(5,), (5,)]
    assert len(members["bad"].asked) == asked


def test_grades_are_told_apart() -> None:
    proposer, members = portfolio(a=Draft.chain([5]))
    play(proposer, (5, 1))
    members["a"].draft = Draft((5,), (ROOT,), grade=2)
    play(proposer, (6,))
    assert accepted(proposer, "a") == (1, 1)
    assert accepted(proposer, "a", grade=2) == (1, 0)


@pytest.mark.parametrize("window", [1, 4])
def test_each_member_gets_the_hidden_states_that_it_reads(window: int) -> None:
    reading = Fixed("reading", EMPTY_DRAFT, Needs(hidden_layers=(3,), hidden_window=window))
    other = Fixed("other", EMPTY_DRAFT, Needs(hidden_layers=(1, 3), hidden_window=2))
    none = Fixed("none", EMPTY_DRAFT)
    proposer = PortfolioProposer({member.name: member for member in (reading, other, none)})
    assert (proposer.needs.hidden_layers, proposer.needs.hidden_window) == ((1, 3), max(window, 2))
    hidden = torch.arange(8.0).view(4, 2, 1)
    proposer.propose([make_row(hidden=hidden)])
    assert torch.equal(reading.asked[0].hidden, hidden[-window:, [1]])
    assert torch.equal(other.asked[0].hidden, hidden[-2:])
    assert none.asked[0].hidden is None


def test_members_may_branch_where_the_rule_takes_trees() -> None:
    wide = Fixed("wide", EMPTY_DRAFT, Needs(branching=3))
    narrow = Fixed("narrow", EMPTY_DRAFT)
    proposer = PortfolioProposer({"wide": wide, "narrow": narrow})
    assert proposer.needs.branching == 4
    proposer.propose([make_row(depth=3, nodes=12)])
    assert [wide.asked[0].max_nodes, narrow.asked[0].max_nodes] == [9, 3]


def test_dropped_requests_are_dropped_by_all_members() -> None:
    proposer, members = portfolio(a=Draft.chain([5]), b=EMPTY_DRAFT)
    proposer.propose([make_row()])
    proposer.forget("a")
    proposer.forget("never seen")
    assert [member.dropped for member in members.values()] == [["a", "never seen"]] * 2


def test_what_members_hold_is_not_counted_twice() -> None:
    assert portfolio(a=EMPTY_DRAFT)[0].memory_bytes() == 0
