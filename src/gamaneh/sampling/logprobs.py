"""The target's own log-probabilities: of its raw logits, before any sampling parameter."""

from __future__ import annotations

from torch import Tensor

from gamaneh.core import TokenLogprob
from gamaneh.sampling import blocks
from gamaneh.sampling.noise import check_highest


def token_logprob(logits: Tensor, token: int, top: int) -> TokenLogprob:
    """Log-probability of `token` under `logits` `[vocab]`, and the `top` most likely tokens.

    `top` is sorted by log-probability, equal ones by id.

    Raises:
        BadLogits: the highest logit is not finite.
    """
    check_highest(float(logits.max()))
    logprobs = logits.float().log_softmax(0)
    values, ids = blocks.largest(logprobs, top)
    return TokenLogprob(token, float(logprobs[token]), tuple(zip(ids.tolist(), values.tolist(), strict=True)))
