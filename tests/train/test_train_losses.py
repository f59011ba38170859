from __future__ import annotations

import pytest
import torch
from tiny_training import tiny_target

from gamaneh.train import losses
from gamaneh.train.losses import Pairs, SoftCrossEntropy, TargetProbs, divergence, draft_loss

pytestmark = pytest.mark.usefixtures("one_thread")


def random(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma3"])
def test_target_probs_are_the_targets_own_for_the_tokens_that_can_be_drafted(family: str) -> None:
    decoder = tiny_target(family).decoder
    hidden, ids = random(3, decoder.config.hidden_size), torch.tensor([7, 3, 250])
    logits = decoder.logits(hidden, [3])

    part = TargetProbs(decoder, ids)(hidden, logits.logsumexp(-1))

    torch.testing.assert_close(part, logits.softmax(-1)[:, ids])


def soft_cross_entropy(logits: torch.Tensor, probs: torch.Tensor) -> torch.Tensor:
    rows = torch.arange(len(logits))
    return SoftCrossEntropy.apply(logits, probs, rows, rows, 1.0)


def test_cross_entropy_is_the_textbook_sum_and_so_is_its_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "ROWS_AT_ONCE", 2)
    logits, probs = random(5, 7).requires_grad_(), random(4, 7, seed=1).softmax(-1) * 0.7
    rows, places = torch.tensor([4, 0, 3]), torch.tensor([1, 3, 0])

    loss = SoftCrossEntropy.apply(logits, probs, rows, places, 0.5)
    (gradient,) = torch.autograd.grad(3 * loss, logits)
    expected = -0.5 * (probs[places] * logits[rows].log_softmax(-1)).sum()

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(3 * expected, logits)[0])


def test_cross_entropy_has_its_least_value_at_the_targets_own_proportions() -> None:
    probs = torch.tensor([[0.5, 0.2, 0.1]])
    best = probs.log().requires_grad_()

    soft_cross_entropy(best, probs).backward()

    torch.testing.assert_close(best.grad, torch.zeros(1, 3), atol=1e-6, rtol=0)


@pytest.mark.parametrize("kind", ["forward", "reverse"])
def test_divergences_are_those_of_torch(kind: str) -> None:
    draft, target = random(4, 6).log_softmax(-1), random(4, 6, seed=1).log_softmax(-1)

    loss = divergence(draft, target, kind)  # type: ignore[arg-type]

    pair = (draft, target) if kind == "forward" else (target, draft)
    torch.testing.assert_close(loss, torch.nn.functional.kl_div(*pair, log_target=True, reduction="batchmean"))


def test_draft_position_i_at_t_is_held_against_the_token_t_plus_1_plus_i() -> None:
    """Logits that say for sure what the target says at t + i lose nothing; one step beside they lose a lot."""
    tokens = torch.tensor([[0, 1, 2, 3, 4, 5]])
    pairs = Pairs(torch.ones(1, 6, dtype=torch.bool))
    behind = torch.nn.functional.one_hot(tokens.roll(-1, 1), 6).float()
    probs = behind[pairs.before]

    def loss(shift: int) -> float:
        return float(draft_loss([100 * behind.roll(-(at + shift), 1) for at in (1, 2)], probs, pairs, 0.5))

    assert (loss(0) < 1e-6, loss(1) > 10) == (True, True)


def test_later_draft_positions_weigh_less_and_rows_that_are_not_learned_nothing() -> None:
    pairs = Pairs(torch.tensor([[False, False, True, True]]))
    probs = torch.full((2, 2), 0.5)
    even, odd = torch.zeros(1, 4, 2), torch.tensor([0.0, 4.0]).expand(1, 4, 2)
    low, high = (float(soft_cross_entropy(part[0, :1], probs[:1])) for part in (even, odd))

    # Position 1 guesses the tokens 2 and 3 from rows 0 and 1; position 2 the token 3 from row 0.
    mixed = float(draft_loss([even, odd], probs, pairs, 0.5))

    assert mixed == pytest.approx((2 * low + 0.5 * high) / 2.5)


def test_pairs_name_the_rows_that_guess_learned_tokens_and_what_the_target_says_of_them() -> None:
    pairs = Pairs(torch.tensor([[True, False, True, True], [False, False, False, True]]))

    assert pairs.before.tolist() == [[False, True, True, False], [False, False, True, False]]
    assert [part.tolist() for part in pairs.rows(1)] == [[0, 1, 5], [0, 1, 2]]
    assert [part.tolist() for part in pairs.rows(2)] == [[0, 4], [1, 2]]
