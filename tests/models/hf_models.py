"""Tiny random models made by `transformers`, saved to disk as its users would; one per family and feature."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from gamaneh.kv.placing import Placed
from gamaneh.models.decoder import Decoder
from gamaneh.models.runner import DecoderRunner

VOCAB = 96

_BASE: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}

_LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama 2": ("llama", {"num_key_value_heads": 4}),
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama 3": ("llama", {"rope_parameters": {"rope_theta": 5e5, **_LLAMA3_ROPE}}),
    "llama with linear rope": ("llama", {"rope_parameters": {"rope_theta": 1e4, "rope_type": "linear", "factor": 4.0}}),
    "llama with a wide head": ("llama", {"head_dim": 32}),
    "smollm2": ("llama", {"tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": 16}),
    "mistral without window": ("mistral", {"sliding_window": None}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2 with windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}),
    "qwen2 with yarn": (
        "qwen2",
        {
            "rope_parameters": {
                "rope_theta": 1e6,
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "qwen3": ("qwen3", {"head_dim": 32}),
    "qwen3 with layer types": (
        "qwen3",
        {
            "head_dim": 32,
            "use_sliding_window": True,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
        },
    ),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1]}),
    "gemma 2": (
        "gemma2",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "sliding_window": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gemma 3": (
        "gemma3_text",
        {
            "head_dim": 32,
            "query_pre_attn_scalar": 24,
            "sliding_window": 16,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
            "rope_parameters": {
                "full_attention": {"rope_theta": 1e6, "rope_type": "linear", "factor": 8.0},
                "sliding_attention": {"rope_theta": 1e4, "rope_type": "default"},
            },
        },
    ),
    "phi 3": ("phi3", {"sliding_window": 16}),
}
"""Name -> model_type and what differs from the common sizes."""


def hf_config(name: str, **changes: Any) -> PretrainedConfig:
    kind, own = MODELS[name]
    config: PretrainedConfig = CONFIG_MAPPING[kind](**copy.deepcopy({**_BASE, **own, **changes}))
    return config


def hf_model(name: str, **changes: Any) -> PreTrainedModel:
    """Random weights, norms included, so that a norm in the wrong place shows."""
    torch.manual_seed(0)
    config = hf_config(name, **changes)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


def save(name: str, folder: Path, **options: Any) -> PreTrainedModel:
    model = hf_model(name)
    model.save_pretrained(folder, **options)
    return model


class FlatCache:
    """Keys and values of one sequence: slot 0 is for padding, position p lies in slot p + 1."""

    def __init__(self, decoder: Decoder, num_slots: int = 256) -> None:
        config = decoder.config
        shape = (config.num_layers, num_slots, config.num_kv_heads, config.head_dim)
        self.num_slots = num_slots
        self.keys, self.values = torch.zeros(shape, dtype=decoder.dtype), torch.zeros(shape, dtype=decoder.dtype)

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        return self.keys[index], self.values[index]


def our_logits(decoder: Decoder, tokens: list[int]) -> Tensor:
    """`[num_tokens, vocab]`, from one forward over the whole sequence."""
    runner = DecoderRunner(decoder, FlatCache(decoder), invariant=False)
    slots = range(1, len(tokens) + 1)
    feed = Placed(tokens, start=0, prompt_len=len(tokens), slots=slots, first_slot=1, logit_rows=len(tokens))
    return runner.forward([feed]).logits[0]


@torch.inference_mode()
def hf_logits(model: PreTrainedModel, tokens: list[int]) -> Tensor:
    logits: Tensor = model(torch.tensor([tokens])).logits[0]
    return logits
