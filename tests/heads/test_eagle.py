"""The EAGLE head drafts, over its cache, what it was trained to draft over whole texts."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gamaneh.errors import CorruptModel, InvalidOption
from gamaneh.heads.artifact import Artifact, load_artifact, mark_target, save_artifact, tensors_of
from gamaneh.heads.eagle_head import EagleHead, blank_eagle, load_eagle
from gamaneh.heads.eagle_runner import EagleRunner
from gamaneh.heads.eagle_shape import default_layers, eagle_shape
from gamaneh.heads.level import Strand, build_level
from gamaneh.heads.trainable import TrainBatch
from gamaneh.models.loading import LoadedModel
from gamaneh.testing import tiny_heads, tiny_model

LENGTH = 24

SHAPES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "published": {"fuse_norm": "none", "norm_before_residual": False, "norm_output": False, "share_head": False},
    "joint norm": {"fuse_norm": "joint", "norm_output": False},
    "own embedding": {"hidden_size": 24, "own_embedding": True, "share_head": False},
    "one layer": {"hidden_layers": [2], "num_heads": 2, "num_kv_heads": 1},
}


@pytest.fixture(scope="module")
def target() -> LoadedModel:
    return tiny_model("llama")


def some_batch(target: LoadedModel, layers: int, *, seed: int = 3, texts: int = 2) -> TrainBatch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, 256, (texts, LENGTH), generator=generator)
    hidden = torch.randn(texts, LENGTH, layers, target.config.hidden_size, generator=generator)
    return TrainBatch(tokens, hidden, torch.ones_like(tokens, dtype=torch.bool))


def random_head(target: LoadedModel, **shape: Any) -> EagleHead:
    draft_vocab = shape.pop("draft_vocab", None)
    return load_eagle(tiny_heads(target, "eagle", draft_vocab=draft_vocab, **shape), target)


def drafted(runner: EagleRunner, batch: TrainBatch, text: int, last: int, depth: int) -> Tensor:
    """`[depth, draft_vocab]` logits of a draft behind token `last` + 1, teacher-forced, row by row over the cache."""
    tokens, row = batch.tokens[text].tolist(), runner.cache.take()
    runner.cache.fit(last + depth)
    features = runner.fused(batch.hidden[text, : last + 1])
    level = build_level([Strand.chain(row, 0, tokens[1 : last + 2], 0)], runner.cache.capacity, runner.device)
    outputs = runner.layer(features, level)[-1:]
    logits = []
    for step in range(1, depth + 1):
        features, guess = runner.guess(outputs)
        logits.append(guess[0])
        place = last + step
        if step < depth:
            strand = Strand.chain(row, place, [tokens[place + 1]], place)
            outputs = runner.layer(features, build_level([strand], runner.cache.capacity, runner.device))
    runner.cache.give_back(row)
    return torch.stack(logits)


@pytest.mark.parametrize("draft_vocab", [None, 40])
@pytest.mark.parametrize("name", SHAPES)
def test_drafting_computes_what_training_computed(target: LoadedModel, name: str, draft_vocab: int | None) -> None:
    head = random_head(target, draft_vocab=draft_vocab, **SHAPES[name])
    batch = some_batch(target, len(head.hidden_layers))
    runner = EagleRunner(head, target.decoder)
    trained = torch.stack(head.draft_logits(batch), dim=2)
    for text, last in [(0, 0), (0, 5), (1, 17)]:
        own = drafted(runner, batch, text, last, head.depth)
        torch.testing.assert_close(own, trained[text, last], atol=2e-4, rtol=1e-3)


def test_later_tokens_change_no_earlier_row(target: LoadedModel) -> None:
    head = random_head(target)
    batch = some_batch(target, len(head.hidden_layers))
    changed = TrainBatch(batch.tokens.clone(), batch.hidden.clone(), batch.mask)
    changed.tokens[:, 12:] = 1
    changed.hidden[:, 11:] = 0.0
    for step, (one, other) in enumerate(
        zip(head.draft_logits(batch), head.draft_logits(changed), strict=True), start=1
    ):
        rows = 12 - step - 1
        torch.testing.assert_close(one[:, :rows], other[:, :rows], atol=1e-5, rtol=1e-5)
        assert not torch.allclose(one[:, 12], other[:, 12])


def test_only_what_is_its_own_is_trained(target: LoadedModel) -> None:
    ids = torch.tensor([3, 7, 100, 200])
    head = blank_eagle({}, target, ids)
    batch = some_batch(target, len(head.hidden_layers))
    logits = head.draft_logits(batch)
    assert [part.shape for part in logits] == [(2, LENGTH, 4)] * head.depth
    sum(part.logsumexp(-1).sum() for part in logits).backward()
    assert all(parameter.grad is not None for parameter in head.module().parameters())
    assert not any("borrowed" in name for name in head.module().state_dict())
    assert target.decoder.embedding.grad is None
    assert head.draft_ids() is not None


def test_training_begins_from_the_target_s_last_features(target: LoadedModel) -> None:
    """Whatever was borrowed is where it belongs: a head that changes nothing says what the target says."""
    head = blank_eagle({"fuse_norm": "none", "norm_before_residual": False}, target, None)
    with torch.no_grad():
        for linear in (head.out, head.down):
            linear.weight.zero_()
        head.fuse.weight[:, : -target.config.hidden_size] = 0.0
        head.fuse.weight[:, -target.config.hidden_size :] = torch.eye(target.config.hidden_size)
    batch = some_batch(target, len(head.hidden_layers))
    said = target.decoder.logits(batch.hidden[0, :, -1], [LENGTH])
    torch.testing.assert_close(head.draft_logits(batch)[0][0], said, atol=1e-4, rtol=1e-4)


def test_a_head_of_a_scaled_embedding_sees_it_scaled() -> None:
    gemma = tiny_model("gemma3")
    head = blank_eagle({}, gemma, None)
    ids = torch.tensor([4, 5])
    torch.testing.assert_close(head.embedder()(ids), gemma.decoder.embedding[ids] * gemma.config.embedding_scale)


@pytest.mark.parametrize("name", SHAPES)
def test_heads_come_back_from_their_folder(target: LoadedModel, name: str, tmp_path: Path) -> None:
    head = random_head(target, draft_vocab=50, **SHAPES[name])
    whole = eagle_shape(SHAPES[name], target)
    artifact = Artifact("eagle", whole, mark_target(target), tensors_of(head))
    save_artifact(artifact, tmp_path / "eagle")
    again = load_eagle(load_artifact(tmp_path / "eagle"), target)
    batch = some_batch(target, len(head.hidden_layers))
    for one, other in zip(head.draft_logits(batch), again.draft_logits(batch), strict=True):
        assert torch.equal(one, other)


BAD_SHAPES: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "unknown": ({"widht": 3}, "widht"),
    "heads": ({"num_heads": 3}, "num_heads"),
    "odd": ({"head_dim": 7}, "head_dim"),
    "no layer": ({"hidden_layers": []}, "hidden_layers"),
    "far layer": ({"hidden_layers": [3]}, "hidden_layers"),
    "twice": ({"hidden_layers": [1, 1]}, "hidden_layers"),
    "depth": ({"depth": 0}, "depth"),
    "norm": ({"fuse_norm": "some"}, "fuse_norm"),
    "width": ({"hidden_size": 24}, "hidden_size"),
}


@pytest.mark.parametrize("name", BAD_SHAPES)
def test_a_shape_that_breaks_a_rule_is_named(target: LoadedModel, name: str) -> None:
    values, field = BAD_SHAPES[name]
    with pytest.raises(InvalidOption, match=field):
        blank_eagle(values, target, None)


@pytest.mark.parametrize("name", BAD_SHAPES)
def test_an_artifact_of_a_wrong_shape_is_corrupt(target: LoadedModel, name: str) -> None:
    good = tiny_heads(target, "eagle")
    bad = Artifact(good.kind, {**good.shape, **BAD_SHAPES[name][0]}, good.target, good.tensors)
    with pytest.raises(CorruptModel, match="shape"):
        load_eagle(bad, target)


def test_missing_tensors_are_named(target: LoadedModel) -> None:
    good = tiny_heads(target, "eagle")
    tensors = {name: tensor for name, tensor in good.tensors.items() if name != "qkv.weight"}
    with pytest.raises(CorruptModel, match=r"qkv\.weight"):
        load_eagle(Artifact(good.kind, good.shape, good.target, tensors), target)


def test_default_layers_are_layers_of_the_target() -> None:
    assert default_layers(1) == (1,)
    assert default_layers(2) == (1, 2)
    assert default_layers(30) == (3, 15, 30)
