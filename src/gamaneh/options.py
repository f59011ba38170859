"""Options, each with one default. Everything is checked here, before it can do harm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

from gamaneh.checks import FLAG, Check, each, is_token, number, one_of, optional, text, verify, whole
from gamaneh.errors import InvalidOption, InvalidRequest

RuleName = Literal["auto", "match", "rejection", "block", "typical"]
RULE_NAMES: tuple[RuleName, ...] = ("auto", "match", "rejection", "block", "typical")

DraftSampling = Literal["request", "greedy"]
"""`request` draws candidates as the request draws its tokens, `greedy` takes the most likely ones."""

_T = TypeVar("_T")


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
        verify(self, _SAMPLING_CHECKS, InvalidRequest)
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise InvalidRequest("min_tokens", f"must be at most max_tokens ({self.max_tokens})", self.min_tokens)

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0


def _is_bias(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        is_token(key) and number(-math.inf)[1](bias) for key, bias in value.items()
    )


_SAMPLING_CHECKS: Mapping[str, Check] = {
    "temperature": number(0.0, 100.0),
    "top_k": whole(0),
    "top_p": number(0.0, 1.0, above=True),
    "min_p": number(0.0, 1.0),
    "repetition_penalty": number(0.01, 100.0),
    "presence_penalty": number(-2.0, 2.0),
    "frequency_penalty": number(-2.0, 2.0),
    "logit_bias": ("must map token ids to finite numbers", _is_bias),
    "seed": optional(whole(-(2**63), 2**64 - 1)),
    "stop": each("non-empty texts", lambda stop: isinstance(stop, str) and stop != ""),
    "stop_token_ids": each("token ids", is_token),
    "max_tokens": optional(whole(0)),
    "min_tokens": whole(0),
    "ignore_eos": FLAG,
    "logprobs": optional(whole(0, 100)),
    "prompt_logprobs": optional(whole(0, 100)),
    "bad_words": each(
        "non-empty sequences of token ids",
        lambda word: isinstance(word, tuple | list) and len(word) > 0 and all(map(is_token, word)),
    ),
}


KEEP_NO_SEED = ("rejection", "block", "typical")
"""Rules whose tokens depend on what was drafted; `auto` takes none of them for a request with a seed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """How one request drafts.

    Args:
        proposer: name in the proposer registry; `auto` takes whichever pays in each round, `none` is plain decoding.
        draft_length: fixed number of candidates; None adapts it, 0 included.
        max_draft_length: longest draft the controller may choose.
        rule: how candidates are accepted; `auto` picks an exact one.
        draft_sampling: `request` samples the draft model or the heads as the request samples the target;
            `greedy` always takes their most likely token.
        epsilon, delta: thresholds of the approximate rule `typical`.
    """

    proposer: str = "none"
    draft_length: int | None = None
    max_draft_length: int = 15
    rule: RuleName = "auto"
    draft_sampling: DraftSampling = "request"
    epsilon: float = 0.09
    delta: float = 0.3

    def __post_init__(self) -> None:
        verify(self, _DRAFTING_CHECKS)
        if self.draft_length is not None and self.draft_length > self.max_draft_length:
            raise InvalidOption(
                "draft_length", f"must be at most max_draft_length ({self.max_draft_length})", self.draft_length
            )

    def verify_seed(self, params: SamplingParams) -> None:
        """
        Raises:
            InvalidRequest: a seed would be accepted and not kept. Under rules that read probabilities, tokens depend on
                draft lengths, and lengths that adapt depend on time.
        """
        adapts = self.proposer != "none" and self.draft_length is None
        if params.seed is not None and not params.greedy and self.rule in KEEP_NO_SEED and adapts:
            reason = (
                f"must be left out with the rule {self.rule}, whose draws depend on draft lengths, unless draft_length"
            )
            raise InvalidRequest("seed", f"{reason} is fixed; the rule match keeps seeds", params.seed)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationOptions(Drafting):
    """How an engine speculates: how its requests draft that do not say otherwise, and what proposers are built with.

    Args:
        proposer_options: options of proposers by name, such as `{"min_confidence": 0.5}`. They are declared by the
            proposers that read them (see docs/proposers.md), and are checked when these are built: one that nobody
            would read is refused.
    """

    proposer_options: Mapping[str, Any] = field(default_factory=dict)


def asked_drafting(asked: Drafting | None, built: SpeculationOptions) -> Drafting:
    """What a request asks for, in an engine that was built with `built`; None asks for the same.

    Raises:
        InvalidRequest: it asks for an option of a proposer with another value than the proposer was built with.
    """
    if asked is None:
        return built
    mine = asked.proposer_options if isinstance(asked, SpeculationOptions) else {}
    for name, value in mine.items():
        if name not in built.proposer_options or built.proposer_options[name] != value:
            raise InvalidRequest(name, "must be given when the engine is built, not with a request", value)
    return asked


_DRAFTING_CHECKS: Mapping[str, Check] = {
    "proposer": text("name"),
    "draft_length": optional(whole(0, 128)),
    "max_draft_length": whole(1, 128),
    "rule": one_of(RULE_NAMES),
    "draft_sampling": ("must be request or greedy", lambda value: value in ("request", "greedy")),
    "epsilon": number(0.0, 1.0, above=True),
    "delta": number(0.0, above=True),
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
        verify(self, _PRECISION_CHECKS)


_PRECISION_CHECKS: Mapping[str, Check] = {
    "weights": one_of(WEIGHTS),
    "compute": one_of(NUMBERS),
    "kv": one_of(NUMBERS),
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
        verify(self, _ENGINE_CHECKS)
        if self.step_tokens < self.max_batch:
            raise InvalidOption("step_tokens", f"must be at least max_batch ({self.max_batch})", self.step_tokens)


_ENGINE_CHECKS: Mapping[str, Check] = {
    "max_batch": whole(1, 4096),
    "step_tokens": whole(1, 1 << 20),
    "max_context": optional(whole(2)),
    "block_size": whole(1, 1024),
    "kv_blocks": optional(whole(1)),
    "prefix_cache": FLAG,
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
