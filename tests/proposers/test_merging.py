from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gamaneh.core import ROOT, Draft
from gamaneh.proposers.tree import Part, best_of, depth_within, merge, walk


def part(source: str, tokens: list[int], *survival: float) -> Part:
    return Part(source, Draft.chain(tokens), survival or [0.5 ** (at + 1) for at in range(len(tokens))])


def paths(draft: Draft) -> set[tuple[int, ...]]:
    return {draft.path_tokens(node) for node in range(len(draft))}


def test_what_two_drafts_have_in_common_is_verified_once() -> None:
    tree = merge([part("a", [1, 2, 3]), part("b", [1, 2, 4])], 9)
    assert paths(tree) == {(1,), (1, 2), (1, 2, 3), (1, 2, 4)}


def test_drafts_that_differ_from_the_first_candidate_on_are_siblings() -> None:
    tree = merge([part("a", [1, 2]), part("b", [3])], 9)
    assert paths(tree) == {(1,), (1, 2), (3,)}
    assert [tree.tokens[node] for node in tree.children(ROOT)] == [1, 3]


def test_the_candidates_that_survive_most_often_are_taken() -> None:
    tree = merge([part("sure", [1, 2, 3], 0.9, 0.8, 0.7), part("unsure", [4, 5, 6], 0.5, 0.2, 0.1)], 4)
    assert paths(tree) == {(1,), (1, 2), (1, 2, 3), (4,)}


def test_a_candidate_counts_for_the_part_that_is_surest_of_it() -> None:
    tree = merge([part("a", [1, 2], 0.5, 0.1), part("b", [1, 3], 0.9, 0.8)], 9)
    sources = {tree.path_tokens(node): source for node, source in enumerate(tree.sources)}
    assert sources == {(1,): "b", (1, 3): "b", (1, 2): "a"}


def test_trees_are_merged_as_well() -> None:
    branching = Part("tree", Draft((1, 2, 3), (ROOT, ROOT, 0)), (0.6, 0.3))
    assert paths(merge([branching, part("chain", [2, 9])], 9)) == {(1,), (2,), (1, 3), (2, 9)}


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.floats(0.1, 1.0)), min_size=1),
    st.integers(1, 12),
)
def test_any_merged_tree_is_a_part_of_all_drafts_together(
    drafts: list[tuple[list[int], float]], max_nodes: int
) -> None:
    parts = [
        part(str(at), tokens, *(rate ** (depth + 1) for depth in range(len(tokens))))
        for at, (tokens, rate) in enumerate(drafts)
    ]
    tree = merge(parts, max_nodes)
    everything = {tuple(tokens[:depth]) for tokens, _ in drafts for depth in range(1, len(tokens) + 1)}
    assert paths(tree) <= everything
    assert len(tree) == len(paths(tree)) == min(max_nodes, len(everything)) == len(tree.sources)


def test_where_chains_are_wanted_the_most_promising_draft_is_taken() -> None:
    draft = best_of([part("long", [1, 2, 3], 0.3, 0.2, 0.1), part("sure", [4], 0.9)])
    assert (draft.tokens, draft.is_chain, draft.sources) == ((4,), True, ("sure",))


@pytest.mark.parametrize(
    ("tokens", "expected"), [([1, 3], (0, 2)), ([2, 9], (1,)), ([9], ()), ([], ()), ([1, 3, 7], (0, 2))]
)
def test_walking_down_a_draft(tokens: list[int], expected: tuple[int, ...]) -> None:
    assert walk(Draft((1, 2, 3), (ROOT, ROOT, 0)), tokens) == expected


def test_how_deep_a_part_was_taken() -> None:
    parts = [part("sure", [1, 2, 3], 0.9, 0.8, 0.7), part("unsure", [1, 5, 6], 0.5, 0.2, 0.1)]
    tree = merge(parts, 4)
    assert [depth_within(each.draft, tree) for each in parts] == [3, 2]
