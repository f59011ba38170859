"""`gamaneh advise`: measure, predict, hold the prediction against a real run, and say whether to speculate."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from gamaneh.bench.advise.language import LANGUAGES, as_language
from gamaneh.bench.time_limit import MINUTES, TimeLimit
from gamaneh.cli.bench import exit_early, interruptible
from gamaneh.cli.command import command
from gamaneh.cli.option_groups import ChatFlag, JsonFlag, Minutes, ModelChoice, Temperature, TopK, TopP
from gamaneh.cli.terminal import count_bar, output, phases, print_json
from gamaneh.errors import InvalidOption
from gamaneh.options import SamplingParams

if TYPE_CHECKING:
    from gamaneh.bench.advise.advise_measure import Effort
    from gamaneh.bench.advise.advisor import AdviceQuestion, Keep
    from gamaneh.bench.advise.candidate import CandidateParts
    from gamaneh.bench.advise.recording import PlainRecording
    from gamaneh.bench.advise.workload import Encode, PromptAnswer
    from gamaneh.models.loading import LoadedModel
    from gamaneh.options import EngineOptions

TOKENS = 64
REQUESTS = 12
BATCHES = (1, 2, 4, 8)
STEP_TOKENS = 512

EXIT_INCOMPLETE = 1
"""Exit code when a candidate could not be measured; the advice is about the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingForAdvice:
    """How answers are sampled while they are measured: greedily or with a seed, so that they can be compared."""

    PANEL: ClassVar[str] = "Sampling"

    max_tokens: Annotated[
        int, typer.Option("--max-tokens", "-n", min=1, help="Most tokens of an answer, recorded ones included.")
    ] = TOKENS
    temperature: Temperature = None
    top_k: TopK = None
    top_p: TopP = None
    seed: Annotated[int, typer.Option(help="The same seed gives the same tokens.")] = 0

    def __post_init__(self) -> None:
        self.params()

    def params(self) -> SamplingParams:
        """
        Raises:
            InvalidRequest: a value is out of range.
        """
        given = {name: getattr(self, name) for name in ("temperature", "top_k", "top_p")}
        given = {name: value for name, value in given.items() if value is not None}
        return SamplingParams(max_tokens=self.max_tokens, seed=self.seed, **given)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChoice:
    """What the advice is about."""

    PANEL: ClassVar[str] = "Prompts"

    prompts: Annotated[
        Path | None, typer.Option(help="JSON Lines file of prompts.", show_default="prompts that come along")
    ] = None
    traffic: Annotated[
        Path | None, typer.Option(help="JSON Lines file of recorded requests: prompt and answer.", show_default="none")
    ] = None
    limit: Annotated[int, typer.Option(min=1, help="Take this many, from all categories and languages in turns.")] = (
        REQUESTS
    )
    chat: ChatFlag = None
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="Requests at once in your service.", show_default="1, as an assumption")
    ] = None
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Requests at once to predict for; may be repeated.", show_default="1, 2, 4, 8"),
    ] = None

    @property
    def batches(self) -> tuple[int, ...]:
        """Ascending, that of the service among them."""
        return tuple(sorted({*(self.batch or BATCHES), self.concurrency or 1}))


@dataclass(frozen=True, slots=True, kw_only=True)
class CandidateChoice:
    """What may be advised."""

    PANEL: ClassVar[str] = "Drafting"

    draft_model: Annotated[
        list[str] | None, typer.Option(help="A draft model to consider; may be repeated.", show_default="none")
    ] = None
    heads: Annotated[
        list[str] | None, typer.Option(help="Trained heads to consider; may be repeated.", show_default="none")
    ] = None
    method: Annotated[
        list[str] | None,
        typer.Option(help="Consider these proposers only; may be repeated.", show_default="all that can be built"),
    ] = None
    largest_k: Annotated[
        int | None, typer.Option(min=1, max=64, help="Longest drafts that are measured.", show_default="8")
    ] = None
    memory_gb: Annotated[
        float | None,
        typer.Option(help="Memory for weights and caches, in 10^9 bytes.", show_default="what is free at the start"),
    ] = None

    def __post_init__(self) -> None:
        if self.memory_gb is not None and not self.memory_gb > 0:
            raise InvalidOption("--memory-gb", "must be above 0", self.memory_gb)


