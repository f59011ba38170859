"""The sampling of one request: the same pipeline for plain rows, draft positions and the draft model."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import torch
from torch import Tensor

from gamaneh.core import TokenMask, Use
from gamaneh.errors import BadLogits, InvalidRequest
from gamaneh.options import SamplingParams
from gamaneh.sampling import blocks, noise
from gamaneh.sampling.edits import build_edits
from gamaneh.sampling.filters import apply_filters


class RequestSampler:
    """Turns rows of logits of one request into scores, probabilities and tokens.

    The order is: logit bias, repetition penalty, presence and frequency penalties, minimum length,
    bad words, extra mask, temperature, top-k, top-p, min-p.

    Args:
        params: how the request is sampled; its `seed` is not read here.
        vocab_size: tokens of the target; what a row holds beyond is padding and is cut off.
        prompt: the prompt's tokens.
        tokens: prompt and committed output, owned by the sequence; it may grow between calls.
        eos_ids: the model's end tokens.
        seed: key of all noise of the request.
        mask: further restriction of the tokens, for example a grammar.
        absent: ids below `vocab_size` that have no token, and are never chosen.
    """

    def __init__(
        self,
        params: SamplingParams,
        *,
        vocab_size: int,
        prompt: Sequence[int],
        tokens: Sequence[int],
        eos_ids: Iterable[int],
        seed: int,
        mask: TokenMask | None = None,
        absent: Collection[int] = (),
    ) -> None:
        self.params = params
        self.seed = seed
        self._vocab_size = vocab_size
        self._tokens = tokens
        self._edits = build_edits(params, len(prompt), tokens, eos_ids, mask, absent)

    @property
    def greedy(self) -> bool:
        """Whether the highest score is always taken."""
        return self.params.greedy

    def scores(self, logits: Tensor, path: Sequence[int]) -> Tensor:
        """Scores `[vocab]` of the token after the committed ones and `path`; -inf where not allowed.

        Greedy scores are the edited logits. Without edits and filters the row itself is returned, of
        whatever dtype if greedy and float32 else; `logits` `[vocab]` is never changed.

        Raises:
            BadLogits: nothing can be chosen from this row.
        """
        row = self.edited(logits, path)
        return row if self.params.greedy else apply_filters(row.float(), self.params)

    @property
    def edits_logits(self) -> bool:
        """Whether any parameter changes single logits."""
        return bool(self._edits)

    def edited(self, logits: Tensor, path: Sequence[int]) -> Tensor:
        """Logits `[vocab]` after bias, penalties and masks: a float32 copy; the row itself where there are none."""
        row = logits[: self._vocab_size]
        if self._edits:
            row = row.to(torch.float32, copy=True)
            for edit in self._edits:
                edit(row, path)
        return row

    def probs(self, scores: Tensor) -> Tensor:
        """Normalised probabilities `[vocab]`, float32; all of it on the chosen token if greedy.

        Raises:
            BadLogits: the highest score is not finite.
        """
        if self.params.greedy:
            probs = torch.zeros(scores.shape, device=scores.device)
            probs[_highest(scores)] = 1.0
            return probs
        probs = scores.softmax(0)
        if math.isnan(float(probs[0])):
            raise BadLogits("a row of scores has no distribution: NaN, infinite or nothing allowed")
        return probs

    def pick(self, scores: Tensor, position: int, use: Use) -> int:
        """The token at `position`: the highest score if greedy (lowest id on ties), a keyed draw else.

        Raises:
            BadLogits: the highest score is not finite.
        """
        if self.params.greedy:
            return _highest(scores)
        return noise.draw(scores, self.seed_for(use), position, use)

    def ranked(self, scores: Tensor, position: int, use: Use, count: int) -> list[tuple[float, int]]:
        """The `count` best tokens for `position`; `pick` takes the first of them.

        Draws without replacement (Gumbel top-k, Kool et al. 1903.06059). Each token comes behind its
        score, noise included; tokens with score -inf are left out.

        Raises:
            BadLogits: the highest score is not finite.
        """
        if not self.params.greedy:
            return noise.draw_several(scores, self.seed_for(use), position, use, count)
        values, ids = blocks.largest(scores, count)
        noise.check_highest(float(values[0]))
        pairs = zip(values.tolist(), ids.tolist(), strict=True)
        return [(value, token) for value, token in pairs if value != -math.inf]

    def pick_from(self, probs: Tensor, position: int, use: Use) -> int:
        """The token at `position` from other probabilities `[vocab]`, which need not be normalised."""
        return noise.draw(probs.log(), self.seed_for(use), position, use)

    def uniform(self, position: int, use: Use) -> float:
        """A uniform draw in (0, 1) tied to `position`."""
        return noise.uniform(self.seed_for(use), position, use)

    def seed_for(self, use: Use) -> int:
        """Key of the request's noise for one use."""
        # The target's noise depends on the position alone: that makes `match` independent of drafts.
        # Other draws must be fresh in each round, since a refused position is drafted again, and that
        # it was refused says something about the draws that refused it.
        return self.seed if use is Use.TARGET else noise.fold(self.seed, len(self._tokens))


def check_tokens(params: SamplingParams, vocab_size: int, absent: Collection[int] = ()) -> None:
    """Refuse token ids that the vocabulary does not have, beyond its end or in a gap.

    Raises:
        InvalidRequest: `logit_bias`, `stop_token_ids` or `bad_words` names one.
    """
    named = {
        "logit_bias": params.logit_bias,
        "stop_token_ids": params.stop_token_ids,
        "bad_words": [token for word in params.bad_words for token in word],
    }
    for field, ids in named.items():
        for token in ids:
            if token >= vocab_size:
                raise InvalidRequest(field, f"must hold token ids below {vocab_size}", token)
            if token in absent:
                raise InvalidRequest(field, "must hold ids that have a token", token)


def _highest(scores: Tensor) -> int:
    token = blocks.argmax(scores)
    noise.check_highest(float(scores[token]))
    return token
