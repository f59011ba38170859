"""GGUF files: read to the same logits as the model they were made of, and refused by name when damaged."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType
from gguf_models import GgufDraft, as_gguf
from hf_models import VOCAB, hf_logits, hf_model, our_logits
from torch import Tensor

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.canonical import ModelTensors, canonical_weights
from gamaneh.models.config import DecoderConfig, RopeSpec
from gamaneh.models.decoder import Decoder
from gamaneh.models.formats.known import GGUF_FORMATS
from gamaneh.models.gguf import GgufWeights, gguf_config, stated_ends
from gamaneh.models.gguf_file import GgufFile
from gamaneh.models.rope import rope_frequencies
from gamaneh.models.weights import expand_into

TOKENS = torch.randint(0, VOCAB, (48,), generator=torch.Generator().manual_seed(1)).tolist()

MODELS = {
    "llama 2": ("llama", {}),
    "llama with biases": ("llama", {}),
    "smollm2": ("llama", {}),
    "mistral": ("llama", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 1, 1]}),
    "gemma 2": ("gemma2", {"query_pre_attn_scalar": 32}),
    "gemma 3": ("gemma3", {"layer_types": ["sliding_attention"] * 3, "query_pre_attn_scalar": 32}),
}
"""Name in hf_models -> architecture, and what the file leaves to convention."""


def draft(name: str = "llama 2") -> GgufDraft:
    architecture, conventions = MODELS[name]
    return as_gguf(hf_model(name, **conventions), architecture)


def written(tmp_path: Path, name: str = "llama 2", **metadata: Any) -> Path:
    """A model's file, with metadata of its architecture changed (None: left out)."""
    made = draft(name)
    for key, value in metadata.items():
        made.metadata[f"{made.architecture}.{key}"] = value
    made.metadata = {key: value for key, value in made.metadata.items() if value is not None}
    return made.write(tmp_path / "model.gguf")


def config_of(path: Path) -> DecoderConfig:
    return gguf_config(GgufFile(path))


def decoder_of(path: Path) -> Decoder:
    file = GgufFile(path)
    config = gguf_config(file)
    return Decoder(config, canonical_weights(config, GgufWeights(file, config)))


def read(path: Path, dtype: torch.dtype = torch.float32) -> Tensor:
    """The tensor `x` of a file, as numbers."""
    stored = GgufFile(path).stored("x")
    out = torch.empty(stored.shape, dtype=dtype)
    expand_into(out, stored)
    return out


@pytest.mark.parametrize("name", MODELS)
def test_logits_equal_those_of_the_model_it_was_made_of(name: str, tmp_path: Path) -> None:
    architecture, conventions = MODELS[name]
    model = hf_model(name, **conventions)
    decoder = decoder_of(as_gguf(model, architecture).write(tmp_path / "model.gguf"))
    torch.testing.assert_close(our_logits(decoder, TOKENS), hf_logits(model, TOKENS), atol=1e-4, rtol=1e-4)


def test_smollm3_skips_rotation_in_every_fourth_layer(tmp_path: Path) -> None:
    config = config_of(written(tmp_path, "smollm3", block_count=8))
    assert [layer.rope for layer in config.layers] == [0, 0, 0, None] * 2


def test_gemma3_has_a_global_layer_after_five_local_ones(tmp_path: Path) -> None:
    config = config_of(written(tmp_path, "gemma 3", block_count=6))
    assert [layer.window for layer in config.layers] == [16, 16, 16, 16, 16, None]
    assert config.ropes == (RopeSpec(theta=1e6, scaling="linear", factor=8.0), RopeSpec(theta=1e4))


@pytest.mark.parametrize(("window", "seen"), [(16, 16), (0, None), (None, None), (128, None)])
def test_a_llama_that_names_a_window_has_it_in_all_layers(window: int, seen: int | None, tmp_path: Path) -> None:
    config = config_of(written(tmp_path, **{"attention.sliding_window": window, "context_length": 128}))
    assert [layer.window for layer in config.layers] == [seen] * config.num_layers


def test_a_window_whose_layers_are_not_known_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"qwen2 file must not have attention\.sliding_window, got 16"):
        config_of(written(tmp_path, "qwen2", **{"attention.sliding_window": 16}))
    with pytest.raises(UnsupportedModel, match=r"llama\.attention\.sliding_window_pattern"):
        config_of(written(tmp_path, **{"attention.sliding_window": 16, "attention.sliding_window_pattern": 6}))


def test_yarn_is_read(tmp_path: Path) -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 64}
    config = config_of(written(tmp_path, "qwen2", **{f"rope.scaling.{key}": value for key, value in scaling.items()}))
    assert config.ropes == (RopeSpec(theta=10000.0, scaling="yarn", factor=4.0, original_context=64),)


