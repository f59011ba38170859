"""What a `config.json` means, in its old and its new spelling, and what of it is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import CONFIG_MAPPING
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.config import LayerSpec, RopeSpec
from gamaneh.models.families import decoder_config
from gamaneh.models.rope import rope_frequencies

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-5,
}


def llama(**changes: Any) -> dict[str, Any]:
    return {**LLAMA, **changes}


def of(kind: str, architecture: str, **changes: Any) -> dict[str, Any]:
    return llama(model_type=kind, architectures=[architecture], **changes)


def test_a_plain_llama() -> None:
    config = decoder_config(llama(bos_token_id=1, eos_token_id=[2, 3], rope_theta=500.0))
    assert (config.vocab_size, config.hidden_size, config.intermediate_size) == (128, 64, 96)
    assert (config.num_heads, config.num_kv_heads, config.head_dim) == (4, 2, 16)
    assert config.layers == (LayerSpec(),) * 4
    assert config.ropes == (RopeSpec(theta=500.0),)
    assert (config.bos_id, config.eos_ids) == (1, (2, 3))
    assert not config.tied_embedding


@pytest.mark.parametrize("kind_key", ["type", "rope_type"])
def test_old_rope_keys_mean_the_new_ones(kind_key: str) -> None:
    scaling = {"factor": 4.0, "original_max_position_embeddings": 256}
    old = llama(rope_theta=1e6, rope_scaling={kind_key: "yarn", **scaling})
    new = llama(rope_parameters={"rope_theta": 1e6, "rope_type": "yarn", **scaling})
    assert decoder_config(old) == decoder_config(new)
    assert decoder_config(old).ropes == (RopeSpec(theta=1e6, scaling="yarn", factor=4.0, original_context=256),)


def test_llama3_scaling() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    }
    config = decoder_config(llama(rope_theta=5e5, rope_scaling=scaling))
    assert config.ropes == (RopeSpec(theta=5e5, scaling="llama3", factor=32.0, original_context=512),)
    assert config.max_context == 1024


def test_dynamic_scaling_stretches_the_context() -> None:
    config = decoder_config(llama(rope_scaling={"type": "dynamic", "factor": 3.0}))
    assert config.ropes == (RopeSpec(scaling="dynamic", factor=3.0, original_context=1024),)
    assert config.max_context == 3072


def test_yarn_beyond_the_stated_context_stretches_it() -> None:
    scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    assert decoder_config(llama(rope_scaling=scaling)).max_context == 4096


def test_mistral_has_one_window_in_all_layers() -> None:
    config = decoder_config(of("mistral", "MistralForCausalLM", sliding_window=256))
    assert config.layers == (LayerSpec(window=256),) * 4


def test_qwen2_windows_begin_after_the_first_layers() -> None:
    windows = {"use_sliding_window": True, "sliding_window": 256, "max_window_layers": 3}
    config = decoder_config(of("qwen2", "Qwen2ForCausalLM", **windows))
    assert [layer.window for layer in config.layers] == [None, None, None, 256]
    assert config.qkv_bias
    assert not config.out_bias


def test_qwen2_ignores_its_window_when_it_is_off() -> None:
    config = decoder_config(of("qwen2", "Qwen2ForCausalLM", use_sliding_window=False, sliding_window=256))
    assert config.layers == (LayerSpec(),) * 4


def test_qwen3_norms_queries_and_keys() -> None:
    config = decoder_config(of("qwen3", "Qwen3ForCausalLM", head_dim=32))
    assert config.qk_norm
    assert config.head_dim == 32


def test_smollm3_skips_rotation_in_every_fourth_layer() -> None:
    config = decoder_config(of("smollm3", "SmolLM3ForCausalLM"))
    assert [layer.rope for layer in config.layers] == [0, 0, 0, None]


GEMMA_TEXT: dict[str, Any] = {
    "model_type": "gemma3_text",
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "query_pre_attn_scalar": 16,
    "sliding_window": 128,
    "rope_scaling": {"rope_type": "linear", "factor": 8.0},
}


def test_gemma3_mixes_local_and_global_layers() -> None:
    config = decoder_config({**GEMMA_TEXT, "architectures": ["Gemma3ForCausalLM"]})
    assert config.layers == (*(LayerSpec(window=128, rope=1),) * 5, LayerSpec(window=None, rope=0))
    assert config.ropes == (RopeSpec(theta=1e6, scaling="linear", factor=8.0), RopeSpec(theta=1e4))
    assert (config.embedding_scale, config.scale) == (8.0, 0.25)
    assert (config.qk_norm, config.post_norms, config.tied_embedding) == (True, True, True)
    assert config.activation == "gelu_tanh"


def test_gemma3_with_vision_is_read_for_its_text() -> None:
    wrapped = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": GEMMA_TEXT,
        "vision_config": {},
        "eos_token_id": [1, 106],
    }
    config = decoder_config(wrapped)
    assert config.eos_ids == (1, 106)
    assert config.layers == decoder_config(GEMMA_TEXT).layers


def test_the_input_is_left_as_it_was() -> None:
    hf = llama(rope_scaling={"type": "linear", "factor": 2.0})
    decoder_config(hf)
    assert hf == llama(rope_scaling={"type": "linear", "factor": 2.0})


def test_an_unknown_architecture_is_named_beside_those_supported() -> None:
    with pytest.raises(UnsupportedModel, match=r"LlamaForCausalLM.*got 'MambaForCausalLM'"):
        decoder_config({"architectures": ["MambaForCausalLM"], "model_type": "mamba"})


def test_a_config_without_a_type_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="model_type None"):
        decoder_config({"hidden_size": 64})


def test_another_head_on_a_known_family_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="LlamaForSequenceClassification"):
        decoder_config(llama(architectures=["LlamaForSequenceClassification"]))


@pytest.mark.parametrize(
    ("feature", "hf"),
    [
        (
            "longrope",
            llama(rope_scaling={"rope_type": "longrope", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}),
        ),
        ("mystery", llama(rope_scaling={"rope_type": "mystery", "factor": 2.0})),
        ("partial_rotary_factor", llama(partial_rotary_factor=0.5)),
        ("mrope_section", llama(rope_scaling={"rope_type": "default", "mrope_section": [2, 3, 3]})),
        ("attn_logit_softcapping", {**GEMMA_TEXT, "attn_logit_softcapping": 50.0}),
        ("final_logit_softcapping", llama(final_logit_softcapping=30.0)),
        ("use_bidirectional_attention", {**GEMMA_TEXT, "use_bidirectional_attention": True}),
        ("num_local_experts", llama(num_local_experts=8)),
        ("quantization_config", llama(quantization_config={"quant_method": "awq"})),
        ("relu", llama(hidden_act="relu")),
        ("chunked_attention", of("qwen3", "Qwen3ForCausalLM", layer_types=["chunked_attention"] * 4)),
    ],
)
@pytest.mark.filterwarnings("ignore")
def test_a_feature_that_we_lack_is_refused_by_name(feature: str, hf: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedModel, match=feature):
        decoder_config(hf)


@pytest.mark.parametrize(
    ("what", "hf"),
    [
        ("num_key_value_heads", llama(num_key_value_heads=3)),
        ("head_dim", llama(head_dim=15)),
        ("num_hidden_layers", llama(num_hidden_layers=0)),
        ("vocab_size", llama(vocab_size="many")),
        ("layer_types", of("qwen3", "Qwen3ForCausalLM", layer_types=["full_attention"] * 3)),
        ("sliding_window", of("qwen3", "Qwen3ForCausalLM", layer_types=["sliding_attention"] * 4)),
    ],
)
def test_values_that_make_no_model_are_refused_by_name(what: str, hf: dict[str, Any]) -> None:
    with pytest.raises(CorruptModel, match=what):
        decoder_config(hf)


# -- spellings of rope ------------------------------------------------------------------------

LLAMA3_ROPE: dict[str, Any] = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}

SPELLINGS: dict[str, dict[str, Any]] = {
    "old": {"rope_theta": 5e5, "rope_scaling": {"rope_type": "llama3", **LLAMA3_ROPE}},
    "oldest": {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", **LLAMA3_ROPE}},
    "both types": {"rope_theta": 5e5, "rope_scaling": {"type": "llama3", "rope_type": "llama3", **LLAMA3_ROPE}},
    "new": {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3_ROPE}},
    "new, old base": {"rope_theta": 5e5, "rope_parameters": {"rope_type": "llama3", **LLAMA3_ROPE}},
    "new, old null": {
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3_ROPE},
    },
    "both, agreeing": {
        "rope_theta": 500000,
        "rope_scaling": {"type": "llama3", **LLAMA3_ROPE},
        "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3_ROPE},
    },
    "original length at the top": {
        "rope_theta": 5e5,
        "original_max_position_embeddings": 256,
        "rope_scaling": {
            "rope_type": "llama3",
            **{key: value for key, value in LLAMA3_ROPE.items() if key.endswith("factor")},
        },
    },
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_of_rope_means_what_it_means_to_the_library(spelling: str) -> None:
    hf = llama(**SPELLINGS[spelling])
    [spec] = decoder_config(hf).ropes
    assert spec == RopeSpec(theta=5e5, scaling="llama3", factor=8.0, original_context=256)
    theirs = LlamaRotaryEmbedding(CONFIG_MAPPING["llama"].from_dict(copy.deepcopy(hf))).inv_freq
    torch.testing.assert_close(rope_frequencies(spec, 16, torch.zeros(1)), theirs, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"rope_theta": 1e4, "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            r"rope_theta and rope_parameters\.rope_theta must agree, got 10000\.0 and 500000\.0",
        ),
        (
            {"rope_theta": 1e4, "rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 2.0}},
            r"rope_scaling\.type and rope_scaling\.rope_type must agree, got 'linear' and 'yarn'",
        ),
        (
            {
                "rope_scaling": {"rope_type": "linear", "factor": 2.0},
                "rope_parameters": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
            },
            r"rope_parameters\.factor and rope_scaling\.factor must agree, got 4\.0 and 2\.0",
        ),
        (
            {
                "original_max_position_embeddings": 512,
                "rope_scaling": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 256},
            },
            r"rope_scaling\.original_max_position_embeddings and original_max_position_embeddings must agree",
        ),
    ],
)
def test_places_that_contradict_each_other_are_refused_with_both_keys(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptModel, match=rf"^config\.json: {message}"):
        decoder_config(llama(**changes))


def scaled(kind: str, **changes: Any) -> dict[str, Any]:
    return llama(rope_theta=1e4, rope_scaling={"rope_type": kind, **changes})


@pytest.mark.parametrize(
    ("hf", "message"),
    [
        (llama(rope_theta="500000.0"), r"rope_theta must be a number above 0, got '500000\.0'"),
        (llama(rope_theta=0), "rope_theta must be a number above 0, got 0"),
        (llama(rope_theta=float("nan")), "rope_theta must be a number above 0, got nan"),
        (llama(rope_theta=True), "rope_theta must be a number above 0, got True"),
        (scaled("linear", factor=0), "factor must be a number above 0, got 0"),
        (scaled("linear"), "factor must be given where rope_type is linear"),
        (scaled("llama3", factor=8.0), "low_freq_factor must be given where rope_type is llama3"),
        (
            scaled("llama3", **{**LLAMA3_ROPE, "low_freq_factor": 4.0}),
            r"low_freq_factor must be below high_freq_factor",
        ),
        (
            scaled("yarn", factor=2.0, original_max_position_embeddings="4k"),
            "original_max_position_embeddings must be a whole number of at least 1",
        ),
        (llama(rope_scaling=[4.0]), "rope_scaling must be an object"),
        (llama(num_attention_heads="4"), "num_attention_heads must be a whole number of at least 1, got '4'"),
        (llama(num_key_value_heads=0), "num_key_value_heads must be a whole number of at least 1, got 0"),
        (llama(rms_norm_eps="tiny"), "rms_norm_eps must be a number above 0, got 'tiny'"),
        (llama(bos_token_id=128), "bos_token_id must hold token ids from 0 to 127, got 128"),
    ],
)
def test_a_bad_value_is_an_error_by_file_key_rule_and_value(hf: dict[str, Any], message: str) -> None:
    with pytest.raises(CorruptModel, match=rf"^config\.json: {message}"):
        decoder_config(hf)


def test_what_a_config_leaves_out_is_taken_from_the_library_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    left_out = ("rms_norm_eps", "num_attention_heads")
    config = decoder_config({key: value for key, value in LLAMA.items() if key not in left_out})
    assert (config.ropes, config.norm_eps, config.num_heads) == ((RopeSpec(),), 1e-6, 32)
    assert "num_attention_heads 32, rms_norm_eps 1e-06" in caplog.text
    assert "does not give rope_theta; taking 10000.0" in caplog.text


def test_a_whole_config_is_read_without_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    decoder_config(llama(rope_theta=1e4))
    assert not caplog.records


def test_longrope_that_does_not_depend_on_the_length_is_read() -> None:
    factors = {"short_factor": [1.0, 2.0] * 4, "long_factor": [1.0, 2.0] * 4, "attention_factor": 1.0}
    [spec] = decoder_config(scaled("longrope", original_max_position_embeddings=1024, **factors)).ropes
    assert spec == RopeSpec(theta=1e4, divisors=(1.0, 2.0) * 4)
