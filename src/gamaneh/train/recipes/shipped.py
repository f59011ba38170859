"""The heads for SmolLM2-135M-Instruct that come with the package."""

from __future__ import annotations

from dataclasses import replace

from gamaneh.train.heads import HeadsOrder
from gamaneh.train.recipes.prompts import SHARES
from gamaneh.train.recipes.training_recipe import TrainingRecipe, small_steps
from gamaneh.train.settings import DataOptions, LoopOptions

TARGET = "smollm2-135m-instruct"

SHIPPED = TrainingRecipe(
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
        HeadsOrder(kind="medusa", shape={"depth": 3}, draft_vocab=8192, loop=small_steps(minutes=6)),
        HeadsOrder(kind="eagle", shape={"depth": 2}, draft_vocab=8192, loop=small_steps(minutes=16)),
    ),
    command="python -m gamaneh.train.recipes",
)

BLOCK = TrainingRecipe(
    prompts=8000,
    shares={name: share for name, share in SHARES.items() if name != "persian"},
    data=replace(SHIPPED.data, answer_minutes=8),
    orders=(
        HeadsOrder(
            kind="block",
            shape={"depth": 4},
            draft_vocab=8192,
            loop=LoopOptions(
                epochs=100,
                minutes=22,
                batch_tokens=512,
                learning_rate=1e-3,
                validate_every=300,
                patience=20,
                precision="bfloat16",
            ),
        ),
    ),
    command="python -m gamaneh.train.recipes --recipe block",
)
