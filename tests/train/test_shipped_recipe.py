from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_training import QUICK, Listener, tiny_target

from gamaneh.heads.artifact import check_target, load_artifact
from gamaneh.train.options import DataOptions
from gamaneh.train.recipes.prompts import SHARES
from gamaneh.train.recipes.shipped import COMMAND, SHIPPED, Recipe, train_shipped

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = replace(
    SHIPPED,
    prompts=14,
    data=DataOptions(max_length=500, held_out=4, answer_tokens=12),
    orders=tuple(replace(order, draft_vocab=200, loop=QUICK) for order in SHIPPED.orders),
)


def test_a_recipe_trains_all_its_heads_from_one_file_of_features(tmp_path: Path) -> None:
    loaded, listener = tiny_target(), Listener()

    trained = train_shipped(loaded, TINY, listener.workshop(tmp_path / "work"), tmp_path / "out")

    assert list(trained) == ["medusa", "eagle"]
    for kind in trained:
        artifact = load_artifact(tmp_path / "out" / kind)
        check_target(artifact, loaded)
        assert (artifact.kind, artifact.draft_vocab, artifact.provenance.command) == (kind, 200, COMMAND)
        assert "all" in artifact.quality["survival"] and set(artifact.quality["survival"]) <= {"all", *SHARES}
    # One for the texts to learn from, one for those that were held out.
    assert len(list((tmp_path / "work").glob("features-*.bin"))) == 2


def test_a_recipe_that_was_done_is_not_done_again(tmp_path: Path) -> None:
    loaded = tiny_target()
    train_shipped(loaded, TINY, Listener().workshop(tmp_path / "work"), tmp_path / "out")
    listener = Listener()

    train_shipped(loaded, TINY, listener.workshop(tmp_path / "work"), tmp_path / "out")

    assert [ticks[0][0] == ticks[0][1] for ticks in listener.ticks.values() if ticks] == [True] * 4


def test_the_shipped_recipe_takes_less_than_an_hour() -> None:
    assert _minutes(SHIPPED) <= 45


def test_times_can_be_scaled() -> None:
    assert _minutes(SHIPPED.scaled(0.5)) == _minutes(SHIPPED) / 2


def _minutes(recipe: Recipe) -> float:
    limits = [recipe.data.answer_minutes, *(order.loop.minutes for order in recipe.orders)]
    return sum(limit for limit in limits if limit is not None)
