"""From the fields of a request to the options of the engine. Defaults are OpenAI's where they differ from ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from gamaneh.core import AUTO, PLAIN
from gamaneh.errors import InvalidOption, InvalidRequest
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.server.api_errors import invalid
from gamaneh.server.schemas import Sampling, SpeculationFields

DEFAULT_TEMPERATURE = 1.0
MOST_BIAS = 1e9
"""Far beyond any logit; much more would be infinite in the arithmetic."""

_SAME = ("top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")
"""Fields that are parameters as they are."""


class Encoder(Protocol):
    """The part of a tokenizer that is needed here."""

    def encode(self, text: str, special: bool = True) -> list[int]: ...


def sampling_params(
    request: Sampling,
    tokenizer: Encoder,
    *,
    max_tokens: int | None,
    logprobs: int | None = None,
    prompt_logprobs: int | None = None,
) -> SamplingParams:
    """The parameters of the first answer; see `for_choice`.

    Raises:
        InvalidRequest: a value is out of range.
        ApiError: 400, a key of `logit_bias` is no token id.
    """
    given: dict[str, Any] = {name: value for name in _SAME if (value := getattr(request, name)) is not None}
    if given.get("top_k") == -1:  # other engines' word for all tokens
        del given["top_k"]
    return SamplingParams(
        **given,
        temperature=DEFAULT_TEMPERATURE if request.temperature is None else request.temperature,
        logit_bias=_bias(request.logit_bias or {}),
        seed=request.seed,
        stop=tuple(request.stop or ()),
        stop_token_ids=tuple(request.stop_token_ids or ()),
        ignore_eos=bool(request.ignore_eos),
        bad_words=_bad_words(request.bad_words or (), tokenizer),
        max_tokens=max_tokens,
        logprobs=logprobs,
        prompt_logprobs=prompt_logprobs,
    )


def for_choice(params: SamplingParams, choice: int) -> SamplingParams:
    """Several answers to one prompt have seeds one after another."""
    if params.seed is None or choice == 0:
        return params
    seed = params.seed + choice
    return replace(params, seed=seed if seed < 2**64 else seed - 2**64)


def capped(asked: int | None, limit: int | None) -> int | None:
    """Most tokens to emit: what was asked for, within the server's limit."""
    known = [value for value in (asked, limit) if value is not None]
    return min(known, default=None)


def speculation_options(
    fields: SpeculationFields | None, default: SpeculationOptions, proposers: Sequence[str]
) -> SpeculationOptions:
    """How one request speculates: as the server was told, narrowed by what the request says.

    Raises:
        ApiError: 400, naming a field below `speculation`.
    """
    if fields is None:
        return default
    longest = fields.max_draft_length or default.max_draft_length
    _check_lengths(fields, longest, default.max_draft_length)
    wanted: dict[str, Any] = {
        "proposer": _proposer(fields, default, proposers),
        "max_draft_length": longest,
        "draft_length": _draft_length(fields, default, longest),
        "rule": fields.rule or default.rule,
    }
    try:
        return replace(default, **wanted)
    except InvalidOption as error:
        raise invalid(f"speculation.{error.field}", f"speculation.{error}") from error


def _check_lengths(fields: SpeculationFields, longest: int, limit: int) -> None:
    if longest > limit:
        name = "speculation.max_draft_length"
        raise invalid(name, f"{name} must be at most {limit}, the server's maximum, got {longest}")
    if isinstance(fields.draft_length, int) and fields.draft_length > longest:
        name = "speculation.draft_length"
        raise invalid(name, f"{name} must be at most {longest}, the longest draft allowed, got {fields.draft_length}")


def _draft_length(fields: SpeculationFields, default: SpeculationOptions, longest: int) -> int | None:
    if isinstance(fields.draft_length, int):
        return fields.draft_length
    if fields.draft_length == "adaptive" or default.draft_length is None:
        return None
    return min(default.draft_length, longest)


def _proposer(fields: SpeculationFields, default: SpeculationOptions, proposers: Sequence[str]) -> str:
    if fields.enabled is False:
        return PLAIN
    if fields.proposer is not None:
        known = (PLAIN, AUTO, *proposers)
        if fields.proposer not in known:
            name = "speculation.proposer"
            raise invalid(name, f"{name} must be one of {', '.join(known)}, got {fields.proposer!r}")
        return fields.proposer
    return AUTO if fields.enabled and default.proposer == PLAIN else default.proposer


def _bias(bias: Mapping[str, float]) -> dict[int, float]:
    ids: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit()):
            raise invalid("logit_bias", f"logit_bias must have token ids as keys, got {key!r}")
        if abs(value) > MOST_BIAS:
            raise invalid(
                "logit_bias", f"logit_bias must be from {-MOST_BIAS:g} to {MOST_BIAS:g}, got {value} for {key}"
            )
        ids[int(key)] = value
    return ids


def _bad_words(words: Sequence[str], tokenizer: Encoder) -> tuple[tuple[int, ...], ...]:
    """A word may stand at the beginning of a text or behind a space."""
    if "" in words:
        raise InvalidRequest("bad_words", "must be a sequence of non-empty texts", words)
    return tuple(tuple(tokenizer.encode(form, special=False)) for word in words for form in (word, f" {word}"))
