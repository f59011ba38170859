"""How far two sequences are the same."""

from __future__ import annotations

import pytest

from gamaneh.prefix import common_prefix


@pytest.mark.parametrize(
    ("first", "second", "length"),
    [("", "", 0), ("abc", "", 0), ("abc", "abc", 3), ("abc", "abd", 2), ("xbc", "abc", 0), ("ab", "abc", 2)],
)
def test_a_prefix_ends_at_the_first_difference_or_with_the_shorter_one(first: str, second: str, length: int) -> None:
    assert common_prefix(first, second) == common_prefix(second, first) == length


def test_what_is_known_to_be_the_same_is_not_compared() -> None:
    assert common_prefix([1, 2, 3, 4], [9, 9, 3, 5], known=2) == 3


def test_no_more_is_the_same_than_there_is_of_the_shorter_one() -> None:
    assert common_prefix([1], [1, 2, 3], known=3) == 1
