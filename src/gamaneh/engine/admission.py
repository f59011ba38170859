"""A request's way in: everything that can be wrong with it is found here, by name."""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence

from gamaneh.control.router import Features
from gamaneh.control.text_kind import text_kind
from gamaneh.core import Request
from gamaneh.engine.detokenizer import Detokenizer, SupportsText
from gamaneh.engine.sequence import SequenceState
from gamaneh.errors import InvalidRequest
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.options import Drafting, SamplingParams
from gamaneh.sampling.pipeline import RequestSampler, check_tokens
from gamaneh.sampling.rules import choose_rule

TEXT_TOKENS = 256
"""Tokens at the end of a prompt by which the kind of its text is told."""


def make_sequence(
    request: Request,
    drafting: Drafting,
    *,
    tokenizer: SupportsText,
    vocab_size: int,
    max_context: int,
    draft_has_probs: bool,
    now: float,
) -> SequenceState:
    """Check a request that has its id, and build its state.

    Args:
        drafting: how it speculates: its own way, or the engine's.
        now: when it arrived, where it does not say so itself.

    Raises:
        InvalidRequest: naming the field, the rule and the value.
    """
    params, prompt, absent = request.params, list(request.prompt), tokenizer.absent_ids
    _check_ids("prompt", prompt, vocab_size, absent)
    _check_ids("reference", request.reference, vocab_size, absent)
    _check_lengths(prompt, params, max_context)
    check_tokens(params, vocab_size, absent)
    if request.mask is not None and params.min_tokens > 0:
        raise InvalidRequest("min_tokens", "must be 0 with a grammar, which says itself when to end", params.min_tokens)
    rule = choose_rule(drafting.rule, params, draft_has_probs, drafting)
    drafting.verify_seed(params)
    tokens = list(prompt)
    mask = None if request.mask is None else request.mask.new_mask(tokens, len(prompt))
    eos_ids = frozenset() if params.ignore_eos else frozenset(tokenizer.eos_ids)
    arrived = now if request.arrived is None else request.arrived
    limit = min(max_context, max_context if params.max_tokens is None else len(prompt) + params.max_tokens)
    return SequenceState(
        request=request,
        drafting=drafting,
        tokens=tokens,
        limit=limit,
        features=Features(
            prompt_len=len(prompt),
            limit=limit - len(prompt),
            greedy=params.greedy,
            grammar=mask is not None,
            trees=rule.trees,
            repeatable=params.seed is not None and rule.reads_probs,
            text=text_kind(tokenizer.decode(prompt[-TEXT_TOKENS:]), reference=bool(request.reference)),
        ),
        sampler=RequestSampler(
            params,
            vocab_size=vocab_size,
            prompt=prompt,
            tokens=tokens,
            eos_ids=tokenizer.eos_ids,
            seed=secrets.randbits(63) if params.seed is None else params.seed,
            mask=mask,
            absent=absent,
        ),
        rule=rule,
        detokenizer=Detokenizer(tokenizer, params.stop, prompt),
        timeline=RequestTimeline(request.id, len(prompt), drafting.proposer, arrived),
        end_ids=eos_ids | frozenset(params.stop_token_ids),
        salt=request.id if params.prompt_logprobs is not None else request.salt,
        mask=mask,
    )


def _check_ids(field: str, ids: Sequence[int], vocab_size: int, absent: Collection[int]) -> None:
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < vocab_size:
            raise InvalidRequest(field, f"must hold token ids from 0 to {vocab_size - 1}", token)
        if token in absent:
            raise InvalidRequest(field, "must hold ids that have a token", token)


def _check_lengths(prompt: Sequence[int], params: SamplingParams, max_context: int) -> None:
    if not prompt:
        raise InvalidRequest("prompt", "must hold at least one token", prompt)
    if params.max_tokens == 0 and params.prompt_logprobs is None:
        raise InvalidRequest("max_tokens", "must be at least 1 (0 only together with prompt_logprobs)", 0)
    longest = max_context if params.max_tokens == 0 else max_context - 1
    if len(prompt) > longest:
        raise InvalidRequest("prompt", f"must hold at most {longest} tokens with this context", f"{len(prompt)} tokens")
    room = max_context - len(prompt)
    if params.min_tokens > room:
        rule = f"must be at most {room}, the room that the prompt leaves in the context"
        raise InvalidRequest("min_tokens", rule, params.min_tokens)
