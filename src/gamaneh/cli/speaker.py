"""Who answers in `gamaneh chat`: a model in this process, or a server with the same API as ours."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Protocol

from gamaneh.core import AUTO, PLAIN, Origin
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.options import Drafting, SamplingParams

if TYPE_CHECKING:
    import httpx

    from gamaneh.core import StepReport
    from gamaneh.engine.llm import LLM
    from gamaneh.metrics.timeline import RequestTimeline

Message = Mapping[str, str]
"""`role` and `content`."""

Settings = Mapping[str, Any]
"""Fields of `SamplingParams` and `Drafting` that were set -> their values."""

KEY_VARIABLE = "GAMANEH_API_KEY"
CONNECT_SECONDS, SILENT_SECONDS = 10.0, 600.0

DRAFTING = tuple(entry.name for entry in fields(Drafting))


@dataclass(frozen=True, slots=True)
class SpokenToken:
    """A token of an answer.

    Args:
        drafter: who drafted it, where it is an accepted candidate; empty where that is not known.
        refused: texts of the candidates that were refused in its place.
    """

    text: str
    origin: Origin
    drafter: str = ""
    refused: tuple[str, ...] = ()


@dataclass(slots=True)
class Spoken:
    """What is known of one answer; it grows while the answer comes.

    Args:
        by_proposer: proposer -> (candidates drafted, accepted).
        cached: tokens of the prompt that the prefix cache held; None where that is not known.
        plain_seconds, round_seconds: what plain decoding would have taken by measured costs, and what the rounds took.
    """

    text: str = ""
    tokens: list[SpokenToken] = field(default_factory=list)
    rounds: int = 0
    by_proposer: dict[str, tuple[int, int]] = field(default_factory=dict)
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached: int | None = None
    plain_seconds: float | None = None
    round_seconds: float = 0.0
    exact: bool = True

    @property
    def drafted(self) -> int:
        return sum(drafted for drafted, _ in self.by_proposer.values())

    @property
    def accepted(self) -> int:
        return sum(accepted for _, accepted in self.by_proposer.values())


class Speaker(Protocol):
    """Answers conversations."""

    name: str

    def check(self, settings: Settings) -> None:
        """
        Raises:
            GamanehError: a setting breaks a rule.
        """

    def answer(self, messages: Sequence[Message], settings: Settings, spoken: Spoken) -> Iterator[list[SpokenToken]]:
        """Fill `spoken` and yield tokens as they come; closing the iterator stops the answer.

        Raises:
            GamanehError: the request breaks a rule, or the answer failed.
        """


class LocalSpeaker:
    """A model in this process. Its prefix cache holds what the conversation has been so far."""

    def __init__(self, llm: LLM, name: str) -> None:
        self.llm, self.name = llm, name
        self._reports: list[StepReport] = []
        self._timelines: list[RequestTimeline] = []
        llm.engine.observers.append(self._reports.append)
        llm.engine.request_observers.append(self._timelines.append)

    def check(self, settings: Settings) -> None:
        """Also refuse proposers that this engine does not have."""
        _params(settings)
        _check_proposer(self._drafting(settings).proposer, self.llm.engine.proposers)

    def answer(self, messages: Sequence[Message], settings: Settings, spoken: Spoken) -> Iterator[list[SpokenToken]]:
        """Put the conversation into the model's chat template and stream the answer."""
        from gamaneh.sampling.rules import is_exact

        self._reports.clear()
        self._timelines.clear()
        ids = self.llm.tokenizer.chat(messages)
        spoken.prompt_tokens = len(ids)
        ended = 0  # rounds whose tokens were told; the first token comes from reading the prompt
        try:
            with closing(self.llm.stream(ids, _params(settings), speculation=self._drafting(settings))) as steps:  # type: ignore[type-var]
                for step in steps:
                    if step.error is not None:
                        raise GamanehError(step.error)
                    told = []
                    for text, origin, refused in zip(step.texts, step.origins, step.refused, strict=True):
                        told.append(SpokenToken(text, origin, self._drafter(origin, ended), self._words(refused)))
                        ended += origin is not Origin.ACCEPTED
                    spoken.tokens += told
                    spoken.text += step.text
                    spoken.finish_reason = step.finish_reason
                    yield told
        finally:
            self._sum_up(spoken)
            spoken.exact = all(is_exact(report.rule) for report in self._reports)

    def _words(self, tokens: Sequence[int]) -> tuple[str, ...]:
        return tuple(self.llm.tokenizer.decode([token]) for token in tokens)

    def _drafter(self, origin: Origin, ended: int) -> str:
        """Who drafted a token of the round that follows those that have ended."""
        if origin is not Origin.ACCEPTED or not 0 < ended <= len(self._reports):
            return ""
        return self._reports[ended - 1].proposer

    def _sum_up(self, spoken: Spoken) -> None:
        from gamaneh.engine.request_stats import RequestStats

        stats, cost = RequestStats(), self.llm.engine.cost
        for report in self._reports:
            stats.add(report, cost.verify_seconds(report.batch_size, batch=report.batch_size) if cost.verify else None)
        spoken.rounds = len(self._reports)
        spoken.by_proposer = {
            name: (each.drafted, each.accepted) for name, each in stats.by_proposer.items() if each.drafted
        }
        spoken.plain_seconds, spoken.round_seconds = stats.plain_seconds, stats.round_seconds
        spoken.cached = next((timeline.cached_tokens for timeline in self._timelines), None)

    def _drafting(self, settings: Settings) -> Drafting:
        usual = {name: getattr(self.llm.speculation, name) for name in DRAFTING}
        return Drafting(**usual | _split(settings)[1])


