"""Prompts, answers, heads and a draft model in one go: what is trained on what, and for how long.

A recipe ends after a set time on any machine: answering stops when its minutes are over, and the learning
rate falls in time for the end of each training. On a slower machine less is learned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gamaneh.heads.artifact import check_heads_place
from gamaneh.heads.kinds import HEAD_KINDS
from gamaneh.models.loading import LoadedModel
from gamaneh.train.corpus import make_corpus
from gamaneh.train.distill.distill import check_draft_place, distill
from gamaneh.train.heads import HeadsOrder, train_heads
from gamaneh.train.recipes.prompts import SHARES, make_prompts
from gamaneh.train.runs import Workshop
from gamaneh.train.settings import DataOptions, LoopOptions, StudentOptions

DRAFT_MODEL = "draft"
"""Name of the folder of the draft model; those of heads have the names of their kinds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftModelOrder:
    """The draft model that is to be trained."""

    options: StudentOptions
    loop: LoopOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """What is trained on what, and for how long.

    Args:
        prompts: how many are made; more than can be answered in time.
        seed: of the prompts.
        shares: of their categories.
        data: how they are answered.
        orders: the heads, in the order in which they are trained.
        draft_model: trained last; None for none.
        command: what the artifacts say they were made by.
    """

    prompts: int
    seed: int = 2
    shares: Mapping[str, tuple[str, int]] = field(default_factory=lambda: SHARES)
    data: DataOptions
    orders: tuple[HeadsOrder, ...] = field(default_factory=tuple)
    draft_model: DraftModelOrder | None = None
    command: str

    def scaled(self, factor: float) -> TrainingRecipe:
        """The same with all times multiplied by `factor`."""
        orders = (replace(order, loop=_scaled(order.loop, "minutes", factor)) for order in self.orders)
        draft = self.draft_model
        return replace(
            self,
            data=_scaled(self.data, "answer_minutes", factor),
            orders=tuple(orders),
            draft_model=draft and replace(draft, loop=_scaled(draft.loop, "minutes", factor)),
        )


def small_steps(minutes: float) -> LoopOptions:
    """Many steps on few tokens each: in a time this short, more is learned from them than from large ones."""
    return LoopOptions(
        epochs=100, minutes=minutes, batch_tokens=512, learning_rate=1e-3, validate_every=300, patience=20
    )


def follow(
    loaded: LoadedModel, recipe: TrainingRecipe, workshop: Workshop, out: Path
) -> Mapping[str, Mapping[str, Any]]:
    """Train everything; each artifact is written to a folder in `out` as soon as it is ready.

    Returns:
        What was measured, by the name of the folder.

    Raises:
        GamanehError: something is wrong with the model, a folder or the disk; what was done before is kept.
    """
    _check_places(recipe, out)
    # Answered from the first on for as long as there is time, so those behind the last answer cost nothing.
    examples = make_prompts(recipe.prompts, seed=recipe.seed, shares=recipe.shares)
    corpus = make_corpus(loaded, examples, recipe.data, workshop)
    layers = _layers(loaded, recipe)
    orders = [replace(order, more_layers=layers, command=recipe.command) for order in recipe.orders]
    qualities: dict[str, Mapping[str, Any]] = {}
    for order in orders:
        qualities[order.kind] = train_heads(loaded, corpus, order, workshop, out / order.kind).quality
    student = recipe.draft_model
    if student is not None:
        path = out / DRAFT_MODEL
        quality = distill(loaded, corpus, student.options, student.loop, workshop, path, recipe.command, layers)
        qualities[DRAFT_MODEL] = quality
    return qualities


def _check_places(recipe: TrainingRecipe, out: Path) -> None:
    """Whether everything can be written, before an hour is spent."""
    for order in recipe.orders:
        check_heads_place(out / order.kind)
    if recipe.draft_model is not None:
        check_draft_place(out / DRAFT_MODEL)


def _layers(loaded: LoadedModel, recipe: TrainingRecipe) -> list[int]:
    """All layers that any of the heads reads, so that one file of features serves them all."""
    read = {
        layer
        for order in recipe.orders
        for layer in HEAD_KINDS[order.kind].blank(order.shape, loaded, None).hidden_layers
    }
    return sorted(read)


def _scaled(options: Any, name: str, factor: float) -> Any:
    minutes = getattr(options, name)
    return replace(options, **{name: None if minutes is None else minutes * factor})
