"""Writes models of `transformers` as GGUF files, the way llama.cpp's converter does."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, GGUFWriter
from gguf.quants import quantize
from transformers import PreTrainedModel

Array = npt.NDArray[Any]

_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GEMMA_NAMES = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}


@dataclass
class GgufDraft:
    """A GGUF file to be: metadata and tensors, for a test to spoil before it is written."""

    architecture: str
    metadata: dict[str, Any] = field(default_factory=dict)
    tensors: dict[str, Array] = field(default_factory=dict)
    kinds: dict[str, GGMLQuantizationType] = field(default_factory=dict)

    def write(self, path: Path) -> Path:
        writer = GGUFWriter(path, self.architecture)
        for key, value in self.metadata.items():
            _ADDERS[type(value)](writer, key, value)
        for name, tensor in self.tensors.items():
            kind = self.kinds.get(name, GGMLQuantizationType.F32)
            writer.add_tensor(name, quantize(tensor, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path


_ADDERS: Mapping[type, Callable[[GGUFWriter, str, Any], None]] = {
    str: GGUFWriter.add_string,
    bool: GGUFWriter.add_bool,
    int: GGUFWriter.add_uint32,
    float: GGUFWriter.add_float32,
    list: GGUFWriter.add_array,
}


def as_gguf(model: PreTrainedModel, architecture: str) -> GgufDraft:
    config = model.config
    metadata = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "attention.key_length": _head_dim(config),
        "attention.value_length": _head_dim(config),
    }
    if architecture == "gemma2":
        metadata |= {"attention.sliding_window": config.sliding_window}
        metadata |= {key: getattr(config, key) for key in ("attn_logit_softcapping", "final_logit_softcapping")}
    elif architecture == "gemma3":
        metadata |= {"rope.freq_base": 1e6, "attention.sliding_window": config.sliding_window}
        metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": 8.0}
    else:
        metadata["rope.freq_base"] = float(config.rope_parameters["rope_theta"])
        if config.model_type == "mistral":
            metadata["attention.sliding_window"] = config.sliding_window
    draft = GgufDraft(architecture, {f"{architecture}.{key}": value for key, value in metadata.items()})
    for name, parameter in model.named_parameters():
        draft.tensors[_gguf_name(name, architecture)] = _converted(
            name, parameter.detach().numpy(), config, architecture
        )
    return draft


def _head_dim(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _gguf_name(name: str, architecture: str) -> str:
    fixed = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem, _, kind = name.rpartition(".")
    if stem in fixed:
        return f"{fixed[stem]}.{kind}"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    assert match is not None, name
    names = {**_NAMES, **(_GEMMA_NAMES if architecture.startswith("gemma") else {})}
    return f"blk.{match[1]}.{names[match[2]]}.{kind}"


def _converted(name: str, value: Array, config: Any, architecture: str) -> Array:
    if architecture.startswith("gemma") and name.endswith("norm.weight"):
        return value + 1
    if architecture in ("llama", "smollm3") and ("q_proj" in name or "k_proj" in name):
        return _permuted(value, config.num_attention_heads if "q_proj" in name else config.num_key_value_heads)
    return value


def _permuted(value: Array, heads: int) -> Array:
    """Rows (half, pair) of each head to (pair, half), as for interleaved rotation."""
    halves = value.reshape(heads, 2, -1, *value.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(value.shape)
