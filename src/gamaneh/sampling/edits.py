"""Changes to single logits: bias, penalties and masks. Each edits a row in place.

A row may be narrower than the vocabulary (a draft model's own padding); ids beyond it are left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from gamaneh.core import TokenMask
from gamaneh.options import SamplingParams
from gamaneh.sampling.counts import TokenCounts

Edit = Callable[[Tensor, Sequence[int]], None]
"""Takes the row `[vocab]` to change and the draft tokens before it on its path."""


def build_edits(
    params: SamplingParams,
    prompt_len: int,
    tokens: Sequence[int],
    eos_ids: Iterable[int],
    mask: TokenMask | None,
    absent: Collection[int] = (),
) -> tuple[Edit, ...]:
    """The edits that these parameters ask for, in their order; none for the default parameters."""
    edits = tuple(_wanted(params, prompt_len, tokens, eos_ids, mask))
    return (*edits, never(absent)) if absent else edits


def _wanted(
    params: SamplingParams, prompt_len: int, tokens: Sequence[int], eos_ids: Iterable[int], mask: TokenMask | None
) -> Iterator[Edit]:
    if params.logit_bias:
        yield logit_bias(params.logit_bias)
    if params.repetition_penalty != 1.0:
        yield repetition_penalty(params.repetition_penalty, TokenCounts(tokens))
    if params.presence_penalty or params.frequency_penalty:
        output = TokenCounts(tokens, prompt_len)
        yield output_penalty(params.presence_penalty, params.frequency_penalty, output)
    if params.min_tokens:
        ends = (*params.stop_token_ids, *(() if params.ignore_eos else eos_ids))
        yield end_mask(ends, prompt_len + params.min_tokens, tokens)
    if params.bad_words:
        yield bad_words(params.bad_words, tokens)
    if mask is not None:
        yield extra_mask(mask)


def logit_bias(bias: Mapping[int, float]) -> Edit:
    """Add a number to the logits of some tokens."""
    ids, values = torch.tensor(list(bias)), torch.tensor(list(bias.values()), dtype=torch.float32)

    def edit(row: Tensor, path: Sequence[int]) -> None:
        inside = ids < row.shape[0]
        row.index_add_(0, ids[inside].to(row.device), values[inside].to(row.device))

    return edit


def repetition_penalty(penalty: float, seen: TokenCounts) -> Edit:
    """Divide positive and multiply negative logits of tokens seen in prompt, output or path (CTRL, 1909.05858)."""

    def edit(row: Tensor, path: Sequence[int]) -> None:
        ids = _inside(seen.with_path(path)[0], row)
        values = row[ids]
        row[ids] = torch.where(values > 0, values / penalty, values * penalty)

    return edit


def output_penalty(presence: float, frequency: float, output: TokenCounts) -> Edit:
    """Subtract `presence + frequency * count` from tokens of the output and the path."""

    def edit(row: Tensor, path: Sequence[int]) -> None:
        ids, counts = output.with_path(path)
        inside = ids < row.shape[0]
        row[ids[inside].to(row.device)] -= (presence + frequency * counts[inside]).to(row.device)

    return edit


def end_mask(ends: Iterable[int], min_len: int, tokens: Sequence[int]) -> Edit:
    """Mask the end tokens while prompt, output and path hold fewer than `min_len` tokens."""
    ids = torch.tensor(sorted(set(ends)), dtype=torch.long)

    def edit(row: Tensor, path: Sequence[int]) -> None:
        if len(tokens) + len(path) < min_len:
            row[_inside(ids, row)] = -math.inf

    return edit


def never(ids: Collection[int]) -> Edit:
    """Mask ids that have no token."""
    absent = torch.tensor(sorted(ids), dtype=torch.long)

    def edit(row: Tensor, path: Sequence[int]) -> None:
        row[_inside(absent, row)] = -math.inf

    return edit


def bad_words(words: Sequence[Sequence[int]], tokens: Sequence[int]) -> Edit:
    """Mask the last token of each word whose other tokens end the text so far."""
    longest = max(map(len, words)) - 1

    def edit(row: Tensor, path: Sequence[int]) -> None:
        tail = (*tokens[max(0, len(tokens) - longest) :], *path)
        banned = [word[-1] for word in words if _ends_with(tail, word[:-1])]
        row[_inside(torch.tensor(banned, dtype=torch.long), row)] = -math.inf

    return edit


def extra_mask(mask: TokenMask) -> Edit:
    """Mask what `mask` does not allow; tokens beyond its end are not allowed either."""

    def edit(row: Tensor, path: Sequence[int]) -> None:
        allowed = mask.mask(path)
        if allowed is None:
            return
        allowed = allowed[: row.shape[0]].to(row.device)
        row[: allowed.shape[0]].masked_fill_(~allowed, -math.inf)
        row[allowed.shape[0] :] = -math.inf

    return edit


def _inside(ids: Tensor, row: Tensor) -> Tensor:
    return ids[ids < row.shape[0]].to(row.device)


def _ends_with(tail: Sequence[int], end: Sequence[int]) -> bool:
    return len(end) <= len(tail) and tuple(tail[len(tail) - len(end) :]) == tuple(end)
