"""Options that all kinds of training share. Defaults are those of the options objects behind them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from gamaneh.cli.option_groups import option_for
from gamaneh.cli.terminal import Tick, count_bar
from gamaneh.errors import InvalidOption
from gamaneh.options import WEIGHTS, Precision
from gamaneh.train.settings import DataOptions, LoopOptions, StudentOptions

if TYPE_CHECKING:
    from gamaneh.models.loading import LoadedModel
    from gamaneh.train.corpus import Corpus
    from gamaneh.train.runs import Workshop


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSet:
    """What is learned from, for which target, and where the result goes."""

    PANEL: ClassVar[str] = "Target and data"

    model: Annotated[
        str,
        typer.Option("--model", "-m", help="The target: a folder, a hub id, a .gguf file or a name of `models`."),
    ]
    data: Annotated[
        list[Path],
        typer.Option(
            "--data", "-d", help="JSON Lines of prompts, conversations or texts, or a text file; may be repeated."
        ),
    ]
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for the result.")]
    work: Annotated[
        Path | None,
        typer.Option(
            help="Folder of answers, features and checkpoints, to go on from; may be deleted afterwards.",
            show_default="--out with .work",
        ),
    ] = None
    weights: Annotated[str, option_for(Precision, "weights", f"Of the target: {', '.join(WEIGHTS)}.")] = "auto"
    device: Annotated[str, typer.Option(help="cpu, cuda or auto.")] = "auto"
    max_length: Annotated[int | None, option_for(DataOptions, "max_length", "Tokens of the longest text.")] = None
    held_out: Annotated[int | None, option_for(DataOptions, "held_out", "Examples kept aside to measure with.")] = None
    answer_tokens: Annotated[
        int | None, option_for(DataOptions, "answer_tokens", "Longest answer that the target is asked for.")
    ] = None
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="Of the target's answers; several are taken in turns.", show_default="0 and 0.8"),
    ] = None
    answer_batch: Annotated[int | None, option_for(DataOptions, "answer_batch", "Prompts answered at once.")] = None
    answer_minutes: Annotated[
        float | None, option_for(DataOptions, "answer_minutes", "Time for the answers to learn from.")
    ] = None

    def __post_init__(self) -> None:
        self.options()

    @property
    def folder(self) -> Path:
        """Where work in progress lies."""
        return self.out.with_name(f"{self.out.name}.work") if self.work is None else self.work

    def options(self, **more: Any) -> DataOptions:
        """
        Raises:
            InvalidOption: a value is out of range.
        """
        names = ("max_length", "held_out", "answer_tokens", "answer_batch", "answer_minutes")
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        if self.temperature:
            given["temperatures"] = tuple(self.temperature)
        return DataOptions(**given, **more)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitting:
    """How weights are fitted."""

    PANEL: ClassVar[str] = "Training"

    epochs: Annotated[int | None, option_for(LoopOptions, "epochs", "Passes over the data.")] = None
    minutes: Annotated[
        float | None,
        option_for(LoopOptions, "minutes", "Time for the fitting; the learning rate falls in time for it."),
    ] = None
    batch_tokens: Annotated[
        int | None, option_for(LoopOptions, "batch_tokens", "Tokens of one step on one device.")
    ] = None
    learning_rate: Annotated[float | None, option_for(LoopOptions, "learning_rate", "The highest.")] = None
    warmup: Annotated[float | None, option_for(LoopOptions, "warmup", "Share of the steps in which it rises.")] = None
    weight_decay: Annotated[float | None, option_for(LoopOptions, "weight_decay", "Of matrices.")] = None
    depth_decay: Annotated[
        float | None, option_for(LoopOptions, "depth_decay", "Weight of a draft position relative to the one before.")
    ] = None
    validate_every: Annotated[
        int | None, option_for(LoopOptions, "validate_every", "Steps from one measurement and checkpoint to the next.")
    ] = None
    patience: Annotated[
        int | None, option_for(LoopOptions, "patience", "Measurements without a better one that end the training.")
    ] = None
    precision: Annotated[
        str | None, option_for(LoopOptions, "precision", "Of the arithmetic: float32, bfloat16 or auto.")
    ] = None
    seed: Annotated[int | None, option_for(LoopOptions, "seed", "Of answers, batches and first weights.")] = None

    def __post_init__(self) -> None:
        self.options()

    def options(self) -> LoopOptions:
        """
        Raises:
            InvalidOption: a value is out of range.
        """
        return LoopOptions(**_given(self))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadsChoice:
    """What the heads are made of."""

    PANEL: ClassVar[str] = "Heads"

    depth: Annotated[int | None, typer.Option(help="Draft positions.", show_default="by kind")] = None
    draft_vocab: Annotated[
        int | None, typer.Option(help="Draft only this many of the most frequent tokens.", show_default="all")
    ] = None
    shape: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=VALUE", help="Another part of the shape, see docs/heads.md; may be repeated."),
    ] = None

    def __post_init__(self) -> None:
        self.values()

    def values(self) -> dict[str, Any]:
        """Parts of the shape that were given.

        Raises:
            InvalidOption: one is not NAME=VALUE.
        """
        depth = {} if self.depth is None else {"depth": self.depth}
        return {**dict(map(_part, self.shape or ())), **depth}


@dataclass(frozen=True, slots=True, kw_only=True)
class StudentChoice:
    """The draft model."""

    PANEL: ClassVar[str] = "Draft model"

    start: Annotated[
        str | None, option_for(StudentOptions, "start", "scratch: new weights; target: layers cut from the target.")
    ] = None
    num_layers: Annotated[int | None, option_for(StudentOptions, "num_layers", "Layers of the draft model.")] = None
    hidden_size: Annotated[int | None, option_for(StudentOptions, "hidden_size", "Its width, from scratch.")] = None
    on_policy: Annotated[
        float | None,
        option_for(StudentOptions, "on_policy", "Share of the steps on texts that the draft model writes."),
    ] = None
    sampled_tokens: Annotated[int | None, option_for(StudentOptions, "sampled_tokens", "Length of these texts.")] = None
    divergence: Annotated[
        str | None,
        option_for(StudentOptions, "divergence", "forward: KL(target, draft); reverse: KL(draft, target)."),
    ] = None

    def __post_init__(self) -> None:
        options = self.options()
        if options.start == "target" and self.hidden_size is not None:
            raise InvalidOption("--hidden-size", "needs --start scratch", self.hidden_size)
        if not options.on_policy and self.sampled_tokens is not None:
            raise InvalidOption("--sampled-tokens", "needs --on-policy above 0", self.sampled_tokens)

    def options(self) -> StudentOptions:
        """
        Raises:
            InvalidOption: a value is out of range.
        """
        return StudentOptions(**_given(self))


def open_workshop(chosen: TrainingSet, fitting: Fitting, backend: str = "auto") -> tuple[LoadedModel, Corpus, Workshop]:
    """Load the target and prepare what is learned from.

    Args:
        backend: as `load` takes it; `torch` where layers of the target are cut or computed with.

    Raises:
        GamanehError: an option, a file or a model is wrong. Data are read before the model is loaded.
    """
    from gamaneh.train.data import read_examples

    examples = read_examples(chosen.data)
    precision = Precision(weights=chosen.weights)
    loop = fitting.options()
    from gamaneh.backends.choose import load
    from gamaneh.cli.session import file_or_name
    from gamaneh.train.corpus import make_corpus
    from gamaneh.train.runs import Workshop, start_accelerator

    accelerator = start_accelerator(loop.precision, precision, chosen.device)
    workshop = Workshop(accelerator, chosen.folder, bar, say)
    path = file_or_name(chosen.model)
    with bar(f"loading {chosen.model}") as tick:
        loaded = load(path, precision=precision, backend=backend, device=str(accelerator.device), progress=tick)
    return loaded, make_corpus(loaded, examples, chosen.options(seed=loop.seed), workshop), workshop


@contextmanager
def bar(title: str) -> Iterator[Tick]:
    """A progress bar; of several processes only the first one shows any."""
    if not is_first():
        yield lambda done, total: None
        return
    with count_bar(title) as tick:
        yield tick


def say(text: str) -> None:
    """A line on standard error, above a progress bar if there is one."""
    if is_first():
        print(text, file=sys.stderr, flush=True)


def _given(choice: Fitting | StudentChoice) -> dict[str, Any]:
    return {field.name: value for field in fields(choice) if (value := getattr(choice, field.name)) is not None}


def _part(text: str) -> tuple[str, Any]:
    """A part of a shape: numbers, true, false and lists as in JSON, anything else a text."""
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise InvalidOption("--shape", "must be NAME=VALUE, such as num_blocks=2", text)
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def is_first() -> bool:
    """Among the processes that `accelerate launch` started."""
    return os.environ.get("RANK", "0") == "0"
