from __future__ import annotations

import math

import pytest
import torch

from gamaneh.errors import BadLogits
from gamaneh.sampling.logprobs import token_logprob

ROW = torch.tensor([1.0, 3.0, 3.0, -2.0, 0.5])


def test_logprob_is_that_of_the_raw_logits() -> None:
    assert token_logprob(ROW, 3, 0).logprob == pytest.approx(float(ROW.log_softmax(0)[3]))


def test_top_is_sorted_by_logprob_then_id() -> None:
    top = token_logprob(ROW, 0, 3).top
    assert [token for token, _ in top] == [1, 2, 0]
    assert [logprob for _, logprob in top] == pytest.approx(ROW.log_softmax(0)[[1, 2, 0]].tolist())


def test_no_alternatives_unless_asked() -> None:
    assert token_logprob(ROW, 0, 0).top == ()


def test_more_alternatives_than_tokens_gives_all() -> None:
    assert len(token_logprob(ROW, 0, 100).top) == 5


def test_half_precision_logits_are_normalised_in_float32() -> None:
    row = torch.randn(5000, generator=torch.Generator().manual_seed(0)).bfloat16()
    total = sum(math.exp(logprob) for _, logprob in token_logprob(row, 0, 5000).top)
    assert total == pytest.approx(1.0, abs=1e-5)


def test_nan_is_refused() -> None:
    with pytest.raises(BadLogits):
        token_logprob(torch.tensor([0.0, math.nan]), 0, 1)