@command
def give_advice(
    model: ModelChoice,
    workload: WorkloadChoice,
    sampling: SamplingForAdvice,
    candidates: CandidateChoice,
    language: Annotated[str, typer.Option(help=f"Of checklist and verdict: {' or '.join(LANGUAGES)}.")] = "en",
    quick: Annotated[bool, typer.Option("--quick", help="As little as shows that it runs.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the advice to this JSON file.", show_default="none")] = None,
    record: Annotated[
        Path | None,
        typer.Option(help="Write prompts and plain answers to this file, as --traffic reads it.", show_default="none"),
    ] = None,
    minutes: Minutes = MINUTES,
    as_json: JsonFlag = False,
) -> None:
    """Should this model speculate on this machine, with what, and how far?

    Where --minutes do not suffice, fewer requests are answered. Exit code 1: a candidate could not be measured, and
    the advice is about the others. Ctrl-C ends the run with what there is so far and exit code 130.
    """
    limit = TimeLimit(minutes)
    spoken = as_language(language)
    check_writable("--out", out)
    check_writable("--record", record)
    from gamaneh.bench.advise.advisor import advise
    from gamaneh.bench.advise.candidate import CandidateWorkshop
    from gamaneh.bench.advise.memory_cost import free_bytes
    from gamaneh.bench.advise.workload import read_exchanges, spread
    from gamaneh.cli.advice_tables import show
    from gamaneh.models.loading import choose_device

    exchanges = spread(read_exchanges(workload.prompts, workload.traffic), workload.limit)
    free = free_bytes(choose_device(model.device))
    effort = _effort(quick, candidates.largest_k)
    options = _engine(model, workload.batches)
    with interruptible():
        target = load_target(model)
        question = _question(target, exchanges, model, workload, sampling, candidates, effort, free)
        with phases(limit) as say:
            advice = advise(CandidateWorkshop(target, options), question, say, _recorder(record, exchanges), limit)
    show(output(), advice, spoken)
    if out is not None:
        out.write_text(json.dumps(advice.to_json(), ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    if as_json:
        print_json(advice.to_json())
    exit_early(advice.stopped)
    if advice.unusable:
        raise typer.Exit(EXIT_INCOMPLETE)


def check_writable(option: str, path: Path | None) -> None:
    """What would otherwise be found only after minutes of measuring.

    Raises:
        InvalidOption: the file cannot be written where it should be.
    """
    if path is not None and (path.is_dir() or not path.parent.is_dir()):
        raise InvalidOption(option, "must be a file in a folder that exists", str(path))


def load_target(model: ModelChoice) -> LoadedModel:
    """The target under the name that the user gave it, fetched if need be.

    Raises:
        ModelError: it cannot be found, read or used.
    """
    from gamaneh.backends.choose import load
    from gamaneh.cli.session import file_or_name

    path = file_or_name(model.model)
    with count_bar(f"loading {model.model}") as tick:
        loaded = load(path, precision=model.precision(), backend=model.backend, device=model.device, progress=tick)
        return replace(loaded, name=model.model)


def encoder(target: LoadedModel, chat: bool | None) -> Encode:
    """Makes token ids of what a user says, in the model's chat template or not; None puts it there if there is one."""
    tokenizer = target.tokenizer
    if chat or (chat is None and tokenizer.backend.chat_template is not None):
        return lambda text: tokenizer.chat([{"role": "user", "content": text}])
    return tokenizer.encode


def _recorder(path: Path | None, exchanges: Sequence[PromptAnswer]) -> Keep:
    """Writes the plain answers down beside their prompts."""
    from gamaneh.bench.advise.workload import write_traffic

    def write(plain: PlainRecording) -> None:
        if path is not None:
            texts = [one.answer.text for one in plain.answers]
            answered = (replace(one, answer=text) for one, text in zip(exchanges, texts, strict=False))
            write_traffic(path, answered)

    return write


def _effort(quick: bool, largest_k: int | None) -> Effort:
    from gamaneh.bench.advise.advise_measure import QUICK, Effort

    usual = QUICK if quick else Effort()
    return usual if largest_k is None else replace(usual, largest_k=largest_k)


def _engine(model: ModelChoice, batches: Sequence[int]) -> EngineOptions:
    """Room for the largest batch with the largest drafts."""
    from gamaneh.bench.advise.advise_measure import MOST_NODES

    return model.engine(max_batch=max(batches), step_tokens=max(STEP_TOKENS, max(batches) * (1 + MOST_NODES)))


def _question(
    target: LoadedModel,
    exchanges: Sequence[PromptAnswer],
    model: ModelChoice,
    workload: WorkloadChoice,
    sampling: SamplingForAdvice,
    candidates: CandidateChoice,
    effort: Effort,
    free: int,
) -> AdviceQuestion:
    from gamaneh.bench.advise.advisor import AdviceQuestion
    from gamaneh.bench.advise.workload import Workload, as_requests

    requests = as_requests(
        exchanges,
        encoder(target, workload.chat),
        lambda text: target.tokenizer.encode(text, special=False),
        max_tokens=sampling.max_tokens,
        max_context=min(target.config.max_context, model.max_context or target.config.max_context),
    )
    own = workload.prompts is not None or workload.traffic is not None
    return AdviceQuestion(
        workload=Workload(requests, own=own, recorded=workload.traffic is not None),
        params=sampling.params(),
        batch=workload.concurrency or 1,
        stated=workload.concurrency is not None,
        batches=workload.batches,
        parts=_parts(candidates),
        only=tuple(candidates.method or ()),
        memory_limit=free if candidates.memory_gb is None else int(candidates.memory_gb * 1e9),
        serve=_serve(model),
        effort=effort,
    )


def _parts(candidates: CandidateChoice) -> tuple[CandidateParts, ...]:
    """Draft models of the catalogue that are missing are fetched first."""
    from gamaneh.bench.advise.candidate import CandidateParts
    from gamaneh.cli.session import file_or_name
    from gamaneh.models.loading import resolve

    for name in candidates.draft_model or ():
        resolve(file_or_name(name))
    drafts = [CandidateParts(draft_model=name) for name in candidates.draft_model or ()]
    return (*drafts, *(CandidateParts(heads=name) for name in candidates.heads or ()))


def _serve(model: ModelChoice) -> tuple[str, ...]:
    """The command that serves the target as it was measured."""
    named: dict[str, Any] = {"--weights": model.weights or "auto", "--device": model.device}
    options = [word for flag, value in named.items() if value != "auto" for word in (flag, value)]
    if model.invariant is not None:
        options.append("--invariant" if model.invariant else "--no-invariant")
    if model.max_context is not None:
        options += ["--max-context", str(model.max_context)]
    return ("gamaneh", "serve", "--model", model.model, *options)
