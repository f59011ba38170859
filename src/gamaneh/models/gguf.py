"""GGUF models: metadata to a config, and tensors under the names and in the layout of Hugging Face."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.config import DecoderConfig, RopeSpec
from gamaneh.models.families import decoder_config
from gamaneh.models.gguf_file import GgufFile, Metadata
from gamaneh.models.gguf_tokenizer import CONTROL
from gamaneh.models.rope import rope_frequencies


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """What llama.cpp's converter did to the models of one `general.architecture`.

    Args:
        model_type: the family in `families.py`.
        permuted: query and key rows were reordered so that rotated pairs lie side by side.
        norm_shift: number that was added to the norm weights.
        names: where its tensor names differ from the common ones.
    """

    model_type: str
    permuted: bool = False
    norm_shift: float = 0.0
    names: Mapping[str, str] | None = None


ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "llama": GgufArchitecture("llama", permuted=True),
    "qwen2": GgufArchitecture("qwen2"),
    "qwen3": GgufArchitecture("qwen3"),
    "smollm3": GgufArchitecture("smollm3", permuted=True),
    "gemma3": GgufArchitecture(
        "gemma3_text",
        norm_shift=1.0,
        names={
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        },
    ),
}
"""By `general.architecture`; Mistral files say llama, see `_model_type`."""

END_TOKENS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>", "<|end|>", "<end_of_turn>"}
)
"""Control tokens that end the output even where the metadata does not say so."""

_FREQUENCY_FACTORS = "rope_freqs.weight"

_FIXED_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufWeights:
    """The tensors of a GGUF model, as Hugging Face stores them.

    Raises:
        UnsupportedModel: a tensor whose meaning we do not know.
    """

    def __init__(self, file: GgufFile, config: DecoderConfig) -> None:
        self._file, self._config = file, config
        self._architecture = _architecture(file.metadata)
        self._origins = {
            _hf_name(name, self._architecture): name for name in file.tensors if name != _FREQUENCY_FACTORS
        }

    @property
    def names(self) -> Collection[str]:
        return self._origins.keys()

    def get(self, name: str, dtype: torch.dtype) -> Tensor:
        tensor = self._file.read(self._origins[name], dtype)
        if self._architecture.permuted and "self_attn.q_proj." in name:
            return _unpermute(tensor, self._config.num_heads, name)
        if self._architecture.permuted and "self_attn.k_proj." in name:
            return _unpermute(tensor, self._config.num_kv_heads, name)
        if self._architecture.norm_shift and name.endswith("norm.weight"):
            return tensor - self._architecture.norm_shift
        return tensor

    def close(self) -> None:
        self._file.close()


def gguf_config(file: GgufFile) -> DecoderConfig:
    """Read the metadata of a model.

    Raises:
        UnsupportedModel: an architecture, a rope scaling or a feature that we do not have.
        CorruptModel: a key is missing.
    """
    architecture = _architecture(file.metadata)
    values = _Values(file.metadata)
    values.refuse(*_REFUSED)
    model_type = _model_type(architecture, values)
    heads, hidden = values.need("attention.head_count"), values.need("embedding_length")
    head_dim = values.get("attention.key_length", hidden // max(heads, 1))
    for key in ("attention.value_length", "rope.dimension_count"):
        if values.get(key, head_dim) != head_dim:
            raise UnsupportedModel(f"{key} must equal the head's size ({head_dim}), got {values.get(key)}")
    return decoder_config(
        {
            "model_type": model_type,
            "vocab_size": _vocab_size(file),
            "hidden_size": hidden,
            "intermediate_size": values.need("feed_forward_length"),
            "num_hidden_layers": values.need("block_count"),
            "num_attention_heads": heads,
            "num_key_value_heads": values.get("attention.head_count_kv", heads),
            "head_dim": head_dim,
            "max_position_embeddings": values.need("context_length"),
            "rms_norm_eps": values.need("attention.layer_norm_rms_epsilon"),
            "tie_word_embeddings": "output.weight" not in file.tensors,
            "bos_token_id": file.metadata.get("tokenizer.ggml.bos_token_id"),
            "eos_token_id": list(end_ids(file.metadata)),
            **_own_settings(file, values, model_type, head_dim),
        }
    )


def end_ids(metadata: Metadata) -> tuple[int, ...]:
    """Tokens that end the output: those of the metadata first, then control tokens known by their text."""
    keys = [f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom")]
    named = [metadata[key] for key in keys if key in metadata]
    tokens = metadata.get("tokenizer.ggml.tokens", ())
    kinds = metadata.get("tokenizer.ggml.token_type", ())
    known = [
        at for at, (text, kind) in enumerate(zip(tokens, kinds, strict=False)) if kind == CONTROL and text in END_TOKENS
    ]
    return tuple(dict.fromkeys([*named, *known]))


class _Values:
    """Metadata of one architecture, without its prefix."""

    def __init__(self, metadata: Metadata) -> None:
        self._metadata, self._prefix = metadata, metadata["general.architecture"]

    def get(self, key: str, default: Any = None) -> Any:
        value = self._metadata.get(f"{self._prefix}.{key}", default)
        if not isinstance(value, list):
            return value
        if len(set(value)) != 1:
            raise UnsupportedModel(f"{self._prefix}.{key} must be the same in all layers, got {value}")
        return value[0]

    def need(self, key: str) -> Any:
        value = self.get(key)
        if value is None:
            raise CorruptModel(f"GGUF metadata must have {self._prefix}.{key}, got none")
        return value

    def refuse(self, *keys: str) -> None:
        for key in keys:
            if self.get(key):
                raise UnsupportedModel(f"{self._prefix}.{key} is a feature that we do not have, got {self.get(key)}")


_REFUSED = (
    "expert_count",
    "attention.scale",
    "attention.clamp_kqv",
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "embedding_scale",
    "residual_scale",
    "logit_scale",
)


def _architecture(metadata: Metadata) -> GgufArchitecture:
    name = metadata.get("general.architecture")
    if name is None or name not in ARCHITECTURES:
        raise UnsupportedModel(f"GGUF architecture must be one of {', '.join(ARCHITECTURES)}; got {name!r}")
    return ARCHITECTURES[name]


def _model_type(architecture: GgufArchitecture, values: _Values) -> str:
    """The family; a Llama that names a window in all its layers is a Mistral.

    A window as long as the context cuts nothing off, whichever layers have it.
    """
    kind, window = architecture.model_type, values.get("attention.sliding_window")
    if kind == "gemma3_text" or not window or window >= values.need("context_length"):
        return kind
    values.refuse("attention.sliding_window_pattern")
    if kind != "llama":
        raise UnsupportedModel(f"a {kind} file must not have attention.sliding_window, got {window}")
    return "mistral"


def _vocab_size(file: GgufFile) -> int:
    if "token_embd.weight" not in file.tensors:
        raise CorruptModel(f"{file.path} must hold the tensor token_embd.weight, got none")
    return file.tensors["token_embd.weight"].shape[0]


def _own_settings(file: GgufFile, values: _Values, model_type: str, head_dim: int) -> dict[str, Any]:
    """What a family's `config.json` says in its own way."""
    if model_type == "gemma3_text":
        return _gemma3_settings(values, head_dim)
    theta = values.get("rope.freq_base", 10000.0)
    rope = {"rope_theta": theta, **_rope_scaling(values), **_frequency_scaling(file, theta, head_dim)}
    biased = {"attention_bias": "blk.0.attn_q.bias" in file.tensors, "mlp_bias": "blk.0.ffn_up.bias" in file.tensors}
    own = {"llama": biased, "mistral": {"sliding_window": values.get("attention.sliding_window")}}
    return {"rope_parameters": rope, **own.get(model_type, {})}


