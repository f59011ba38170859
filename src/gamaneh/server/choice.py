"""One answer on its way: what the engine is asked for, what has come of it, and what there is to tell about it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from gamaneh.core import MaskSource, Origin, StepOutput
from gamaneh.engine.async_engine import RequestStream
from gamaneh.options import SamplingParams, SpeculationOptions

Delta = dict[str, Any]
"""An element of `choices` in a chunk; an element of `choices` in a response is folded from several."""

LOWEST = -9999.0
"""Stands for minus infinity, which JSON does not have."""

MATCH = 3
"""Tokens in a row that the prediction must hold too, for a candidate to count as taken from it."""


class SupportsTokens(Protocol):
    """The part of a tokenizer that is needed to show its tokens."""

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str: ...

    def token_bytes(self, token: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Job:
    """What the engine is asked for.

    Args:
        reference: token ids of a text that the answer is likely to repeat.
        salt: answers with different salts share no cached prefixes.
        mask: restricts the output.
        text: the prompt as text, where it was one.
    """

    prompt: Sequence[int]
    params: SamplingParams
    speculation: SpeculationOptions
    reference: Sequence[int] = ()
    salt: str = ""
    mask: MaskSource | None = None
    priority: int = 0
    text: str | None = None


class Choice(ABC):
    """One answer of a request, from its job to its last token.

    Attributes:
        stream: what the engine brings; None before it was asked.
        ended: nothing more comes.
        emitted: its tokens so far, by origin.
    """

    kind: ClassVar[str]
    chunk_kind: ClassVar[str]

    def __init__(self, index: int, job: Job, tokenizer: SupportsTokens) -> None:
        self.index, self.job, self.tokenizer = index, job, tokenizer
        self.stream: RequestStream | None = None
        self.ended = False
        self.emitted: Counter[Origin] = Counter()
        self.prediction = PredictionCount(job)
        self.pieces: list[str] = []

    @property
    def reasoning_tokens(self) -> int:
        """Tokens so far whose text was put as reasoning."""
        return 0

    def count(self, output: StepOutput, *, keep_text: bool) -> None:
        """Count what one step brings; `keep_text` keeps what is said, for the log."""
        self.emitted.update(output.emitted)
        self.prediction.add(output)
        if keep_text:
            self.pieces.append(output.text)

    @abstractmethod
    def deltas(self, output: StepOutput, *, always: bool) -> list[Delta]:
        """What one step adds; the last delta has the finish reason if the answer has ended.

        Args:
            always: at least one delta, even if it says nothing.
        """

    @abstractmethod
    def fold(self, deltas: Sequence[Delta]) -> Delta:
        """All deltas of this answer in one."""

    def told(self, output: StepOutput) -> list[dict[str, Any]]:
        """The elements of `gamaneh.tokens` of one step: its tokens, with what was refused in their place.

        The texts of all of them joined are the text of the output: a token that is a part of a character
        is empty, and the one that completes it holds all of it. Where answers are shared with callers whom nobody
        can tell apart, refused candidates are not told: they may be from another's answer.
        """
        shared = not self.job.salt
        tokens = zip(output.texts, output.origins, output.logprobs, output.refused, strict=True)
        return [
            {
                "text": text,
                "origin": origin.value,
                "logprob": finite(entry.logprob),
                "refused": [] if shared else [shown(self.tokenizer, candidate) for candidate in refused],
            }
            for text, origin, entry, refused in tokens
        ]


class PredictionCount:
    """Candidates that continue the text of a prediction: how many were accepted, how many refused."""

    def __init__(self, job: Job) -> None:
        reference = tuple(job.reference)
        self._known = {reference[at : at + MATCH] for at in range(len(reference) - MATCH + 1)}
        self._tail = tuple(job.prompt[-(MATCH - 1) :])
        self.accepted = 0
        self.rejected = 0

    def add(self, output: StepOutput) -> None:
        """Count the tokens that one step tells."""
        if not self._known:
            return
        for token, origin, refused in zip(output.tokens, output.origins, output.refused, strict=True):
            if origin is Origin.ACCEPTED:
                self.accepted += self._predicted(self._tail, token)
            before = self._tail
            for candidate in refused:
                self.rejected += self._predicted(before, candidate)
                before = _after(before, candidate)
            self._tail = _after(self._tail, token)

    def _predicted(self, before: tuple[int, ...], token: int) -> bool:
        return (*before, token) in self._known


def shown(tokenizer: SupportsTokens, token: int, cut: int = 0) -> str:
    """Text of one token; a part of a character is spelled as `bytes:` and its hexadecimal codes.

    Args:
        cut: bytes at its end that belong to a stop text and are left out.
    """
    data = token_bytes(tokenizer, token, cut)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def token_bytes(tokenizer: SupportsTokens, token: int, cut: int = 0) -> bytes:
    """Bytes of one token without the last `cut` ones."""
    data = tokenizer.token_bytes(token)
    return data[: len(data) - cut]


def cuts(output: StepOutput) -> list[int]:
    """For each token that a step tells, the bytes at its end that belong to a stop text."""
    return [*[0] * (len(output.tokens) - 1), output.cut][: len(output.tokens)]


def finite(logprob: float) -> float:
    """The log-probability, no lower than JSON allows."""
    return max(logprob, LOWEST)


def _after(before: tuple[int, ...], token: int) -> tuple[int, ...]:
    return (*before, token)[-(MATCH - 1) :]
