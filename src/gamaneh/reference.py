"""Speculative decoding of one request: the algorithm, before anything that makes it fast. Read this first.

The engine does the same for many requests at once, with caches, trees and draft lengths that adapt. Tests hold its
tokens against these, for every exact rule.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, Draft, Rule, Use
from gamaneh.options import SamplingParams
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.sampling.rows import DraftRows

Model = Callable[[Sequence[int]], Tensor]
"""Tokens -> logits `[num_tokens, vocab]`; row i scores the token that follows `tokens[: i + 1]`."""


def generate(
    target: Model,
    draft_model: Model,
    prompt: Sequence[int],
    params: SamplingParams,
    rule: Rule,
    *,
    draft_length: int,
    vocab_size: int,
    end_ids: Collection[int] = (),
) -> list[int]:
    """Return the tokens that the target alone would emit, up to an end token, in fewer forwards of the target."""
    tokens = list(prompt)
    sampler = RequestSampler(
        params, vocab_size=vocab_size, prompt=prompt, tokens=tokens, eos_ids=end_ids, seed=params.seed or 0
    )
    # Under `match` the draft model shares the target's noise, so that both draw the same token more often.
    use = Use.DRAFT if rule.wants_probs else Use.TARGET
    room = len(prompt) + (params.max_tokens or sys.maxsize)
    draft = EMPTY_DRAFT  # the first forward only reads the prompt
    while True:
        # 1. Verify: one forward of the target over everything, the candidates included.
        logits = target([*tokens, *draft.tokens])[-1 - len(draft) :]  # [1 + draft_length, vocab]

        # 2. Judge: the rule keeps candidates from the first on, and adds one token of the target.
        verdict = rule.judge(draft, DraftRows(logits, draft, sampler, len(tokens), vocab_size))

        # 3. Commit: what was refused has left no trace.
        for token in verdict.tokens:
            if token in end_ids:
                return tokens[len(prompt) :]
            tokens.append(token)
        if len(tokens) == room:
            return tokens[len(prompt) :]

        # 4. Propose: the target adds a token to any draft, so the draft leaves room for it.
        draft = propose(draft_model, tokens, sampler, use, min(draft_length, room - len(tokens) - 1))


def propose(draft_model: Model, tokens: Sequence[int], sampler: RequestSampler, use: Use, length: int) -> Draft:
    """Draw `length` candidates from the draft model, one forward each, and keep what they were drawn from."""
    path: list[int] = []
    probs: list[Tensor] = []
    for position in range(len(tokens), len(tokens) + length):
        scores = sampler.scores(draft_model([*tokens, *path])[-1], path)
        probs.append(sampler.probs(scores))
        path.append(sampler.pick(scores, position, use))
    return Draft.chain(path, torch.stack(probs)) if path else EMPTY_DRAFT
