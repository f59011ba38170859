"""Heads on disk: what is written is whole, and what is read is what was written for this target."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from gamaneh.errors import CorruptModel, InvalidOption, ModelError, UnsupportedModel
from gamaneh.heads import artifact as artifact_module
from gamaneh.heads import locate
from gamaneh.heads.artifact import (
    CONFIG,
    KINDS,
    TENSORS,
    Artifact,
    Provenance,
    check_target,
    load_artifact,
    load_tensors,
    mark_target,
    save_artifact,
)
from gamaneh.heads.kinds import HEAD_KINDS
from gamaneh.heads.locate import locate_heads, open_heads, shipped_heads
from gamaneh.models.decoder import Decoder
from gamaneh.models.loading import LoadedModel
from gamaneh.testing import TINY_CONFIGS, tiny_heads, tiny_model, tiny_weights

TARGET = tiny_model("llama")


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    folder = tmp_path / "heads"
    save_artifact(tiny_heads(TARGET, draft_vocab=20, depth=2), folder)
    return folder


def edit_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / CONFIG).read_text())
    (folder / CONFIG).write_text(json.dumps({**config, **changes}))


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    provenance = Provenance("gamaneh train medusa", {"prompts": 3}, "abc", {"torch": "2"}, "2026-01-02")
    quality = {"survival": {"chat": [0.5, 0.25]}}
    artifact = replace(tiny_heads(TARGET, draft_vocab=20), provenance=provenance, quality=quality)
    save_artifact(artifact, tmp_path / "heads")
    again = load_artifact(tmp_path / "heads")
    assert (again.kind, again.shape, again.target) == (artifact.kind, artifact.shape, artifact.target)
    assert (again.provenance, again.quality, again.draft_vocab) == (provenance, quality, 20)
    assert again.tensors.keys() == artifact.tensors.keys()
    assert all(torch.equal(tensor, artifact.tensors[name]) for name, tensor in again.tensors.items())


def test_survival_over_all_prompts_is_told_if_it_was_measured() -> None:
    heads = tiny_heads(TARGET)
    assert replace(heads, quality={"survival": {"chat": [0.9], "all": [0.5, 0.25]}}).survival == (0.5, 0.25)
    assert replace(heads, quality={}).survival == ()


def test_heads_take_the_place_of_older_ones(saved: Path) -> None:
    newer = tiny_heads(TARGET, depth=3)
    save_artifact(newer, saved)
    assert load_artifact(saved).shape == newer.shape
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_other_files_are_not_written_over(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ModelError, match="must be empty or hold heads"):
        save_artifact(tiny_heads(TARGET), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    with pytest.raises(ModelError, match=r"letter\.txt must be a folder or not be there, got a file"):
        save_artifact(tiny_heads(TARGET), tmp_path / "letter.txt")


@pytest.mark.parametrize("older", [False, True])
def test_a_full_disk_leaves_what_was_there(tmp_path: Path, older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if older:
        save_artifact(tiny_heads(TARGET, depth=1), tmp_path / "heads")

    def half_written(tensors: object, path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(artifact_module, "save_file", half_written)
    with pytest.raises(ModelError, match="No space left on device"):
        save_artifact(tiny_heads(TARGET, depth=2), tmp_path / "heads")
    assert [path.name for path in tmp_path.iterdir()] == (["heads"] if older else [])
    assert not older or load_artifact(tmp_path / "heads").shape["depth"] == 1


def test_weights_that_are_not_numbers_are_not_written(tmp_path: Path) -> None:
    artifact = tiny_heads(TARGET)
    next(iter(artifact.tensors.values()))[0] = float("nan")
    with pytest.raises(CorruptModel, match="finite"):
        save_artifact(artifact, tmp_path / "heads")
    assert list(tmp_path.iterdir()) == []


DAMAGES: dict[str, tuple[Callable[[Path], object], type[ModelError], str]] = {
    "no config": (lambda folder: (folder / CONFIG).unlink(), CorruptModel, "config.json must be a JSON object"),
    "no tensors": (lambda folder: (folder / TENSORS).unlink(), CorruptModel, "must be a whole safetensors file"),
    "not JSON": (lambda folder: (folder / CONFIG).write_text("{"), CorruptModel, "must be a JSON object"),
    "other format": (lambda folder: edit_config(folder, format="x"), UnsupportedModel, "format .* got 'x'"),
    "later version": (lambda folder: edit_config(folder, version=2), UnsupportedModel, "version .* must be 1, got 2"),
    "unknown kind": (lambda folder: edit_config(folder, kind="oracle"), UnsupportedModel, "kind .* got 'oracle'"),
    "unknown key": (lambda folder: edit_config(folder, colour="red"), CorruptModel, "must have the keys"),
    "no object": (lambda folder: edit_config(folder, target=[]), CorruptModel, "target .* must be an object"),
    "part of a target": (lambda folder: edit_config(folder, target={"name": "x"}), CorruptModel, "TargetMark"),
    "other hash": (lambda folder: edit_config(folder, sha256="00"), CorruptModel, "must have the hash .* 00, got"),
    "ranks that are none": (
        lambda folder: edit_config(folder, quality={"ranks": [[0.5, float("nan")]]}),
        CorruptModel,
        "ranks .* must be lists of numbers from 0 to 1",
    ),
    "survival that is none": (
        lambda folder: edit_config(folder, quality={"survival": {"all": [1.5]}}),
        CorruptModel,
        "survival .* must be lists of numbers from 0 to 1",
    ),
    "other draft vocabulary": (lambda folder: edit_config(folder, draft_vocab=21), CorruptModel, "got 21 for 20"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_heads_are_refused(saved: Path, damage: str) -> None:
    inflict, error, message = DAMAGES[damage]
    inflict(saved)
    with pytest.raises(error, match=message):
        load_artifact(saved)


def test_cut_and_poisoned_tensors_are_refused_even_with_their_hash(saved: Path) -> None:
    tensors = saved / TENSORS
    tensors.write_bytes(tensors.read_bytes()[:100])
    edit_config(saved, sha256=artifact_module._sha256(tensors))
    with pytest.raises(CorruptModel, match="whole safetensors file"):
        load_artifact(saved)
    save_file({"weight": torch.tensor([1.0, float("inf")])}, tensors)
    edit_config(saved, sha256=artifact_module._sha256(tensors))
    with pytest.raises(CorruptModel, match=r"tensor weight .* finite"):
        load_artifact(saved)


WRONG_TENSORS: dict[str, tuple[dict[str, torch.Tensor], str]] = {
    "missing": ({"weight": torch.zeros(2, 3)}, "lack the tensors bias"),
    "left over": (
        {"weight": torch.zeros(2, 3), "bias": torch.zeros(2), "extra": torch.zeros(1)},
        "does not account for: extra",
    ),
    "wrong shape": (
        {"weight": torch.zeros(3, 2), "bias": torch.zeros(2)},
        r"weight of medusa heads must have shape \(2, 3\), got \(3, 2\)",
    ),
}


@pytest.mark.parametrize("case", WRONG_TENSORS)
def test_tensors_must_be_those_of_the_shape(case: str) -> None:
    tensors, message = WRONG_TENSORS[case]
    with pytest.raises(CorruptModel, match=message):
        load_tensors(nn.Linear(3, 2), Artifact("medusa", {}, mark_target(TARGET), tensors))


def test_heads_belong_to_their_target_whatever_it_is_called() -> None:
    check_target(tiny_heads(TARGET), replace(TARGET, name="another name"))


@pytest.mark.parametrize("other", [tiny_model("llama", seed=1), tiny_model("qwen3"), tiny_model("gemma3")])
def test_heads_for_another_target_are_refused_with_both_names(other: LoadedModel) -> None:
    with pytest.raises(ModelError, match=f"made for {other.name} .* got {TARGET.name}"):
        check_target(tiny_heads(other), TARGET)


@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_the_fingerprint_does_not_depend_on_the_type(family: str) -> None:
    marks = {mark_target(tiny_model(family, dtype=dtype)).fingerprint for dtype in (torch.float32, torch.bfloat16)}
    assert len(marks) == 1


@pytest.mark.parametrize("name", [name for name in tiny_weights(TINY_CONFIGS["qwen2"]) if not name.endswith("bias")])
def test_a_change_of_any_weight_changes_the_fingerprint(name: str) -> None:
    config = TINY_CONFIGS["qwen2"]
    weights = tiny_weights(config)
    weights[name] = weights[name] * 1.02
    changed = replace(tiny_model("qwen2"), decoder=Decoder(config, weights))
    assert mark_target(changed).fingerprint != mark_target(tiny_model("qwen2")).fingerprint


def test_every_kind_can_be_made() -> None:
    assert set(HEAD_KINDS) <= set(KINDS)


def test_heads_that_come_along_are_found_by_name(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = saved.parent / "shipped"
    save_artifact(load_artifact(saved), home / "some-model" / "medusa")
    monkeypatch.setattr(locate, "SHIPPED", home)
    assert shipped_heads() == ["some-model/medusa"]
    assert locate_heads("some-model/medusa") == home / "some-model" / "medusa"
    assert locate_heads(saved) == saved
    with pytest.raises(ModelError, match=r"\(some-model/medusa\), got 'other/eagle'"):
        locate_heads("other/eagle")


def test_two_heads_of_one_kind_are_refused(saved: Path) -> None:
    with pytest.raises(InvalidOption, match="heads must be of different kinds"):
        open_heads([saved, tiny_heads(TARGET)], TARGET)


@pytest.mark.parametrize("kind", HEAD_KINDS)
def test_tiny_heads_are_made_by_their_seed(kind: str) -> None:
    first, again, other = (tiny_heads(TARGET, kind, seed=seed, draft_vocab=20).tensors for seed in (3, 3, 4))
    assert all(torch.equal(tensor, again[name]) for name, tensor in first.items())
    assert not all(torch.equal(tensor, other[name]) for name, tensor in first.items())
