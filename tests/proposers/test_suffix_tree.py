from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gamaneh.proposers.context_tree import GROWTH, SHORTEST, ContextTree

few_tokens = st.lists(st.integers(0, 2), min_size=1, max_size=60)


def make_tree(*texts: Sequence[int], max_context: int = 8) -> ContextTree:
    tree = ContextTree(max_context)
    for text in texts:
        tree.begin()
        tree.extend(text)
    return tree


def continuation(tree: ContextTree, text: Sequence[int], length: int = 3, least_share: float = 0.0) -> list[int]:
    match = tree.match(text)
    return [] if match is None else tree.follow(match, text, length, least_share)


def ends_of(texts: Sequence[Sequence[int]], ending: Sequence[int]) -> list[tuple[int, int]]:
    """(text, position) of the token behind each occurrence of `ending` that has one."""
    size = len(ending)
    return [
        (which, end)
        for which, text in enumerate(texts)
        for end in range(size, len(text))
        if list(text[end - size : end]) == list(ending)
    ]


@given(st.lists(few_tokens, min_size=1, max_size=4), few_tokens, st.integers(2, 6))
@settings(max_examples=300)
def test_an_ending_is_known_exactly_when_it_occurred_before(
    texts: list[list[int]], text: list[int], max_context: int
) -> None:
    match = make_tree(*texts, max_context=max_context).match(text)
    known = len(text) >= SHORTEST and bool(ends_of(texts, text[-SHORTEST:]))
    assert (match is not None) == known


@given(st.lists(few_tokens, min_size=1, max_size=4), few_tokens, st.integers(2, 6))
@settings(max_examples=300)
def test_a_match_is_a_place_where_the_texts_agree(texts: list[list[int]], text: list[int], max_context: int) -> None:
    match = make_tree(*texts, max_context=max_context).match(text)
    if match is None:
        return
    borders = [-1, *texts[0]] if len(texts) == 1 else [token for each in texts for token in (-1, *each)]
    before = borders[: match.place]
    agreeing = next(
        (size for size in range(min(len(before), len(text))) if before[-1 - size] != text[-1 - size]),
        min(len(before), len(text)),
    )
    assert match.size == min(agreeing, max_context)
    assert borders[match.place] >= 0


@given(few_tokens, st.integers(1, 9))
@settings(max_examples=200)
def test_nothing_is_drafted_that_did_not_follow_its_two_predecessors_before(text: list[int], length: int) -> None:
    drafted = continuation(make_tree(text), text, length)
    whole = [*text, *drafted]
    assert len(drafted) <= length
    for at in range(len(text), len(whole)):
        assert ends_of([[*text]], whole[at - 2 : at])
        assert whole[at - 2 : at + 1] in [text[end - 2 : end + 1] for _, end in ends_of([text], whole[at - 2 : at])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ([5, 6, 7, 8, 9, 10, 11, 7, 8], [9, 10, 11]),
        ([5], []),
        ([5, 6], []),
        ([], []),
        ([1, 1, 1], [1, 1, 1]),
        ([3, 4, 9, 5, 6], []),
        ([9, 3, 4, 3, 4], [3, 4, 3]),
    ],
    ids=["match", "one token", "only itself", "empty", "one token over and over", "no match", "repeating end"],
)
def test_what_followed_the_end_of_a_text(text: list[int], expected: list[int]) -> None:
    """CASES kind 31."""
    assert continuation(make_tree(text), text) == expected


def test_the_most_frequent_continuation_wins() -> None:
    tree = make_tree([1, 2, 3], [1, 2, 4], [1, 2, 3], [1, 2, 4], [1, 2, 3])
    assert continuation(tree, [1, 2], 1) == [3]


def test_the_latest_of_equally_frequent_continuations_wins() -> None:
    assert continuation(make_tree([1, 2, 3], [1, 2, 4]), [1, 2], 1) == [4]


def test_a_longer_context_wins_over_a_frequent_one() -> None:
    tree = make_tree([7, 1, 2, 4], [9, 1, 2, 3], [9, 1, 2, 3], [9, 1, 2, 3])
    assert continuation(tree, [7, 1, 2], 1) == [4]
    assert continuation(tree, [9, 1, 2], 1) == [3]


def test_a_draft_ends_where_its_continuations_are_seldom() -> None:
    texts = [[1, 2, 3, token] for token in range(10, 14)]
    assert continuation(make_tree(*texts), [1, 2], 4, least_share=0.5) == [3]
    assert continuation(make_tree(*texts), [1, 2], 2, least_share=0.2) == [3, 13]


def test_no_context_reaches_over_the_border_of_a_text() -> None:
    assert make_tree([1, 2], [3, 4]).match([2, 3]) is None
    assert continuation(make_tree([1, 2, 3], [4, 5, 6]), [1, 2], 5) == [3]


def test_contexts_are_no_longer_than_allowed() -> None:
    text = list(range(20))
    match = make_tree(text, max_context=4).match(text[:10])
    assert match is not None
    assert match.size == 4


def test_text_without_repetition_costs_one_node_a_token() -> None:
    assert len(make_tree(range(1000))._children) == 999


def test_text_that_comes_again_costs_a_few_nodes_a_token() -> None:
    text = list(range(1000))
    assert len(make_tree(text, text, max_context=32)._children) <= (1 + GROWTH) * len(text)


@pytest.mark.parametrize("text", [[1] * 2000, [1, 2, 3] * 700, [at % 7 * (at % 11) for at in range(2000)]])
def test_text_that_repeats_over_and_over_costs_no_more(text: list[int]) -> None:
    assert len(make_tree(text, max_context=32)._children) <= 2 * len(text)


def test_all_texts_can_be_had_back() -> None:
    texts = [[1, 2, 3], [4], [5, 6]]
    assert [list(text) for text in make_tree(*texts).texts()] == texts


def test_growing_a_text_bit_by_bit_is_the_same_as_at_once() -> None:
    text = [1, 2, 3, 1, 2, 4, 1, 2, 3, 9, 1, 2]
    tree = make_tree(text[:3])
    tree.extend(text[3:8])
    tree.extend(text[8:])
    assert continuation(tree, text, 5) == continuation(make_tree(text), text, 5)
