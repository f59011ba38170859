"""Options, each with one default. Everything is checked here, before it can do harm."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from gamaneh.errors import GamanehError, InvalidOption, InvalidRequest

RuleName = Literal["auto", "match", "rejection", "block", "typical"]
BRIDGES = ("auto", "text", "vocabulary")
RULE_NAMES: tuple[RuleName, ...] = ("auto", "match", "rejection", "block", "typical")

_T = TypeVar("_T")
_Check = tuple[str, Callable[[Any], bool]]


def _number(low: float, high: float = math.inf, *, above: bool = False) -> _Check:
    bounds = f"{'above' if above else 'at least'} {low:g}"
    if high != math.inf:
        bounds += f" and at most {high:g}"

    def holds(value: Any) -> bool:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and math.isfinite(value) and (value > low or (value == low and not above)) and value <= high

    return f"must be a number {bounds}", holds


def _whole(low: int, high: int | None = None) -> _Check:
    bounds = f"at least {low}" if high is None else f"from {low} to {high}"

    def holds(value: Any) -> bool:
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return is_whole and value >= low and (high is None or value <= high)

    return f"must be a whole number {bounds}", holds


def _optional(check: _Check) -> _Check:
    rule, holds = check
    return f"{rule}, or none", lambda value: value is None or holds(value)


def _each(what: str, holds: Callable[[Any], bool]) -> _Check:
    return f"must be a sequence of {what}", lambda value: isinstance(value, tuple | list) and all(map(holds, value))


def _is_token(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


_FLAG: _Check = ("must be true or false", lambda value: isinstance(value, bool))


def _verify(owner: object, checks: Mapping[str, _Check], error: Callable[[str, str, object], GamanehError]) -> None:
    for name, (rule, holds) in checks.items():
        value = getattr(owner, name)
        if not holds(value):
            raise error(name, rule, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    Args:
        temperature: 0 is greedy; ties go to the lowest token id.
        top_k: keep the k most likely tokens; 0 keeps all.
        top_p: keep the smallest set of most likely tokens that holds this much probability.
        min_p: keep tokens at least this likely relative to the most likely one.
        repetition_penalty: divide (positive) or multiply (negative) logits of tokens already seen
            in prompt or output.
        presence_penalty: subtract once from tokens already in the output.
        frequency_penalty: subtract once for each time the token is in the output.
        logit_bias: token id -> number added to its logit.
        seed: the same seed gives the same tokens whatever the batch or proposer; None draws one. Rules other than
            `match` take one only with a fixed draft length, on which their tokens depend.
        stop: texts that end the output; they are not returned.
        stop_token_ids: tokens that end the output, beside the model's own end tokens.
        max_tokens: most tokens to emit; None goes on to the end of the context.
        min_tokens: no end token before this many were emitted.
        ignore_eos: treat the model's end tokens as ordinary ones.
        logprobs: how many most likely tokens to report beside each emitted one; None reports none.
        prompt_logprobs: the same for the prompt's tokens.
        bad_words: token sequences that must not be emitted.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    max_tokens: int | None = 256
    min_tokens: int = 0
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        _verify(self, _SAMPLING_CHECKS, InvalidRequest)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest("min_tokens", f"must be at most max_tokens ({self.max_tokens})", self.min_tokens)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _is_bias(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        _is_token(key) and _number(-math.inf)[1](bias) for key, bias in value.items()
    )


_SAMPLING_CHECKS: Mapping[str, _Check] = {
    "temperature": _number(0.0, 100.0),
    "top_k": _whole(0),
    "top_p": _number(0.0, 1.0, above=True),
    "min_p": _number(0.0, 1.0),
    "repetition_penalty": _number(0.01, 100.0),
    "presence_penalty": _number(-2.0, 2.0),
    "frequency_penalty": _number(-2.0, 2.0),
    "logit_bias": ("must map token ids to finite numbers", _is_bias),
    "seed": _optional(_whole(-(2**63), 2**64 - 1)),
    "stop": _each("non-empty texts", lambda text: isinstance(text, str) and text != ""),
    "stop_token_ids": _each("token ids", _is_token),
    "max_tokens": _optional(_whole(0)),
    "min_tokens": _whole(0),
    "ignore_eos": _FLAG,
    "logprobs": _optional(_whole(0, 100)),
    "prompt_logprobs": _optional(_whole(0, 100)),
    "bad_words": _each(
        "non-empty sequences of token ids",
        lambda word: isinstance(word, tuple | list) and len(word) > 0 and all(map(_is_token, word)),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions:
    """How the engine speculates; a request may narrow it.

    Args:
        proposer: name in the proposer registry; `auto` takes whichever pays in each round, `none` is plain decoding.
        draft_length: fixed number of candidates; None adapts it, 0 included.
        max_draft_length: longest draft the controller may choose.
        rule: how candidates are accepted; `auto` picks an exact one.
        draft_sampling: `request` samples the draft model or the heads as the request samples the target;
            `greedy` always takes their most likely token.
        min_confidence: a draft model, and heads that draft step by step, stop when their own probability falls below
            this.
        draft_branching: candidates on each level of drafts, where the rule takes trees; None for 1, and for 3 of heads
            that guess all positions at once and know how good their guesses are.
        bridge: how a draft model with another tokenizer is understood: `text` reads again what it writes,
            `vocabulary` lets it say only tokens that both have, `auto` chooses.
        max_ngram, min_ngram: longest and shortest suffix that prompt lookup looks for.
        exit_layer: layers of the target that the proposer `early_exit` drafts with; None measures which.
        suffix_depth: longest ending that the proposer `suffix` looks for.
        suffix_share: its drafts end where their continuations are less frequent, all together, than this share.
        suffix_tokens: most tokens of earlier answers that it keeps; 0 keeps none.
        suffix_store: file that it keeps them in; None forgets them with the process.
        merge: `auto` may also merge the drafts of several proposers in one tree.
        epsilon, delta: thresholds of the approximate rule `typical`.
    """

    proposer: str = "none"
    draft_length: int | None = None
    max_draft_length: int = 15
    rule: RuleName = "auto"
    draft_sampling: Literal["request", "greedy"] = "request"
    min_confidence: float = 0.3
    draft_branching: int | None = None
    bridge: Literal["auto", "text", "vocabulary"] = "auto"
    max_ngram: int = 8
    min_ngram: int = 2
    exit_layer: int | None = None
    suffix_depth: int = 32
    suffix_share: float = 0.25
    suffix_tokens: int = 100_000
    suffix_store: str | None = None
    merge: bool = False
    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        _verify(self, _SPECULATION_CHECKS, InvalidOption)
        if self.min_ngram > self.max_ngram:
            raise InvalidOption("min_ngram", f"must be at most max_ngram ({self.max_ngram})", self.min_ngram)
        if self.suffix_store is not None and self.suffix_tokens == 0:
            raise InvalidOption("suffix_store", "needs suffix_tokens above 0", self.suffix_store)
        if self.draft_length is not None and self.draft_length > self.max_draft_length:
            raise InvalidOption(
                "draft_length", f"must be at most max_draft_length ({self.max_draft_length})", self.draft_length
            )


_SPECULATION_CHECKS: Mapping[str, _Check] = {
    "proposer": ("must be a name", lambda value: isinstance(value, str) and value != ""),
    "draft_length": _optional(_whole(0, 128)),
    "max_draft_length": _whole(1, 128),
    "rule": (f"must be one of {', '.join(RULE_NAMES)}", lambda value: value in RULE_NAMES),
    "draft_sampling": ("must be request or greedy", lambda value: value in ("request", "greedy")),
    "min_confidence": _number(0.0, 1.0),
    "draft_branching": _optional(_whole(1, 16)),
    "bridge": (f"must be one of {', '.join(BRIDGES)}", lambda value: value in BRIDGES),
    "max_ngram": _whole(1, 64),
    "min_ngram": _whole(1, 64),
    "exit_layer": _optional(_whole(1)),
    "suffix_depth": _whole(2, 256),
    "suffix_share": _number(0.0, 1.0),
    "suffix_tokens": _whole(0, 100_000_000),
    "suffix_store": _optional(("must be a path", lambda value: isinstance(value, str) and value != "")),
    "merge": _FLAG,
    "epsilon": _number(0.0, 1.0, above=True),
    "delta": _number(0.0, above=True),
}


WEIGHTS = ("auto", "stored", "float32", "bfloat16", "int8", "int4")
"""How weights may be kept; `stored` is as the file has them."""

NUMBERS = ("auto", "float32", "bfloat16")
"""Types of numbers that may be asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """How one model's numbers are kept and computed; a backend refuses what it does not have.

    Args:
        weights: one of `WEIGHTS`; `auto` leaves it to the backend and the device.
        compute: of the arithmetic, one of `NUMBERS`; `auto` goes with the weights.
        kv: of the keys and values that are kept, one of `NUMBERS`; `auto` goes with the arithmetic.
    """

    weights: str = "auto"
    compute: str = "auto"
    kv: str = "auto"

    def __post_init__(self) -> None:
        _verify(self, _PRECISION_CHECKS, InvalidOption)


