"""When one request was where: the marks that the engine makes, and the times that follow from them."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from gamaneh.core import FinishReason


@dataclass(slots=True)
class RequestTimeline:
    """Marks of one request, in seconds of the engine's clock.

    A time that is not known, because the request ended before, is None.

    Args:
        prompt_tokens: length of the prompt.
        proposer: the one that the request asked for.
        arrived: when it was handed in.
        scheduled: when it was first taken into the batch.
        cached_tokens: prompt tokens that the prefix cache held then.
        token_times: when each emitted token was there; tokens of one round share their time.
        preempted: when it had to give its blocks back, each time.
        finished: when it ended, for `finish_reason`.
    """

    request_id: str
    prompt_tokens: int
    proposer: str
    arrived: float
    scheduled: float | None = None
    cached_tokens: int = 0
    token_times: list[float] = field(default_factory=list)
    preempted: list[float] = field(default_factory=list)
    finished: float | None = None
    finish_reason: FinishReason | None = None

    def admit(self, cached_tokens: int, at: float) -> None:
        """The request is in the batch; only the first time counts."""
        if self.scheduled is None:
            self.scheduled, self.cached_tokens = at, cached_tokens

    def preempt(self, at: float) -> None:
        """The request is out of the batch again."""
        self.preempted.append(at)

    def deliver(self, count: int, at: float) -> None:
        """A round that ended at `at` emitted `count` tokens, or none."""
        self.token_times += [at] * count

    def finish(self, reason: FinishReason, at: float) -> None:
        """The request has ended."""
        self.finished, self.finish_reason = at, reason

    @property
    def output_tokens(self) -> int:
        return len(self.token_times)

    @property
    def first_token(self) -> float | None:
        return self.token_times[0] if self.token_times else None

    @property
    def last_token(self) -> float | None:
        return self.token_times[-1] if self.token_times else None

    @property
    def queue_seconds(self) -> float | None:
        """scheduled - arrived."""
        return _between(self.arrived, self.scheduled)

    @property
    def prefill_seconds(self) -> float | None:
        """first token - scheduled."""
        return _between(self.scheduled, self.first_token)

    @property
    def decode_seconds(self) -> float | None:
        """last token - first token."""
        return _between(self.first_token, self.last_token)

    @property
    def ttft(self) -> float | None:
        """Time to first token: first token - arrived."""
        return _between(self.arrived, self.first_token)

    @property
    def e2e(self) -> float | None:
        """End-to-end latency: finished - arrived."""
        return _between(self.arrived, self.finished)

    @property
    def tpot(self) -> float | None:
        """Time per output token: (finished - first token) / (tokens - 1); None below two tokens."""
        decoding = _between(self.first_token, self.finished)
        return None if decoding is None or self.output_tokens < 2 else decoding / (self.output_tokens - 1)

    @property
    def inter_token_latencies(self) -> list[float]:
        """ITL: the gaps between one delivery of tokens and the next.

        The tokens of one round arrive together and are one delivery: gaps of nothing between them
        would make any percentile look good.
        """
        deliveries = dict.fromkeys(self.token_times)
        return [later - earlier for earlier, later in pairwise(deliveries)]


def _between(earlier: float | None, later: float | None) -> float | None:
    return None if earlier is None or later is None else later - earlier
