from __future__ import annotations

import pytest
import torch

from gamaneh.train.heads_survival import RANKS, Figures, add_rounds, score_rows, shown
from gamaneh.train.losses import Pairs

pytestmark = pytest.mark.usefixtures("one_thread")


def hits(*rows: str) -> torch.Tensor:
    """One text; `x` where the candidate is right, one row of candidates per token."""
    return torch.tensor([[[mark == "x" for mark in row] for row in rows]])


def learned(text: str) -> torch.Tensor:
    return torch.tensor([[letter == "a" for letter in text]])


def test_rounds_begin_behind_the_correction_of_the_one_before() -> None:
    figures = Figures()

    # Tokens 0 to 7, the answer begins at 2. The round at 1 keeps one candidate and emits tokens 3 and 4,
    # the round at 3 keeps none and emits token 5, the round at 4 keeps two and emits 6 and 7 with the end.
    add_rounds(figures, hits("..", "x.", "xx", ".x", "xx", "xx", "xx", "xx"), learned("ppaaaaaa"), ["chat"])

    assert (figures.total.rounds, figures.total.survived) == (3, [2, 1])
    assert figures.by_category["chat"] == figures.total


def test_no_round_keeps_candidates_behind_the_end_of_the_answer() -> None:
    figures = Figures()

    add_rounds(figures, hits(*["xxxx"] * 5), learned("paaap"), ["all"])

    # Behind the first answer token two are left.
    assert (figures.total.rounds, figures.total.survived) == (1, [1, 1, 0, 0])


def test_every_answer_of_a_text_is_walked_through() -> None:
    figures = Figures()

    add_rounds(figures, hits(*["."] * 8), learned("paapaaap"), ["all"])

    assert figures.total.rounds == 1 + 2


def test_ratios_come_from_sums() -> None:
    figures = Figures()
    add_rounds(figures, hits("xx", "xx", "xx", "xx"), learned("paaa"), ["a"])
    add_rounds(figures, hits("..", "..", "..", ".."), learned("paaa"), ["b"])

    quality = figures.quality()

    assert quality["survival"] == {"a": [1.0, 1.0], "all": [0.3333, 0.3333], "b": [0.0, 0.0]}
    assert quality["tokens_per_round"]["all"] == 1.6667


def test_scores_hold_each_position_against_the_target_at_that_place() -> None:
    # The target says 1, 2, 3, ... behind tokens 0, 1, 2, ...
    greedy = torch.tensor([[1, 2, 3, 4, 5]])
    pairs = Pairs(torch.ones(1, 5, dtype=torch.bool))
    target_probs = torch.nn.functional.one_hot(greedy, 6).float()[pairs.before]
    right = 9 * torch.nn.functional.one_hot(greedy.roll(-1, 1), 6).float()
    other = right + 20 * torch.nn.functional.one_hot(torch.zeros(1, 5, dtype=torch.long), 6)

    marks, (ranks, overlap, rows) = score_rows([right, other], greedy, target_probs, pairs, None)

    # Nobody knows what the target says behind the last token, so the last guesses are not counted.
    assert marks[0].tolist() == [[True, False], [True, False], [True, False], [False, False], [False, False]]
    assert (ranks[:, :2].tolist(), rows.tolist()) == ([[3.0, 0.0], [0.0, 0.0]], [3.0, 2.0])
    assert overlap[0] > 2.9 and overlap[1] < 0.1


def test_ranks_tell_second_guesses_and_draft_ids_are_mapped() -> None:
    greedy, ids = torch.tensor([[40, 40, 40]]), torch.tensor([10, 40])
    pairs = Pairs(torch.ones(1, 3, dtype=torch.bool))
    logits = torch.tensor([3.0, 2.0]).expand(1, 3, 2)

    _, (ranks, _, rows) = score_rows([logits], greedy, torch.zeros(2, 2), pairs, ids)

    assert (ranks[0].tolist(), rows.tolist()) == ([0.0, 1.0, *[0.0] * (RANKS - 2)], [1.0])


def test_figures_are_shown_in_a_line() -> None:
    quality = {"survival": {"all": [0.5, 0.25]}, "tokens_per_round": {"all": 1.75}}

    assert shown(quality) == "survival 0.50 0.25, 1.75 tokens per round"
