"""From the body of a request to the jobs of the engine: parsing and tokenising, in a thread of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from gamaneh.engine.async_engine import AsyncEngine
from gamaneh.errors import InvalidRequest
from gamaneh.options import SpeculationOptions
from gamaneh.sampling.grammar_mask import SupportsBytes
from gamaneh.server.access import Client
from gamaneh.server.answer_parser import opens_reasoning
from gamaneh.server.api_errors import ApiError, from_invalid_request, invalid
from gamaneh.server.chat import ChatChoice, Parts, template_messages, tools_in_words
from gamaneh.server.choice import Choice, Job, SupportsTokens
from gamaneh.server.completions import CompletionChoice
from gamaneh.server.constraints import Tools, grammar_of
from gamaneh.server.parameters import capped, for_choice, sampling_params, speculation_options
from gamaneh.server.schemas import (
    ChatRequest,
    CompletionRequest,
    Message,
    Reading,
    Sampling,
    SpeculationFields,
    parse,
    shown_value,
)
from gamaneh.server.server_options import ServerOptions

NO_WISHES = SpeculationFields()

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "tokenize", "chat_template"})
"""What a template is told by other fields than `chat_template_kwargs`."""

LONG_PROMPT = 1 << 16
"""Characters that are read in no time worth speaking of."""

_TAIL = 16
"""Tokens at the end of a prompt that tell whether it opens the reasoning."""


class ServedTokenizer(SupportsTokens, SupportsBytes, Protocol):
    """What the server needs of a tokenizer."""

    @property
    def reasons(self) -> bool: ...

    @property
    def takes_tools(self) -> bool: ...

    def encode(self, text: str, special: bool = True) -> list[int]: ...

    def fewest_tokens(self, text: str) -> int: ...

    def chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> list[int]: ...


@dataclass(frozen=True, slots=True)
class Prepared:
    """A request that is ready to be answered.

    Args:
        choices: the answers to be made; those to one prompt follow each other.
        per_prompt: answers to each prompt.
        unknown: fields of the request that were passed over.
    """

    request: Sampling
    choices: Sequence[Choice]
    per_prompt: int
    unknown: Sequence[str] = ()

    @property
    def wants(self) -> SpeculationFields:
        return self.request.speculation or NO_WISHES


class Preparation:
    """Turns bodies into jobs. May be used from several threads at once."""

    def __init__(self, engine: AsyncEngine, tokenizer: ServedTokenizer, model: str, options: ServerOptions) -> None:
        self.tokenizer, self.model, self.options = tokenizer, model, options
        self.max_context = engine.engine.max_context
        self.speculation: SpeculationOptions = engine.engine.speculation
        self.proposers = tuple(engine.engine.proposers)

    def completion(self, body: bytes, client: Client) -> Prepared:
        """A request to `/v1/completions`.

        Raises:
            ApiError: the request is wrong.
        """
        reading = self._reading()
        request = parse(CompletionRequest, body, reading)
        asked = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        with_prompt = request.logprobs or 0 if asked == 0 else request.logprobs
        shared = self._shared(
            request,
            client,
            max_tokens=asked,
            logprobs=request.logprobs,
            prompt_logprobs=with_prompt if request.echo else None,
        )
        prompts = [self._prompt(prompt) for prompt in request.prompt]
        jobs = self._jobs(request, prompts, shared)
        choices = [CompletionChoice(at, job, self.tokenizer, request) for at, job in enumerate(jobs)]
        return Prepared(request, choices, request.n or 1, reading.unknown)

    def chat(self, body: bytes, client: Client) -> Prepared:
        """A request to `/v1/chat/completions`.

        Raises:
            ApiError: the request is wrong.
        """
        reading = self._reading()
        request = parse(ChatRequest, body, reading)
        if request.top_logprobs and not request.logprobs:
            raise invalid("top_logprobs", f"top_logprobs needs logprobs to be true, got {request.logprobs}")
        asked = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
        shared = self._shared(
            request, client, max_tokens=asked, logprobs=(request.top_logprobs or 0) if request.logprobs else None
        )
        tools = Tools.of(request)
        prompt = _refusing(lambda: self._conversation(request, tools))
        self._check_length(prompt, "messages")
        if tools.forced:  # nothing but the end of a call ends it
            shared["params"] = replace(shared["params"], stop=(), stop_token_ids=())
        inside = self.tokenizer.reasons and opens_reasoning(self.tokenizer.decode(prompt[-_TAIL:], skip_special=False))
        shared["mask"] = _refusing(lambda: grammar_of(request, tools, self.tokenizer, inside=inside))
        jobs = self._jobs(request, [(prompt, None)], shared)
        parts = Parts(self.tokenizer.reasons, inside, bool(tools.offered), tools.parallel)
        choices = [ChatChoice(at, job, self.tokenizer, request, parts) for at, job in enumerate(jobs)]
        return Prepared(request, choices, request.n or 1, reading.unknown)

    def _reading(self) -> Reading:
        return Reading(warn=self.options.unknown_fields == "warn")

    def _conversation(self, request: ChatRequest, tools: Tools) -> list[int]:
        self._check_size((message.content or "" for message in request.messages), "messages")
        messages = template_messages(request.messages)
        variables = dict(request.chat_template_kwargs or {})
        for name in _RESERVED & variables.keys():
            field = f"chat_template_kwargs.{name}"
            raise invalid(field, f"{field} must not be given: the request says it elsewhere")
        if request.reasoning_effort is not None:
            variables = {"reasoning_effort": request.reasoning_effort, **variables}
        if not self.tokenizer.takes_tools:
            return self.tokenizer.chat(tools_in_words(messages, tools.offered), None, **variables)
        return self.tokenizer.chat(messages, tools.offered or None, **variables)

    def _shared(
        self,
        request: Sampling,
        client: Client,
        *,
        max_tokens: int | None,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
    ) -> dict[str, Any]:
        """What the jobs of a request have in common, as the fields of `Job`."""
        self._check(request)
        wants = request.speculation or NO_WISHES
        return {
            "params": _refusing(
                lambda: sampling_params(
                    request,
                    self.tokenizer,
                    max_tokens=capped(max_tokens, self.options.max_output_tokens),
                    logprobs=0 if logprobs is None and wants.tokens else logprobs,
                    prompt_logprobs=prompt_logprobs,
                )
            ),
            "speculation": speculation_options(request.speculation, self.speculation, self.proposers),
            "reference": self._reference(request),
            "salt": client.salt(request.cache_salt, share_answers=self.options.share_answers),
            "priority": request.priority or 0,
        }

    def _check(self, request: Sampling) -> None:
        if request.model not in (None, self.model):
            message = f"model must be {self.model}, got {shown_value(request.model)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        if request.stream_options is not None and not request.stream:
            raise invalid("stream_options", "stream_options needs stream to be true")

    def _jobs(
        self, request: Sampling, prompts: Sequence[tuple[list[int], str | None]], shared: Mapping[str, Any]
    ) -> list[Job]:
        per_prompt = request.n or 1
        count = per_prompt * len(prompts)
        if count > self.options.max_choices:
            raise invalid("n", f"n times the number of prompts must be at most {self.options.max_choices}, got {count}")
        if request.speculation is not None and request.speculation.tokens and count > 1:
            raise invalid("speculation.tokens", f"speculation.tokens needs a request for one answer, got {count}")
        params = shared["params"]
        return [
            Job(**{**shared, "prompt": ids, "text": text, "params": for_choice(params, choice)})
            for ids, text in prompts
            for choice in range(per_prompt)
        ]

    def _check_size(self, texts: Iterable[str], field: str) -> None:
        """Refuse what is too long whatever its tokens are, before it is read: that would take long."""
        given = list(texts)
        if sum(map(len, given)) < LONG_PROMPT:
            return
        fewest = sum(map(self.tokenizer.fewest_tokens, given))
        allowed = min(self.max_context, self.options.max_prompt_tokens or self.max_context)
        if fewest > allowed:
            message = f"{field} must have at most {allowed} tokens, got at least {fewest}"
            raise invalid(field, message, "context_length_exceeded" if fewest > self.max_context else "prompt_too_long")

    def read(self, text: str, *, special: bool) -> list[int]:
        """Token ids of a text.

        Raises:
            ApiError: 400, it is far longer than the context.
        """
        self._check_size([text], "prompt")
        return self.tokenizer.encode(text, special)

    def read_messages(self, messages: Sequence[Message]) -> list[int]:
        """Token ids of a conversation, up to where the answer begins.

        Raises:
            ApiError: 400, it is far longer than the context, or the chat template refuses it.
        """
        self._check_size((message.content or "" for message in messages), "messages")
        return _refusing(lambda: self.tokenizer.chat(template_messages(messages), None))

    def _prompt(self, prompt: str | list[int]) -> tuple[list[int], str | None]:
        if isinstance(prompt, str):
            self._check_size([prompt], "prompt")
        ids, text = (self.tokenizer.encode(prompt), prompt) if isinstance(prompt, str) else (prompt, None)
        self._check_length(ids, "prompt")
        return ids, text

    def _check_length(self, ids: Sequence[int], field: str) -> None:
        allowed = self.options.max_prompt_tokens
        if len(ids) >= self.max_context:
            message = (
                f"{field} must leave room for an answer: the context has {self.max_context} tokens, "
                f"got {len(ids)} tokens"
            )
            raise invalid(field, message, "context_length_exceeded")
        if allowed is not None and len(ids) > allowed:
            raise invalid(field, f"{field} must have at most {allowed} tokens, got {len(ids)}", "prompt_too_long")

    def _reference(self, request: Sampling) -> list[int]:
        if request.prediction is None:
            return []
        self._check_size([request.prediction.content], "prediction")
        return self.tokenizer.encode(request.prediction.content, special=False)


T = TypeVar("T")


def _refusing(make: Callable[[], T]) -> T:
    """What `make` makes; a refusal below becomes one of this request."""
    try:
        return make()
    except InvalidRequest as error:
        raise from_invalid_request(error) from error
