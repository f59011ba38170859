"""What docs/methods.md measures beside the heads that come along: other heads, and a draft model."""

from __future__ import annotations

from dataclasses import replace

from gamaneh.train.heads import HeadsOrder
from gamaneh.train.recipes.shipped import SHIPPED
from gamaneh.train.recipes.training_recipe import DraftModelOrder, small_steps
from gamaneh.train.settings import StudentOptions

MEASURED = replace(
    SHIPPED,
    orders=(
        HeadsOrder(kind="mtp", shape={"depth": 2}, draft_vocab=8192, loop=small_steps(minutes=8)),
        HeadsOrder(kind="early_exit", shape={"num_layers": 6}, draft_vocab=8192, loop=small_steps(minutes=5)),
    ),
    draft_model=DraftModelOrder(
        options=StudentOptions(start="scratch", num_layers=2, hidden_size=256), loop=small_steps(minutes=12)
    ),
    command="python -m gamaneh.train.recipes --recipe measured",
)
