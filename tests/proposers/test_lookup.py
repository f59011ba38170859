from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gamaneh.core import ProposalRow, Proposer, Sampler
from gamaneh.proposers.lookup import LookupProposer, NgramIndex

few_tokens = st.lists(st.integers(0, 2), max_size=60)


def make_index(
    tokens: Sequence[int], max_ngram: int = 2, min_ngram: int = 2, reference: Sequence[int] = ()
) -> NgramIndex:
    index = NgramIndex(max_ngram, min_ngram, reference)
    index.extend(tokens)
    return index


def make_row(tokens: Sequence[int], depth: int = 3, reference: Sequence[int] = (), name: str = "a") -> ProposalRow:
    return ProposalRow(name, tokens, depth, max_nodes=depth, sampler=cast(Sampler, None), reference=reference)


def search(text: Sequence[int], ending: Sequence[int], max_ngram: int, min_ngram: int) -> tuple[int, int]:
    """Size and end of the longest, then latest match of `ending` in `text` that has a token after it."""
    for size in range(min(max_ngram, len(ending)), min_ngram - 1, -1):
        for end in range(len(text) - 1, size - 1, -1):
            if list(text[end - size : end]) == list(ending[-size:]):
                return size, end
    return 0, 0


def naive_continuation(
    text: Sequence[int], reference: Sequence[int], sizes: tuple[int, int], length: int
) -> tuple[int, ...]:
    own_size, start = search(text, text, *sizes)
    size, end = search(reference, text, *sizes)
    if size and size >= own_size:
        return tuple(reference[end : end + length])
    continuation = list(text[start:]) if own_size else []
    if continuation and list(text[: len(text) - len(continuation)])[-len(continuation) :] == continuation:
        continuation *= length
    return tuple(continuation[:length])


@given(few_tokens, few_tokens, st.integers(1, 3), st.integers(0, 5), st.integers(1, 9), st.data())
@settings(max_examples=300)
def test_the_index_finds_what_a_search_finds(
    text: list[int], reference: list[int], min_ngram: int, more: int, length: int, data: st.DataObject
) -> None:
    index = NgramIndex(min_ngram + more, min_ngram, reference)
    start = 0
    while start < len(text):
        stop = start + data.draw(st.integers(1, 20))
        index.extend(text[start:stop])
        start = stop
        sizes = min_ngram + more, min_ngram
        assert index.continuation(length) == naive_continuation(text[:stop], reference, sizes, length)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([5, 6, 7, 8, 9, 10, 11, 7, 8], (9, 10, 11)),
        ([5], ()),
        ([5, 6], ()),
        ([], ()),
        ([1, 1, 1], (1, 1, 1)),
        ([3, 4, 9, 5, 6], ()),
        ([9, 3, 4, 7, 3, 4], (7, 3, 4)),
        ([3, 4, 5, 3, 4, 6, 3, 4], (6, 3, 4)),
    ],
    ids=["match", "shorter", "only itself", "empty", "one token", "no match", "up to the end", "latest"],
)
def test_the_continuation_of_a_bigram(text: list[int], expected: tuple[int, ...]) -> None:
    assert make_index(text).continuation(3) == expected


def test_a_continuation_ends_with_the_text() -> None:
    assert make_index([9, 3, 4, 7, 3, 4]).continuation(10) == (7, 3, 4)


def test_a_repeating_end_is_taken_to_repeat() -> None:
    assert make_index([9, 3, 4, 3, 4]).continuation(5) == (3, 4, 3, 4, 3)


def test_the_longest_match_wins_over_a_later_one() -> None:
    text = [1, 2, 3, 70, 9, 2, 3, 80, 1, 2, 3]
    assert make_index(text, max_ngram=3).continuation(1) == (70,)
    assert make_index(text, max_ngram=2).continuation(1) == (80,)


def test_a_reference_is_searched_for_the_end_of_the_text() -> None:
    assert make_index([1, 2, 3], reference=[9, 2, 3, 4, 5]).continuation(4) == (4, 5)


def test_a_match_at_the_end_of_the_reference_proposes_nothing() -> None:
    assert make_index([1, 2, 3], reference=[9, 2, 3]).continuation(4) == ()


def test_the_text_wins_over_the_reference_with_a_longer_match() -> None:
    text = [1, 2, 3, 7, 1, 2, 3]
    assert make_index(text, max_ngram=3, reference=[0, 2, 3, 8]).continuation(1) == (7,)
    assert make_index(text, max_ngram=3, reference=[1, 2, 3, 8]).continuation(1) == (8,)


@pytest.mark.parametrize("min_ngram", [0, 4])
def test_lengths_that_contradict_are_refused(min_ngram: int) -> None:
    with pytest.raises(ValueError, match=rf"from 1 to max_ngram \(3\), got {min_ngram}"):
        NgramIndex(3, min_ngram)


def test_text_without_repetition_costs_one_entry_per_token() -> None:
    assert sum(map(len, make_index(range(1000), max_ngram=8)._tables)) == 998


def test_the_proposer_follows_the_protocol() -> None:
    proposer: Proposer = LookupProposer()
    assert (proposer.name, proposer.needs.probs, proposer.needs.hidden_layers) == ("lookup", False, ())


def test_a_draft_is_a_chain_no_deeper_than_allowed() -> None:
    (draft,) = LookupProposer().propose([make_row([1, 2, 3, 4, 5, 6, 1, 2], depth=2)])
    assert (draft.tokens, draft.is_chain, draft.probs) == ((3, 4), True, None)


def test_no_match_gives_an_empty_draft() -> None:
    assert len(LookupProposer().propose([make_row([1, 2, 3])])[0]) == 0


@pytest.mark.parametrize(("forbidden", "expected"), [({5}, (3, 4)), ({3, 5}, ()), (set(), (3, 4, 5))])
def test_forbidden_tokens_end_the_draft(forbidden: set[int], expected: tuple[int, ...]) -> None:
    (draft,) = LookupProposer(forbidden=forbidden).propose([make_row([1, 2, 3, 4, 5, 6, 1, 2])])
    assert draft.tokens == expected


def test_the_reference_of_a_request_is_used() -> None:
    (draft,) = LookupProposer().propose([make_row([1, 2], reference=[0, 1, 2, 3])])
    assert draft.tokens == (3,)


def test_tokens_that_were_added_since_the_last_round_are_read() -> None:
    proposer, tokens = LookupProposer(), [1, 2, 3, 4]
    proposer.propose([make_row(tokens)])
    tokens += [1, 2]
    assert proposer.propose([make_row(tokens)])[0].tokens == (3, 4, 1)


def test_requests_do_not_read_each_other() -> None:
    proposer = LookupProposer()
    drafts = proposer.propose([make_row([1, 2, 3, 9], name="a"), make_row([1, 2], name="b")])
    assert [len(draft) for draft in drafts] == [0, 0]


def test_a_dropped_request_leaves_nothing_behind() -> None:
    proposer = LookupProposer()
    proposer.propose([make_row([1, 2, 3, 1, 2])])
    assert proposer.memory_bytes() > 0
    proposer.forget("a")
    proposer.forget("never seen")
    assert proposer.memory_bytes() == 0
    assert len(proposer.propose([make_row([1, 2])])[0]) == 0
