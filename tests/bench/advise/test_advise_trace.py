import pytest
from hypothesis import given
from hypothesis import strategies as st

from gamaneh.bench.advise.trace import PLAIN_ROUND, Round, Trace, Walker, tally


def trace(*rounds: Round, largest: int = 4, name: str = "one") -> Trace:
    return Trace(id=name, category="chat", language="en", prompt_tokens=5, largest=largest, rounds=rounds)


def played(hits: list[bool], k: int) -> tuple[Round, ...]:
    """What a proposer does that is right where `hits` says so, whatever its draft length."""
    rounds = []
    at = 0
    while at < len(hits):
        depth = min(k, len(hits) - at - 1)
        accepted = next((n for n in range(depth) if not hits[at + n]), depth)
        rounds.append(Round(depth, depth, accepted, accepted + 1))
        at += accepted + 1
    return tuple(rounds)


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(1, 45))
def test_a_recording_at_the_largest_length_answers_every_smaller_one(hits: list[bool], k: int) -> None:
    longest = len(hits) + 1
    recorded = trace(*played(hits, longest), largest=longest)
    assert Walker([recorded]).walk(recorded, k) == played(hits, k)


def test_length_zero_is_plain_decoding() -> None:
    recorded = trace(Round(4, 4, 2, 3), Round(4, 4, 0, 1))
    assert Walker([recorded]).walk(recorded, 0) == (PLAIN_ROUND,) * 4


def test_a_draft_that_ended_by_itself_is_not_made_longer() -> None:
    recorded = trace(Round(3, 3, 1, 2), *[Round(0, 0, 0, 1)] * 6)
    assert Walker([recorded]).walk(recorded, 4)[0] == Round(3, 3, 1, 2)
    assert Walker([recorded]).walk(recorded, 2)[0] == Round(2, 2, 1, 2)


def test_rounds_without_a_draft_stay_plain() -> None:
    recorded = trace(*[Round(0, 0, 0, 1)] * 3)
    assert Walker([recorded]).walk(recorded, 4) == (PLAIN_ROUND,) * 3


def test_a_tree_keeps_its_rows_for_each_level() -> None:
    recorded = trace(Round(4, 12, 1, 2), Round(4, 12, 1, 2), *[Round(0, 0, 0, 1)] * 4)
    first = Walker([recorded]).walk(recorded, 2)[0]
    assert (first.depth, first.rows) == (2, 6)


def test_no_round_is_drafted_beyond_the_last_token() -> None:
    recorded = trace(Round(4, 4, 4, 5), Round(0, 0, 0, 1))
    assert all(one.depth < 6 and one.emitted <= 6 for one in Walker([recorded]).walk(recorded, 4))
    assert sum(one.emitted for one in Walker([recorded]).walk(recorded, 3)) == 6


def test_what_follows_an_accepted_draft_is_drawn_from_fresh_starts() -> None:
    always = [trace(*[Round(1, 1, 1, 2)] * 20, largest=1, name=f"all {at}") for at in range(5)]
    walked = Walker(always).walk(always[0], 1)
    assert [one.accepted for one in walked[:-1]] == [1] * (len(walked) - 1)


def test_the_same_recording_gives_the_same_walk() -> None:
    mixed = trace(*[Round(2, 2, 2, 3), Round(2, 2, 0, 1), Round(2, 2, 1, 2)] * 10, largest=2)
    assert Walker([mixed]).walk(mixed, 1) == Walker([mixed]).walk(mixed, 1)


def test_sums_over_rounds() -> None:
    counts = tally([Round(2, 2, 2, 3), Round(2, 2, 1, 2), Round(1, 1, 0, 1), Round(0, 0, 0, 1)])
    assert (counts.rounds, counts.drafts, counts.drafted, counts.emitted) == (4, 3, 5, 7)
    assert counts.survival == (pytest.approx(2 / 3), pytest.approx(1 / 2))
    assert counts.acceptance_rate == pytest.approx(3 / 5)
    assert counts.tokens_per_round == pytest.approx(7 / 4)
