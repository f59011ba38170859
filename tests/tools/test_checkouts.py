"""Two checkouts, alternated: whose turn it is, and what the ratio says."""

from __future__ import annotations

import math
from typing import Any

from tools.speed.checkouts import Answer, alternate


def side(name: str, tpot: float, turns: list[str], tokens: int = 1) -> Answer:
    def answer(way: str, prompt: str, salt: str) -> dict[str, Any]:
        turns.append(f"{name} {prompt} {salt}")
        return {"tpot": tpot, "tokens": [tokens]}

    return answer


def test_the_order_is_swapped_from_request_to_request_and_first_answers_are_dropped() -> None:
    turns: list[str] = []
    alternate(side("old", 1.0, turns), side("new", 1.0, turns), ["a", "b"], "plain", 1)
    assert turns == ["old a warm-up", "new a warm-up", "old a 0", "new a 0", "new b 0", "old b 0"]


def test_the_ratio_is_above_one_where_the_new_checkout_is_faster() -> None:
    found = alternate(side("old", 0.2, []), side("new", 0.1, [], tokens=2), ["a", "b"], "auto", 3)
    assert math.isclose(found.ratio.value, 2.0)
    assert math.isclose(found.old, 5.0)
    assert math.isclose(found.new, 10.0)
    assert (found.equal, found.answers) == (0, 6)
