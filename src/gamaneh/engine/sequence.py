"""One request as the engine sees it."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from gamaneh.control.router import Features
from gamaneh.core import FinishReason, Origin, Request, Rule, TokenLogprob, TokenMask
from gamaneh.engine.detokenizer import Detokenizer
from gamaneh.engine.hidden import HiddenWindow
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.options import Drafting, SamplingParams
from gamaneh.sampling.pipeline import RequestSampler


@dataclass(frozen=True, slots=True)
class Untold:
    """One emitted token and what there is to tell about it, once its text is certain."""

    token: int
    origin: Origin
    refused: tuple[int, ...]
    logprob: TokenLogprob | None


@dataclass(slots=True, eq=False)
class SequenceState:
    """A request's tokens and what is needed to continue them.

    Args:
        request: what was asked for, checked, with its id and its way of drafting.
        tokens: prompt and emitted tokens. The *pending* ones are `tokens[cached_len:]`.
        cached_len: tokens whose rows are in the target's cache.
        limit: most tokens, prompt included.
        features: what the router knows it by.
        salt: keeps its prefixes apart from others'; the request's own, but for one that must read its whole prompt.
        mask: which tokens may come next, beside the sampling parameters.
        untold: emitted tokens whose text is not certain yet.
        hidden: tapped hidden states of the last tokens in the cache; None when no proposer reads them.
    """

    request: Request
    drafting: Drafting
    tokens: list[int]
    limit: int
    features: Features
    sampler: RequestSampler
    rule: Rule
    detokenizer: Detokenizer
    timeline: RequestTimeline
    end_ids: frozenset[int]
    salt: str
    mask: TokenMask | None = None
    cached_len: int = 0
    hidden: HiddenWindow | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    untold: deque[Untold] = field(default_factory=deque)

    @property
    def request_id(self) -> str:
        return self.request.id

    @property
    def params(self) -> SamplingParams:
        return self.request.params

    @property
    def prompt_len(self) -> int:
        return len(self.request.prompt)

    @property
    def num_pending(self) -> int:
        return len(self.tokens) - self.cached_len

    @property
    def num_emitted(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted."""
        return self.limit - len(self.tokens)

    @property
    def decoding(self) -> bool:
        """One token is pending and it was emitted: the request may draft."""
        return self.num_pending == 1 and self.num_emitted > 0

    @property
    def wants_prompt_logprobs(self) -> bool:
        return self.params.prompt_logprobs is not None and self.num_emitted == 0