def _check_proposer(proposer: str, there: Iterable[str]) -> None:
    known = (PLAIN, AUTO, *there)
    if proposer not in known:
        raise InvalidOption("proposer", f"must be one of {', '.join(known)}", proposer)


def _split(settings: Settings) -> tuple[dict[str, Any], dict[str, Any]]:
    """Settings of sampling, and those of drafting."""
    drafting = {name: value for name, value in settings.items() if name in DRAFTING}
    return {name: value for name, value in settings.items() if name not in drafting}, drafting


def _params(settings: Settings) -> SamplingParams:
    return SamplingParams(**_split(settings)[0])


class RemoteSpeaker:
    """A server at an address; what it tells of speculation is there only if it is ours.

    Args:
        url: of the server, with or without `/v1`.
        model: the name to ask for; empty asks the server what it serves.

    Raises:
        GamanehError: the server cannot be reached, or refuses to be asked.
    """

    def __init__(self, url: str, model: str = "", transport: httpx.BaseTransport | None = None) -> None:
        import httpx

        key = os.environ.get(KEY_VARIABLE)
        self._http = httpx.Client(
            base_url=url.rstrip("/").removesuffix("/v1"),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(SILENT_SECONDS, connect=CONNECT_SECONDS),
            transport=transport,
        )
        served = self._models()
        self.name = model or served["id"]
        self._proposers: list[str] | None = served.get("proposers")  # told by servers of our kind

    def _models(self) -> dict[str, Any]:
        import httpx

        try:
            response = self._http.get("/v1/models")
            _check(response)
            first: dict[str, Any] = response.json()["data"][0]
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise GamanehError(f"the server at {self._http.base_url} cannot be reached: {error}") from error
        except (ValueError, LookupError, TypeError) as error:
            raise GamanehError(f"the server at {self._http.base_url} must list its models at /v1/models") from error
        return first

    def check(self, settings: Settings) -> None:
        """Refuse what no server could take; the server knows its own limits."""
        _params(settings)
        drafting = Drafting(**_split(settings)[1])
        if self._proposers is not None:
            _check_proposer(drafting.proposer, self._proposers)

    def answer(self, messages: Sequence[Message], settings: Settings, spoken: Spoken) -> Iterator[list[SpokenToken]]:
        """Ask with a stream; leaving it closes the connection, which stops the answer."""
        import httpx

        body = self._body(messages, settings)
        try:
            with self._http.stream("POST", "/v1/chat/completions", json=body) as response:
                if response.is_error:
                    response.read()
                _check(response)
                for line in response.iter_lines():
                    if line.startswith("data:") and (data := line[5:].strip()) != "[DONE]":
                        yield self._take(json.loads(data), spoken)
        except httpx.HTTPError as error:
            raise GamanehError(f"the connection to {self._http.base_url} broke: {error}") from error

    def _body(self, messages: Sequence[Message], settings: Settings) -> dict[str, Any]:
        asked, drafting = _split(settings)
        if "stop" in asked:
            asked["stop"] = list(asked["stop"])
        body = {"model": self.name, "messages": list(messages), "stream": True, **asked}
        body["stream_options"] = {"include_usage": True}
        if "draft_length" in drafting and drafting["draft_length"] is None:
            drafting["draft_length"] = "adaptive"
        if self._proposers is not None or drafting:
            body["speculation"] = {"tokens": True, "metrics": True, **drafting}
        return body

    def _take(self, chunk: Mapping[str, Any], spoken: Spoken) -> list[SpokenToken]:
        if "error" in chunk:
            raise GamanehError(chunk["error"].get("message", "the server failed"))
        choice: Mapping[str, Any] = next(iter(chunk.get("choices") or ()), {})
        text = (choice.get("delta") or {}).get("content") or ""
        ours = chunk.get("gamaneh") or {}
        spoken.text += text
        spoken.finish_reason = choice.get("finish_reason") or spoken.finish_reason
        spoken.tokens += [
            SpokenToken(each["text"], Origin(each["origin"]), refused=tuple(each["refused"]))
            for each in ours.get("tokens", ())
        ]
        if usage := chunk.get("usage"):
            spoken.prompt_tokens = usage["prompt_tokens"]
            spoken.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if counts := ours.get("speculation"):
            _count(counts, spoken)
        # The text and its tokens may come in different chunks: what is shown as it comes is the text.
        return [SpokenToken(text, Origin.PLAIN)] if text else []


def _count(counts: Mapping[str, Any], spoken: Spoken) -> None:
    spoken.rounds, spoken.exact = counts["rounds"], counts["exact"]
    spoken.by_proposer = {
        name: (each["drafted"], each["accepted"]) for name, each in counts["proposers"].items() if each["drafted"]
    }
    spoken.round_seconds = counts["seconds"]["draft"] + counts["seconds"]["verify"]
    speedup = counts["estimated_speedup"]
    spoken.plain_seconds = None if speedup is None else speedup * spoken.round_seconds


def _check(response: httpx.Response) -> None:
    """
    Raises:
        GamanehError: the server refused; with its own words if it has any.
    """
    if not response.is_error:
        return
    try:
        words = response.json()["error"]["message"]
    except (ValueError, LookupError, TypeError):
        words = response.reason_phrase
    raise GamanehError(f"the server answered {response.status_code}: {str(words)[:500]}")