# -- tensor types ------------------------------------------------------------------------------

ERRORS = {"F16": 1e-3, "BF16": 1e-2, "Q8_0": 2e-2, "Q5_0": 0.15, "Q5_1": 0.15, "Q4_0": 0.3, "Q4_1": 0.3}
"""Largest error on normal noise: about half a step of the type."""


@pytest.mark.parametrize("kind", ERRORS)
def test_a_quantised_tensor_comes_back_within_its_error(kind: str, tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal((48, 64), dtype=np.float32)
    made = GgufDraft("llama", tensors={"x": noise}, kinds={"x": GGMLQuantizationType[kind]})
    back = read(made.write(tmp_path / "x.gguf"))
    assert 0 < (back - torch.from_numpy(noise)).abs().max() < ERRORS[kind]


@pytest.mark.parametrize("kind", GGUF_FORMATS)
def test_chunks_are_joined_to_what_the_library_reads_at_once(kind: str, tmp_path: Path) -> None:
    kind_type = GGMLQuantizationType[kind]
    block, block_bytes = gguf.GGML_QUANT_SIZES[kind_type]
    columns = 256
    raw = np.random.default_rng(0).integers(0, 60, (700, columns // block * block_bytes), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("x", raw, raw_dtype=kind_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    expected = torch.from_numpy(gguf.quants.dequantize(raw, kind_type).copy())
    assert torch.equal(read(tmp_path / "x.gguf"), expected)


def test_a_tensor_comes_in_the_type_asked_for(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).standard_normal((4, 8), dtype=np.float32)
    path = GgufDraft("llama", tensors={"x": noise}).write(tmp_path / "x.gguf")
    assert torch.equal(read(path, torch.bfloat16), torch.from_numpy(noise).bfloat16())


def test_a_tensor_type_that_we_lack_is_named(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    writer.add_tensor("blk.0.x", np.zeros((1, 64), dtype=np.int8))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.x must be one of F32.*got I8"):
        GgufFile(tmp_path / "x.gguf")


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "F16"])
def test_blocks_of_reordered_rows_are_those_of_the_file(kind: str, tmp_path: Path) -> None:
    made = draft()
    name = "blk.0.attn_q.weight"
    made.kinds[name] = GGMLQuantizationType[kind]
    file = GgufFile(made.write(tmp_path / "model.gguf"))
    config = gguf_config(file)
    part = ModelTensors(config, GgufWeights(file, config)).stored("layers.0.qkv.weight")[0]
    assert part.format.name == {"F16": "float16"}.get(kind, kind)
    assert sorted(map(bytes, part.raw)) == sorted(map(bytes, file.stored(name).raw))
    ours = hf_model("llama 2").model.layers[0].self_attn.q_proj.weight.detach()
    assert (torch.from_numpy(part.expand()) - ours).abs().max() < 0.1


# -- metadata --------------------------------------------------------------------------------


def test_metadata_is_what_the_library_reads(tmp_path: Path) -> None:
    made = draft()
    made.metadata |= {"text": "گمانه", "texts": ["a", "", "ب"], "numbers": [1, 2, 3], "flag": True}
    path = made.write(tmp_path / "model.gguf")
    expected = {key: entry.contents() for key, entry in gguf.GGUFReader(path).fields.items()}
    assert GgufFile(path).metadata == {key: expected[key] for key in expected if not key.startswith("GGUF.")}


def test_an_unknown_architecture_is_named_beside_those_supported(tmp_path: Path) -> None:
    path = GgufDraft("mamba").write(tmp_path / "x.gguf")
    with pytest.raises(UnsupportedModel, match=r"llama, qwen2.*got 'mamba'"):
        config_of(path)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match=r"llama\.feed_forward_length"):
        config_of(written(tmp_path, feed_forward_length=None))


@pytest.mark.parametrize(
    ("key", "value"),
    [("expert_count", 8), ("final_logit_softcapping", 30.0), ("rope.dimension_count", 8), ("rope.scaling.type", "su")],
)
def test_a_feature_that_we_lack_is_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=key if key != "rope.scaling.type" else "'su'"):
        config_of(written(tmp_path, **{key: value}))


def test_layers_of_different_sizes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=r"llama\.feed_forward_length must be the same in all layers"):
        config_of(written(tmp_path, feed_forward_length=[96, 96, 48]))