def _gemma3_settings(values: _Values, head_dim: int) -> dict[str, Any]:
    layers, hidden, heads = (values.need(key) for key in ("block_count", "embedding_length", "attention.head_count"))
    return {
        "sliding_window": values.need("attention.sliding_window"),
        # The file does not say it: the 27B model, alone in having 62 layers, scales by hidden / heads.
        "query_pre_attn_scalar": hidden // heads if layers == 62 else head_dim,
        "rope_parameters": {
            "full_attention": {"rope_theta": values.get("rope.freq_base", 1e6), **_rope_scaling(values)},
            "sliding_attention": {"rope_theta": values.get("rope.freq_base_swa", 1e4), "rope_type": "default"},
        },
    }


_SCALING_FIELDS = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}


def _rope_scaling(values: _Values) -> dict[str, Any]:
    kind = values.get("rope.scaling.type", "none")
    values.refuse("rope.scaling.attn_factor", "rope.scaling.yarn_log_multiplier", "rope.scale_linear")
    if kind == "none":
        return {"rope_type": "default"}
    given = {field: values.get(key) for field, key in _SCALING_FIELDS.items()}
    return {"rope_type": kind, **{field: value for field, value in given.items() if value is not None}}


def _frequency_scaling(file: GgufFile, theta: float, head_dim: int) -> dict[str, Any]:
    """Llama 3's scaling, which the converter writes as a tensor of divisors in place of its parameters."""
    if _FREQUENCY_FACTORS not in file.tensors:
        return {}
    divisors = file.read(_FREQUENCY_FACTORS, torch.float32).flatten()
    factor = float(divisors.max())
    spec = RopeSpec(theta=theta, scaling="llama3", factor=factor, original_context=8192)
    origin = torch.zeros(1)
    expected = rope_frequencies(RopeSpec(theta=theta), head_dim, origin) / rope_frequencies(spec, head_dim, origin)
    if divisors.shape != expected.shape or not torch.allclose(divisors, expected, rtol=1e-3):
        raise UnsupportedModel(f"{_FREQUENCY_FACTORS} must follow Llama 3's formula, got {divisors.tolist()}")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": spec.low_freq_factor,
        "high_freq_factor": spec.high_freq_factor,
        "original_max_position_embeddings": spec.original_context,
    }


def _hf_name(name: str, architecture: GgufArchitecture) -> str:
    if name in _FIXED_NAMES:
        return _FIXED_NAMES[name]
    match = _LAYER.fullmatch(name)
    names = {**_LAYER_NAMES, **(architecture.names or {})}
    if match is None or match[2] not in names:
        raise UnsupportedModel(f"tensor {name} is none that we know, got it in a {architecture.model_type} model")
    return f"model.layers.{match[1]}.{names[match[2]]}.{match[3]}"


def _unpermute(tensor: Tensor, heads: int, name: str) -> Tensor:
    """Rows (pair, half) of each head back to (half, pair)."""
    if tensor.shape[0] % (2 * heads):
        raise CorruptModel(f"rows of {name} must be a multiple of {2 * heads}, got {tensor.shape[0]}")
    return tensor.view(heads, -1, 2, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
