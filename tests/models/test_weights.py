"""Safetensors files, and the way from their names to ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hf_models import hf_logits, hf_model, our_logits, save
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.canonical import ModelTensors, canonical_weights, weight_shapes, with_own_head
from gamaneh.models.config import DecoderConfig
from gamaneh.models.decoder import Decoder
from gamaneh.models.families import decoder_config
from gamaneh.models.weights import INDEX, SINGLE, SafetensorsWeights, read_json

Q_PROJ = "model.layers.0.self_attn.q_proj.weight"


def read(folder: Path, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    return canonical_weights(config_of(folder), SafetensorsWeights(folder), dtype=dtype)


def config_of(folder: Path) -> DecoderConfig:
    return decoder_config(read_json(folder / "config.json"))


def edit(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    save("llama 2", tmp_path)
    return tmp_path


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    save("llama 2", tmp_path, max_shard_size="100KB")
    return tmp_path


def test_names_and_shapes_are_those_the_config_asks_for(llama: Path) -> None:
    assert {name: tuple(tensor.shape) for name, tensor in read(llama).items()} == weight_shapes(config_of(llama))


def test_query_key_and_value_are_stacked(llama: Path) -> None:
    attention = hf_model("llama 2").model.layers[1].self_attn
    stacked = torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    assert torch.equal(read(llama)["layers.1.qkv.weight"], stacked)


def test_gemma_norms_have_one_added(tmp_path: Path) -> None:
    norm = save("gemma 3", tmp_path).model.layers[0].input_layernorm.weight
    assert torch.equal(read(tmp_path)["layers.0.attn_norm"], norm + 1)


def test_shards_are_read_like_one_file(sharded: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    whole = tmp_path_factory.mktemp("whole")
    save("llama 2", whole)
    assert len(list(sharded.glob("*.safetensors"))) > 1
    shards, single = read(sharded), read(whole)
    assert all(torch.equal(shards[name], single[name]) for name in single)


def test_weights_come_in_the_type_asked_for(llama: Path) -> None:
    assert {tensor.dtype for tensor in read(llama, torch.bfloat16).values()} == {torch.bfloat16}


def test_progress_counts_to_the_total(llama: Path) -> None:
    seen: list[tuple[int, int]] = []
    canonical_weights(
        config_of(llama), SafetensorsWeights(llama), progress=lambda done, total: seen.append((done, total))
    )
    total = len(weight_shapes(config_of(llama)))
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_a_language_model_inside_another_is_found(llama: Path) -> None:
    before = read(llama)

    def nest(tensors: dict[str, Tensor]) -> None:
        for name in list(tensors):
            tensors[f"language_model.{name}"] = tensors.pop(name)
        tensors["vision_tower.patch.weight"] = torch.ones(2)

    edit(llama, nest)
    assert torch.equal(read(llama)["layers.0.qkv.weight"], before["layers.0.qkv.weight"])


def test_stored_rope_frequencies_do_no_harm(llama: Path) -> None:
    edit(llama, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert "norm" in read(llama)


def test_missing_tensors_are_named(llama: Path) -> None:
    edit(llama, lambda tensors: tensors.pop(Q_PROJ))
    with pytest.raises(CorruptModel, match=f"lacks the tensors {Q_PROJ}"):
        read(llama)


def test_a_missing_head_is_named(llama: Path) -> None:
    edit(llama, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CorruptModel, match=r"lm_head\.weight"):
        read(llama)


def test_tensors_that_the_config_does_not_know_are_named(llama: Path) -> None:
    edit(llama, lambda tensors: tensors.update({"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}))
    with pytest.raises(CorruptModel, match=r"does not account for: model\.layers\.0\.self_attn\.q_proj\.bias"):
        read(llama)


def test_layers_beyond_the_config_are_named(llama: Path) -> None:
    config = config_of(llama)
    with pytest.raises(CorruptModel, match=r"does not account for: model\.layers\.2\."):
        canonical_weights(replace(config, layers=config.layers[:2]), SafetensorsWeights(llama))


def test_a_wrong_shape_is_named(llama: Path) -> None:
    edit(llama, lambda tensors: tensors.update({Q_PROJ: torch.ones(32, 64)}))
    with pytest.raises(CorruptModel, match=rf"{Q_PROJ} must have shape \(64, 64\), got \(32, 64\)"):
        read(llama)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_is_not_finite_is_refused(llama: Path, value: float) -> None:
    edit(llama, lambda tensors: tensors[Q_PROJ].view(-1)[7].fill_(value))
    with pytest.raises(CorruptModel, match=f"{Q_PROJ} must hold finite numbers"):
        read(llama)


def test_a_number_that_float16_cannot_hold_is_refused(llama: Path) -> None:
    edit(llama, lambda tensors: tensors[Q_PROJ].view(-1)[7].fill_(1e6))
    with pytest.raises(CorruptModel, match=r"infinity as torch\.float16"):
        read(llama, torch.float16)


def test_integer_weights_are_refused(llama: Path) -> None:
    edit(llama, lambda tensors: tensors.update({Q_PROJ: torch.ones(64, 64, dtype=torch.int8)}))
    with pytest.raises(UnsupportedModel, match=f"{Q_PROJ}.*got I8"):
        read(llama)


def test_a_truncated_file_is_refused(llama: Path) -> None:
    data = (llama / SINGLE).read_bytes()
    (llama / SINGLE).write_bytes(data[: len(data) // 2])
    with pytest.raises(CorruptModel, match="must be a whole safetensors file"):
        SafetensorsWeights(llama)


def test_a_missing_shard_is_named(sharded: Path) -> None:
    lost = sorted(sharded.glob("*.safetensors"))[1]
    lost.unlink()
    with pytest.raises(CorruptModel, match=lost.name):
        SafetensorsWeights(sharded)


def test_an_index_that_leaves_its_folder_is_refused(llama: Path) -> None:
    (llama / INDEX).write_text(json.dumps({"weight_map": {"x": "../elsewhere.safetensors"}}))
    with pytest.raises(CorruptModel, match="its own folder"):
        SafetensorsWeights(llama)


def test_an_index_without_a_map_is_refused(llama: Path) -> None:
    (llama / INDEX).write_text("{}")
    with pytest.raises(CorruptModel, match="must map tensor names"):
        SafetensorsWeights(llama)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(UnsupportedModel, match="must be safetensors"):
        SafetensorsWeights(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match=SINGLE):
        SafetensorsWeights(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", ""])
def test_a_json_file_that_is_no_object_is_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(CorruptModel, match=r"config\.json must be a JSON object"):
        read_json(tmp_path / "config.json")


# -- files and heads that contradict the config ------------------------------------------------


def test_shards_are_told_apart_by_their_numbers_where_there_is_no_index(sharded: Path) -> None:
    expected = read(sharded)["norm"]
    (sharded / INDEX).unlink()
    assert torch.equal(read(sharded)["norm"], expected)


@pytest.mark.parametrize("left", [0, 1])
def test_missing_shards_are_named_without_an_index(sharded: Path, left: int) -> None:
    (sharded / INDEX).unlink()
    shards = sorted(sharded.glob("*.safetensors"))
    for shard in shards[:left] + shards[left + 1 :]:
        shard.unlink()
    with pytest.raises(CorruptModel, match=rf"lacks .*{shards[1 - left].name}"):
        SafetensorsWeights(sharded)


def test_several_files_that_are_no_shards_are_listed(llama: Path) -> None:
    (llama / "other.safetensors").write_bytes((llama / SINGLE).read_bytes())
    (llama / SINGLE).rename(llama / "one.safetensors")
    with pytest.raises(CorruptModel, match=r"2 safetensors files apart: one\.safetensors, other\.safetensors"):
        SafetensorsWeights(llama)


@pytest.mark.parametrize("equal", [True, False])
def test_a_head_that_differs_from_a_tied_embedding_is_used_as_the_library_does(
    equal: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save("smollm2", tmp_path)

    def add_head(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"] * (1.0 if equal else 0.5)

    edit(tmp_path, add_head)
    source = SafetensorsWeights(tmp_path)
    config = with_own_head(config_of(tmp_path), source, "config.json")
    assert config.tied_embedding is equal
    assert equal or "config.json says tie_word_embeddings, but lm_head.weight differs" in caplog.text
    library = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = list(range(20))
    torch.testing.assert_close(
        our_logits(Decoder(config, canonical_weights(config, source)), tokens),
        hf_logits(library, tokens),
        atol=1e-4,
        rtol=1e-4,
    )


def test_a_missing_head_that_no_flag_explains_is_named_with_the_flag(llama: Path) -> None:
    edit(llama, lambda tensors: tensors.pop("lm_head.weight"))
    with pytest.raises(CorruptModel, match=r"lacks the tensors lm_head\.weight, .* not say tie_word_embeddings: true"):
        read(llama)


# -- tensors as they are stored ----------------------------------------------------------------


def test_stored_parts_are_the_bytes_of_the_file_and_stack_to_the_numbers(llama: Path) -> None:
    tensors = ModelTensors(config_of(llama), SafetensorsWeights(llama))
    parts = tensors.stored("layers.0.qkv.weight")
    assert [part.format.name for part in parts] == ["float32"] * 3
    stacked = torch.cat([torch.from_numpy(part.expand()) for part in parts])
    assert torch.equal(stacked, tensors.dense("layers.0.qkv.weight", torch.float32))
    in_file = load_file(llama / SINGLE)[Q_PROJ].numpy()
    assert parts[0].raw.tobytes() == in_file.tobytes()
    assert parts[0].raw.base is not None  # a view of the mapped file


@pytest.mark.parametrize(("dtype", "name"), [(torch.bfloat16, "bfloat16"), (torch.float16, "float16")])
def test_stored_parts_keep_the_type_of_the_file(dtype: torch.dtype, name: str, llama: Path) -> None:
    edit(llama, lambda tensors: tensors.update({Q_PROJ: tensors[Q_PROJ].to(dtype)}))
    part = SafetensorsWeights(llama).stored(Q_PROJ)
    assert (part.format.name, part.nbytes) == (name, 64 * 64 * 2)
    assert torch.equal(torch.from_numpy(part.expand()), load_file(llama / SINGLE)[Q_PROJ].float())