# -- keys that change the arithmetic -----------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", False),
        ("attention.alibi_bias_max", 8.0),
        ("attention.max_alibi_bias", 8.0),
        ("rope.scaling.attn_factor", 1.2),
        ("rope.scaling.yarn_attn_factor", 1.2),
        ("rope.scaling.yarn_ext_factor", 0.5),
        ("logit_scale", 0.0625),
        ("expert_count", 8),
        ("a_key_of_tomorrow", 1),
    ],
)
def test_a_key_that_may_change_the_arithmetic_is_refused_by_name(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=rf"model\.gguf: llama\.{key} is a .* we do not .*got {value}"):
        config_of(written(tmp_path, **{key: value}))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("attention.causal", True),
        ("attention.alibi_bias_max", 0.0),
        ("rope.scaling.attn_factor", 1.0),
        ("rope.scaling.factor", 1.0),
        ("rope.scaling.yarn_beta_fast", 32.0),
        ("rope.scaling.finetuned", False),
        ("logit_scale", 1.0),
        ("expert_count", 0),
        ("vocab_size", VOCAB),
    ],
)
def test_a_key_that_changes_nothing_is_accepted(key: str, value: Any, tmp_path: Path) -> None:
    assert config_of(written(tmp_path, **{key: value})) == config_of(written(tmp_path))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope.scaling.factor": 4.0}, r"llama\.rope\.scaling\.factor must come with llama\.rope\.scaling\.type"),
        ({"rope.scaling.factor": 4.0, "rope.scaling.type": "none"}, r"factor must come with .*'none'"),
        ({"rope.scaling.yarn_beta_fast": 16.0}, r"llama\.rope\.scaling\.yarn_beta_fast must come with yarn"),
        ({"rope.freq_base": "500000.0"}, r"llama\.rope\.freq_base must be a number above 0, got '500000\.0'"),
        ({"rope.freq_base": 0.0}, r"llama\.rope\.freq_base must be a number above 0, got 0"),
        ({"rope.scaling.factor": 0.0, "rope.scaling.type": "linear"}, r"factor must be a number above 0"),
        ({"vocab_size": VOCAB + 1}, rf"llama\.vocab_size must be the rows of token_embd\.weight \({VOCAB}\)"),
        ({"attention.head_count": 0}, r"llama\.attention\.head_count must be a whole number of at least 1, got 0"),
    ],
)
def test_keys_that_contradict_each_other_or_their_rule_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(CorruptModel, match=message):
        config_of(written(tmp_path, **changes))


def test_a_base_that_is_not_given_is_warned_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert config_of(written(tmp_path, **{"rope.freq_base": None})).ropes == (RopeSpec(theta=10000.0),)
    assert "does not give llama.rope.freq_base; taking 10000.0" in caplog.text


# -- split models ------------------------------------------------------------------------------


def split(tmp_path: Path, count: int = 3) -> list[Path]:
    """A model in several files, as llama.cpp splits one; metadata is in the first."""
    made = draft()
    names = list(made.tensors)
    paths = []
    for number in range(count):
        part = GgufDraft(made.architecture, dict(made.metadata) if number == 0 else {})
        part.metadata |= {"split.no": number, "split.count": count, "split.tensors.count": len(names)}
        part.tensors = {name: made.tensors[name] for name in names[number::count]}
        paths.append(part.write(tmp_path / f"tiny-{number + 1:05}-of-{count:05}.gguf"))
    return paths


@pytest.mark.parametrize("named", [0, 2])
def test_a_split_model_is_read_as_one(named: int, tmp_path: Path) -> None:
    decoder = decoder_of(split(tmp_path)[named])
    torch.testing.assert_close(
        our_logits(decoder, TOKENS), hf_logits(hf_model("llama 2"), TOKENS), atol=1e-4, rtol=1e-4
    )


def test_missing_parts_of_a_split_model_are_named(tmp_path: Path) -> None:
    paths = split(tmp_path)
    paths[1].unlink()
    with pytest.raises(CorruptModel, match=r"all 3 parts of the model, lacks tiny-00002-of-00003\.gguf"):
        GgufFile(paths[0])


def test_a_part_under_another_name_is_refused(tmp_path: Path) -> None:
    alone = split(tmp_path)[0].rename(tmp_path / "model.gguf")
    with pytest.raises(CorruptModel, match=r"a part of 3 and must be named NAME-00001-of-00003\.gguf"):
        GgufFile(alone)


def test_parts_that_lack_tensors_are_refused(tmp_path: Path) -> None:
    first = split(tmp_path, 2)[0]
    made = GgufDraft("llama", {"split.no": 1, "split.count": 2, "split.tensors.count": 30})
    made.write(tmp_path / "tiny-00002-of-00002.gguf")
    with pytest.raises(CorruptModel, match=r"must hold \d+ tensors together"):
        GgufFile(first)


