"""`LLM`: models, prompts in, texts out. A thin shell over the engine."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path

from gamaneh.backends.choose import check_block_size, load, open_for
from gamaneh.core import AUTO, PLAIN, FinishReason, MaskSource, Origin, Request, StepOutput, StepReport, TokenLogprob
from gamaneh.engine.assembly import build_engine, check_devices
from gamaneh.engine.engine import Engine
from gamaneh.errors import InvalidRequest
from gamaneh.heads.artifact import Artifact
from gamaneh.heads.locate import HeadsSource, check_heads, open_heads
from gamaneh.models.loading import DRAFT, TARGET, LoadedModel, OpenModel, Role
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.options import Drafting, EngineOptions, Precision, SamplingParams, SpeculationOptions
from gamaneh.proposers.registry import ALL_OF_THEM, REGISTRY

LOGGER = logging.getLogger(__name__)

Prompt = str | Sequence[int]
Model = str | Path | LoadedModel


@dataclass(slots=True)
class Generation:
    """The answer to one prompt.

    Args:
        tokens: those of `text`: without the end token, and without those of a stop text.
        origins: where each of them came from.
        error: what was wrong with the request, when `finish_reason` is `error`.
        reports: one per round; the first token comes from reading the prompt and has none.
        seconds: from the call to the last token; `first_token_seconds` to the first.
    """

    request_id: str
    prompt_tokens: list[int]
    tokens: list[int] = field(default_factory=list)
    origins: list[Origin] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] | None = None
    error: str | None = None
    reports: list[StepReport] = field(default_factory=list)
    seconds: float = 0.0
    first_token_seconds: float = 0.0

    def take(self, output: StepOutput, elapsed: float) -> None:
        """Add what one step brought."""
        if output.tokens and not self.tokens:
            self.first_token_seconds = elapsed
        self.tokens += output.tokens
        self.origins += output.origins
        self.text += output.text
        self.logprobs += output.logprobs
        if output.prompt_logprobs is not None:
            self.prompt_logprobs = list(output.prompt_logprobs)
        if output.finish_reason is not None:
            self.finish_reason, self.error, self.seconds = output.finish_reason, output.error, elapsed


@dataclass(slots=True)
class _Inbox:
    """What the engine brought for one request and nobody has taken yet, and all its reports."""

    outputs: list[StepOutput] = field(default_factory=list)
    reports: list[StepReport] = field(default_factory=list)

    def take(self) -> list[StepOutput]:
        outputs, self.outputs = self.outputs, []
        return outputs


class LLM:
    """A target model, with a draft model or not, ready to generate.

    Args:
        model: folder, hub id, `.gguf` file or catalogue name; or a model that is loaded already.
        draft_model: the same, for the proposer `draft_model`.
        heads: folders of trained heads, or names of heads that come with the package; each is a proposer named after
            its kind.
        speculation: how to speculate; by default with the draft model or the heads, if there are any, else not. A
            warning is logged where it does without those that were given.
        options: limits of the engine.
        precision, device: of the target.
        draft_precision: of the draft model; None for the target's.
        draft_device: device of the draft model; None for the target's.
        backend: `compiled` for CPUs, `torch` for any device, `hf` for what only `transformers` knows, or `auto`:
            compiled where it can run.
        progress: called with (done, total) bytes or tensors while a model loads.

    Raises:
        ModelError: a model cannot be found, read or used, or the tokenizers differ.
        InvalidOption: an option breaks a rule.
    """

    def __init__(
        self,
        model: Model,
        *,
        draft_model: Model | None = None,
        heads: Sequence[HeadsSource] = (),
        speculation: SpeculationOptions | None = None,
        options: EngineOptions | None = None,
        precision: Precision | None = None,
        draft_precision: Precision | None = None,
        device: str = "auto",
        draft_device: str | None = None,
        backend: str = "auto",
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        check_devices(draft_device, draft_model)
        # Everything is opened before the weights of anything are read, so that mistakes are told at once.
        check_heads(heads)
        self.options = options or EngineOptions()
        if not isinstance(model, LoadedModel):
            check_block_size(self.options.block_size, precision, backend, device)
        target = _opened(model, backend, TARGET)
        draft = None if draft_model is None else _opened(draft_model, backend, DRAFT)
        self.loaded = _loaded(target, TARGET, precision, backend, device, progress)
        draft_device = draft_device or str(self.loaded.device)
        of_draft = draft_precision or precision
        self.draft = None if draft is None else _loaded(draft, DRAFT, of_draft, backend, draft_device, progress)
        self.heads = open_heads(heads, self.loaded)
        self.speculation = speculation or SpeculationOptions(proposer=_usual_proposer(self.draft, self.heads))
        _warn_of_unused(self.speculation, self.draft, self.heads)
        self._start()

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.tokenizer

    def with_speculation(self, speculation: SpeculationOptions) -> LLM:
        """Another engine over the same weights."""
        other = copy(self)
        other.speculation = speculation
        other._start()
        return other

    def _start(self) -> None:
        self.engine: Engine = build_engine(self.loaded, self.draft, self.speculation, self.options, heads=self.heads)
        self._open: dict[str, _Inbox] = {}
        self.engine.observers.append(_collector(self._open))

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        references: Sequence[str | None] | None = None,
        speculation: Drafting | None = None,
        mask: MaskSource | None = None,
        salt: str = "",
    ) -> list[Generation]:
        """Answer all prompts, batched; one `Generation` each, in order.

        A request that breaks a rule has `error` set; the others are served.

        Args:
            references: texts that the outputs are likely to repeat, for prompt lookup.
            speculation: how these requests draft, instead of as this object was told.
            mask: restricts all outputs, for example a `Grammar`.
            salt: requests with different salts share no cached prefixes and no answers to guess from.
        """
        prompts = _as_list(prompts)
        each = [params or SamplingParams()] * len(prompts) if not isinstance(params, Sequence) else list(params)
        texts = [None] * len(prompts) if references is None else list(references)
        if not len(prompts) == len(each) == len(texts):
            counts = f"{len(each)} params and {len(texts)} references for {len(prompts)} prompts"
            raise InvalidRequest("params", "and references must match the prompts in number", counts)
        started = time.perf_counter()
        generations = [
            self._add(prompt, own, text, speculation, mask, salt)
            for prompt, own, text in zip(prompts, each, texts, strict=True)
        ]
        asked = {generation.request_id: generation for generation in generations if generation.error is None}
        try:
            while any(generation.finish_reason is None for generation in asked.values()):
                self._step()
                for request_id, generation in asked.items():
                    for output in self._open[request_id].take():
                        generation.take(output, time.perf_counter() - started)
        finally:
            for request_id, generation in asked.items():
                generation.reports = self._close(request_id)
        return generations

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        reference: str | None = None,
        speculation: Drafting | None = None,
        mask: MaskSource | None = None,
        salt: str = "",
    ) -> Iterator[StepOutput]:
        """Answer one prompt step by step; closing the iterator stops the request.

        Args:
            reference, speculation, mask, salt: as in `generate`.

        Raises:
            InvalidRequest: the request breaks a rule.
        """
        request_id = self._queue(prompt, params or SamplingParams(), reference, speculation, mask, salt)
        try:
            while True:
                for output in self._open[request_id].take():
                    yield output
                    if output.finish_reason is not None:
                        return
                self._step()
        finally:
            self._close(request_id)

    def _step(self) -> None:
        """One step of the engine; what it brings waits for whoever asked, as several may be answered at once."""
        for output in self.engine.step():
            if output.request_id in self._open:
                self._open[output.request_id].outputs.append(output)

    def _close(self, request_id: str) -> list[StepReport]:
        """Stop a request, if it has not ended, and return its reports."""
        self.engine.abort(request_id)
        return self._open.pop(request_id).reports

    def _queue(
        self,
        prompt: Prompt,
        params: SamplingParams,
        reference: str | None,
        speculation: Drafting | None,
        mask: MaskSource | None,
        salt: str,
    ) -> str:
        request_id = self.engine.add(
            Request(
                self._ids(prompt),
                params,
                drafting=speculation,
                reference=self._reference_ids(reference),
                mask=mask,
                salt=salt,
            )
        )
        self._open[request_id] = _Inbox()
        return request_id

    def _add(
        self,
        prompt: Prompt,
        params: SamplingParams,
        reference: str | None,
        speculation: Drafting | None,
        mask: MaskSource | None,
        salt: str,
    ) -> Generation:
        ids = self._ids(prompt)
        try:
            return Generation(self._queue(ids, params, reference, speculation, mask, salt), ids)
        except InvalidRequest as error:
            return Generation("", ids, finish_reason=FinishReason.ERROR, error=str(error))

    def _ids(self, prompt: Prompt) -> list[int]:
        return self.tokenizer.encode(prompt) if isinstance(prompt, str) else list(prompt)

    def _reference_ids(self, reference: str | None) -> list[int]:
        return self.tokenizer.encode(reference, special=False) if reference else []


def _opened(model: Model, backend: str, role: Role) -> LoadedModel | OpenModel | Path:
    return model if isinstance(model, LoadedModel) else open_for(model, backend, role)


def _loaded(
    model: LoadedModel | OpenModel | Path,
    role: Role,
    precision: Precision | None,
    backend: str,
    device: str,
    progress: Callable[[int, int], None] | None,
) -> LoadedModel:
    if isinstance(model, LoadedModel):
        return model
    return load(model, precision=precision, backend=backend, device=device, progress=progress, role=role)


def _usual_proposer(draft: LoadedModel | None, heads: Sequence[Artifact]) -> str:
    """The only proposer that was given, whichever pays of several, none where there is none."""
    given = [*([] if draft is None else ["draft_model"]), *(artifact.kind for artifact in heads)]
    return AUTO if len(given) > 1 else next(iter(given), PLAIN)


def _warn_of_unused(speculation: SpeculationOptions, draft: LoadedModel | None, heads: Sequence[Artifact]) -> None:
    """Say which weights were loaded that the proposer asked for does without."""
    recipe = REGISTRY.get(speculation.proposer)
    if speculation.proposer in ALL_OF_THEM or (recipe is None and speculation.proposer != PLAIN):
        return  # all are used, or a plug-in knows what it uses
    given = [*([] if draft is None else ["draft_model"]), *(artifact.kind for artifact in heads)]
    for name in given:
        if name != speculation.proposer:
            LOGGER.warning(
                "%s is given, but the proposer %s does without it; it drafts for requests that ask for the proposer %s",
                "draft_model" if name == "draft_model" else f"heads ({name})",
                speculation.proposer,
                name,
            )


def _collector(inboxes: dict[str, _Inbox]) -> Callable[[StepReport], None]:
    """Not a method of `LLM`: engine and `LLM` would hold each other, and the cache with them."""

    def collect(report: StepReport) -> None:
        if report.request_id in inboxes:
            inboxes[report.request_id].reports.append(report)

    return collect


def _as_list(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
    return [prompts] if single else list(prompts)  # type: ignore[list-item,arg-type]
