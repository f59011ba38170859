from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tiny_training import QUICK, Listener, byte_tokenizer, tiny_target

from gamaneh.errors import GamanehError
from gamaneh.heads.artifact import check_target, load_artifact
from gamaneh.heads.kinds import HEAD_KINDS
from gamaneh.train.recipes.measured import MEASURED
from gamaneh.train.recipes.prompts import SHARES
from gamaneh.train.recipes.shipped import BLOCK, SHIPPED
from gamaneh.train.recipes.training_recipe import DRAFT_MODEL, TrainingRecipe, follow
from gamaneh.train.settings import DataOptions

pytestmark = pytest.mark.usefixtures("one_thread")

TINY = replace(
    SHIPPED,
    prompts=14,
    data=DataOptions(max_length=500, held_out=4, answer_tokens=12),
    orders=tuple(replace(order, draft_vocab=200, loop=QUICK) for order in SHIPPED.orders),
)


def test_a_recipe_trains_all_its_heads_from_one_file_of_features(tmp_path: Path) -> None:
    loaded, listener = tiny_target(), Listener()

    trained = follow(loaded, TINY, listener.workshop(tmp_path / "work"), tmp_path / "out")

    assert list(trained) == ["medusa", "eagle"]
    for kind in trained:
        artifact = load_artifact(tmp_path / "out" / kind)
        check_target(artifact, loaded)
        assert (artifact.kind, artifact.draft_vocab, artifact.provenance.command) == (kind, 200, SHIPPED.command)
        assert "all" in artifact.quality["survival"] and set(artifact.quality["survival"]) <= {"all", *SHARES}
    # One for the texts to learn from, one for those that were held out.
    assert len(list((tmp_path / "work").glob("features-*.bin"))) == 2


def test_a_recipe_that_was_done_is_not_done_again(tmp_path: Path) -> None:
    loaded = tiny_target()
    follow(loaded, TINY, Listener().workshop(tmp_path / "work"), tmp_path / "out")
    listener = Listener()

    follow(loaded, TINY, listener.workshop(tmp_path / "work"), tmp_path / "out")

    assert [ticks[0][0] == ticks[0][1] for ticks in listener.ticks.values() if ticks] == [True] * 4


def test_a_recipe_trains_a_draft_model_after_its_heads(tmp_path: Path) -> None:
    loaded, student = replace(tiny_target(), tokenizer=byte_tokenizer()), MEASURED.draft_model
    assert student is not None
    options = replace(student.options, num_layers=1, hidden_size=16)
    orders = (replace(TINY.orders[0], kind="early_exit", shape={"num_layers": 1}),)
    tiny = replace(TINY, orders=orders, draft_model=replace(student, options=options, loop=QUICK))

    qualities = follow(loaded, tiny, Listener().workshop(tmp_path / "work"), tmp_path / "out")

    assert list(qualities) == ["early_exit", DRAFT_MODEL]
    assert (tmp_path / "out" / DRAFT_MODEL / "model.safetensors").is_file()
    assert len(list((tmp_path / "work").glob("features-*.bin"))) == 2


@pytest.mark.parametrize(("name", "rule"), [("mtp", "must be empty or hold heads"), (DRAFT_MODEL, "must be a new or")])
def test_a_folder_in_use_is_refused_before_anything_is_answered(tmp_path: Path, name: str, rule: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "model.safetensors").touch()
    with pytest.raises(GamanehError, match=rule):
        follow(tiny_target(), MEASURED, Listener().workshop(tmp_path / "work"), tmp_path)
    assert not (tmp_path / "work").exists()


@pytest.mark.parametrize("recipe", [SHIPPED, MEASURED], ids=["shipped", "measured"])
def test_a_recipe_takes_less_than_an_hour(recipe: TrainingRecipe) -> None:
    assert _minutes(recipe) <= 45


def test_every_method_that_needs_training_has_a_recipe() -> None:
    trained = {order.kind for recipe in (SHIPPED, BLOCK, MEASURED) for order in recipe.orders}
    assert trained == set(HEAD_KINDS)


def test_times_can_be_scaled() -> None:
    assert _minutes(MEASURED.scaled(0.5)) == _minutes(MEASURED) / 2


def _minutes(recipe: TrainingRecipe) -> float:
    drafts = [] if recipe.draft_model is None else [recipe.draft_model.loop.minutes]
    limits = [recipe.data.answer_minutes, *(order.loop.minutes for order in recipe.orders), *drafts]
    return sum(limit for limit in limits if limit is not None)
