"""One request decoded round by round with real keyed noise: the engine's loop without an engine."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from gamaneh.core import Draft, Rule, Use, Verdict
from gamaneh.options import SamplingParams
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.sampling.rows import DraftRows

Model = Callable[[tuple[int, ...]], Tensor]
"""Tokens so far -> logits `[vocab]`."""

Drafter = Callable[[RequestSampler, list[int], int], Draft]
"""Sampler, committed tokens and longest path -> draft."""


def table_model(vocab: int, seed: int, scale: float = 2.0) -> Model:
    """Logits that depend on the last two tokens."""
    table = torch.randn(vocab, vocab, vocab, generator=torch.Generator().manual_seed(seed)) * scale
    return lambda tokens: table[tokens[-2] if len(tokens) > 1 else 0, tokens[-1]]


def constant_model(probs: Sequence[float]) -> Model:
    row = torch.tensor(probs).log()
    return lambda tokens: row


def make_sampler(
    params: SamplingParams, tokens: list[int], vocab: int, kind: type[RequestSampler] = RequestSampler, seed: int = 0
) -> RequestSampler:
    return kind(params, vocab_size=vocab, prompt=tuple(tokens), tokens=tokens, eos_ids=(0,), seed=seed)


def sampled_drafter(model: Model, use: Use = Use.DRAFT) -> Drafter:
    """A draft model that samples as the request asks, with probabilities."""

    def draft(sampler: RequestSampler, tokens: list[int], length: int) -> Draft:
        path: list[int] = []
        probs = []
        for _ in range(length):
            scores = sampler.scores(model((*tokens, *path)), path)
            probs.append(sampler.probs(scores))
            path.append(sampler.pick(scores, len(tokens) + len(path), use))
        return Draft.chain(path, torch.stack(probs))

    return draft


def greedy_drafter(model: Model) -> Drafter:
    def draft(sampler: RequestSampler, tokens: list[int], length: int) -> Draft:
        path: list[int] = []
        for _ in range(length):
            path.append(int(sampler.scores(model((*tokens, *path)), path).argmax()))
        return Draft.chain(path)

    return draft


def judge(rule: Rule, model: Model, sampler: RequestSampler, tokens: list[int], draft: Draft, vocab: int) -> Verdict:
    nodes = range(-1, len(draft))
    logits = torch.stack([model((*tokens, *draft.path_tokens(node))) for node in nodes])
    return rule.judge(draft, DraftRows(logits, draft, sampler, len(tokens), vocab))


def plain(model: Model, sampler: RequestSampler, tokens: list[int], count: int) -> list[int]:
    """Decode `count` tokens one by one; `tokens` is the sampler's live list."""
    start = len(tokens)
    while len(tokens) < start + count:
        scores = sampler.scores(model(tuple(tokens)), ())
        tokens.append(sampler.pick(scores, len(tokens), Use.TARGET))
    return tokens[start:]


def speculative(
    rule: Rule,
    model: Model,
    sampler: RequestSampler,
    tokens: list[int],
    count: int,
    drafter: Drafter,
    length: int,
    vocab: int,
) -> tuple[list[int], list[Verdict]]:
    """Decode `count` tokens in rounds of at most `length` candidates."""
    start = len(tokens)
    verdicts = []
    while (left := start + count - len(tokens)) > 0:
        draft = drafter(sampler, tokens, min(length, left - 1)) if left > 1 else Draft()
        verdicts.append(judge(rule, model, sampler, tokens, draft, vocab))
        tokens.extend(verdicts[-1].tokens)
    return tokens[start:], verdicts
