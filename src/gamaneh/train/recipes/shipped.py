"""The heads for SmolLM2-135M-Instruct that come with the package, from prompts to artifacts.

The recipe ends after a set time on any machine: answering stops when its minutes are over, and the
learning rate falls in time for the end of each training. On a slower machine the heads have learned from less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from gamaneh.heads.artifact import Artifact
from gamaneh.heads.registry import HEAD_KINDS
from gamaneh.models.loading import LoadedModel
from gamaneh.train.corpus import make_corpus
from gamaneh.train.heads import HeadsOrder, train_heads
from gamaneh.train.options import DataOptions, LoopOptions
from gamaneh.train.recipes.prompts import make_prompts
from gamaneh.train.runs import Workshop

TARGET = "smollm2-135m-instruct"
COMMAND = "python -m gamaneh.train.recipes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """What is trained on what, and for how long.

    Args:
        prompts: how many are made; more than can be answered in time.
        seed: of the prompts.
        data: how they are answered.
        orders: the heads, in the order in which they are trained.
    """

    prompts: int
    seed: int = 2
    data: DataOptions
    orders: tuple[HeadsOrder, ...] = field(default_factory=tuple)

    def scaled(self, factor: float) -> Recipe:
        """The same with all times multiplied by `factor`."""
        orders = (replace(order, loop=_scaled(order.loop, "minutes", factor)) for order in self.orders)
        return replace(self, data=_scaled(self.data, "answer_minutes", factor), orders=tuple(orders))


def _small_steps(minutes: float) -> LoopOptions:
    """Many steps on few tokens each: in a time as short as this, heads learn more from them than from large ones."""
    return LoopOptions(
        epochs=100, minutes=minutes, batch_tokens=512, learning_rate=1e-3, validate_every=300, patience=20
    )


SHIPPED = Recipe(
    prompts=8000,
    data=DataOptions(
        max_length=512,
        held_out=63,
        answer_tokens=224,
        temperatures=(0.0, 0.7, 0.0, 1.0),
        answer_batch=48,
        answer_minutes=20,
        seed=1,
    ),
    orders=(
        HeadsOrder(
            kind="medusa",
            shape={"depth": 3},
            draft_vocab=8192,
            loop=_small_steps(minutes=6),
            command=COMMAND,
        ),
        HeadsOrder(
            kind="eagle",
            shape={"depth": 2},
            draft_vocab=8192,
            loop=_small_steps(minutes=16),
            command=COMMAND,
        ),
    ),
)


def train_shipped(loaded: LoadedModel, recipe: Recipe, workshop: Workshop, out: Path) -> Mapping[str, Artifact]:
    """Train all heads of a recipe; each is written to a folder of its kind's name in `out` as soon as it is ready.

    Raises:
        GamanehError: something is wrong with the model or the disk; what was done before is kept.
    """
    # Answered from the first on for as long as there is time, so those behind the last answer cost nothing.
    examples = make_prompts(recipe.prompts, seed=recipe.seed)
    corpus = make_corpus(loaded, examples, recipe.data, workshop)
    layers = _layers(loaded, recipe)
    return {
        order.kind: train_heads(loaded, corpus, replace(order, more_layers=layers), workshop, out / order.kind)
        for order in recipe.orders
    }


def _layers(loaded: LoadedModel, recipe: Recipe) -> list[int]:
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