def test_an_unknown_tensor_is_named(tmp_path: Path) -> None:
    made = draft()
    made.tensors["blk.0.ffn_gate_inp.weight"] = np.ones((8, 64), dtype=np.float32)
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.ffn_gate_inp\.weight"):
        decoder_of(made.write(tmp_path / "model.gguf"))


def test_a_wrong_shape_is_named(tmp_path: Path) -> None:
    made = draft()
    made.tensors["blk.0.ffn_up.weight"] = made.tensors["blk.0.ffn_up.weight"][:48]
    with pytest.raises(CorruptModel, match=r"mlp\.up_proj\.weight must have shape \(96, 64\), got \(48, 64\)"):
        decoder_of(made.write(tmp_path / "model.gguf"))


def test_nan_weights_are_refused(tmp_path: Path) -> None:
    made = draft()
    made.tensors["blk.1.ffn_up.weight"] = np.full((96, 64), np.nan, dtype=np.float32)
    with pytest.raises(CorruptModel, match=r"layers\.1\.mlp\.up_proj\.weight must hold finite numbers"):
        decoder_of(made.write(tmp_path / "model.gguf"))


def llama3_divisors(factor: float, original: int = 8192) -> np.ndarray[Any, Any]:
    scaled = RopeSpec(scaling="llama3", factor=factor, original_context=original)
    origin = torch.zeros(1)
    return (rope_frequencies(RopeSpec(), 16, origin) / rope_frequencies(scaled, 16, origin)).numpy()


@pytest.mark.parametrize("original", [8192, 32])
def test_rope_divisors_are_used_as_the_file_gives_them(original: int, tmp_path: Path) -> None:
    rope = {"rope_theta": 1e4, "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    model = hf_model("llama 2", rope_parameters={**rope, "original_max_position_embeddings": original})
    made = as_gguf(model, "llama")
    made.tensors["rope_freqs.weight"] = llama3_divisors(8.0, original=original)
    decoder = decoder_of(made.write(tmp_path / "model.gguf"))
    torch.testing.assert_close(our_logits(decoder, TOKENS), hf_logits(model, TOKENS), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("divisors", [[1.0] * 7, [1.0] * 7 + [0.0], [1.0] * 7 + [float("nan")]])
def test_divisors_that_are_none_are_refused(divisors: list[float], tmp_path: Path) -> None:
    made = draft()
    made.tensors["rope_freqs.weight"] = np.asarray(divisors, dtype=np.float32)
    with pytest.raises(CorruptModel, match=r"rope_freqs\.weight must hold 8 numbers above 0"):
        config_of(made.write(tmp_path / "model.gguf"))


def test_divisors_beside_another_scaling_are_refused(tmp_path: Path) -> None:
    made = draft()
    made.metadata |= {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    made.metadata |= {"llama.rope.scaling.original_context_length": 64}
    made.tensors["rope_freqs.weight"] = llama3_divisors(8.0)
    with pytest.raises(UnsupportedModel, match=r"rope_freqs\.weight must stand beside no other scaling, got yarn"):
        config_of(made.write(tmp_path / "model.gguf"))


def test_end_tokens_are_those_named_and_control_tokens_known_to_end() -> None:
    metadata = {
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.tokens": ["a", "<|im_end|>", "<|endoftext|>", "<|im_end|>"],
        "tokenizer.ggml.token_type": [1, 1, 3, 3],
    }
    assert stated_ends(metadata, "model.gguf", rows=4) == (3, 2)
    assert stated_ends(metadata | {"tokenizer.ggml.eot_token_id": 0}, "model.gguf", rows=4) == (3, 0, 2)


def test_an_end_token_outside_the_rows_is_refused() -> None:
    with pytest.raises(CorruptModel, match=r"model\.gguf: tokenizer\.ggml\.eot_token_id must hold token ids"):
        stated_ends({"tokenizer.ggml.eot_token_id": 2}, "model.gguf", rows=2)


# -- damaged files --------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.0, 0.001, 0.02, 0.5, 0.999])
def test_a_truncated_file_is_refused_with_its_path(share: float, tmp_path: Path) -> None:
    path = written(tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(CorruptModel, match=r"model\.gguf"):
        GgufFile(path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(CorruptModel, match=r"model\.gguf: it is no GGUF file"):
        GgufFile(path)


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 1, 0, 0))
    with pytest.raises(UnsupportedModel, match=r"version must be 2 or 3.*got 1"):
        GgufFile(path)


def test_a_header_that_promises_too_much_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    key = struct.pack("<Q", 1) + b"k" + struct.pack("<IIQ", 9, 4, 2**62)
    path.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + key)
    with pytest.raises(CorruptModel, match="breaks off"):
        GgufFile(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptModel, match=r"absent\.gguf cannot be read"):
        GgufFile(tmp_path / "absent.gguf")