def _among(names: Sequence[str]) -> _Check:
    return f"must be one of {', '.join(names)}", lambda value: value in list(names)


_PRECISION_CHECKS: Mapping[str, _Check] = {
    "weights": _among(WEIGHTS),
    "compute": _among(NUMBERS),
    "kv": _among(NUMBERS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Limits and execution of the engine.

    Args:
        max_batch: most requests that run at once.
        step_tokens: most token rows in one target forward.
        max_context: most tokens of one request; None takes the model's.
        block_size: tokens in one block of the KV cache.
        kv_blocks: blocks in the target's KV cache; None sizes it for `max_batch` and the memory.
        prefix_cache: reuse the KV of equal prompt prefixes.
        invariant: shape-invariant execution; None chooses by device and dtype.
    """

    max_batch: int = 16
    step_tokens: int = 512
    max_context: int | None = None
    block_size: int = 16
    kv_blocks: int | None = None
    prefix_cache: bool = True
    invariant: bool | None = None

    def __post_init__(self) -> None:
        _verify(self, _ENGINE_CHECKS, InvalidOption)
        if self.step_tokens < self.max_batch:
            raise InvalidOption("step_tokens", f"must be at least max_batch ({self.max_batch})", self.step_tokens)


_ENGINE_CHECKS: Mapping[str, _Check] = {
    "max_batch": _whole(1, 4096),
    "step_tokens": _whole(1, 1 << 20),
    "max_context": _optional(_whole(2)),
    "block_size": _whole(1, 1024),
    "kv_blocks": _optional(_whole(1)),
    "prefix_cache": _FLAG,
    "invariant": ("must be true, false or none", lambda value: value is None or isinstance(value, bool)),
}


def from_mapping(kind: type[_T], values: Mapping[str, Any]) -> _T:
    """Build an options object from a mapping; an unknown key is refused by name.

    Raises:
        InvalidOption: a key is not an option of `kind`.
    """
    known = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise InvalidOption(key, f"is not an option of {kind.__name__}; known: {', '.join(known)}", values[key])
    return kind(**values)
