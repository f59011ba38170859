"""Draft models to be trained: Llama-shaped from scratch, or made of layers of the target."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gamaneh.errors import InvalidOption, UnsupportedModel
from gamaneh.heads.borrowed import head_rows
from gamaneh.models.config import DecoderConfig, RopeSpec
from gamaneh.models.decoder import Decoder, Layer
from gamaneh.models.families import FAMILIES
from gamaneh.models.linear import Linear
from gamaneh.models.loading import LoadedModel
from gamaneh.train.settings import StudentOptions

WIDEST_HEAD = 64
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
INNER_RATIO = 8 / 3
"""Width of the feed-forward part relative to the hidden size, as Llama has it (Touvron et al. 2023)."""

CUT_FAMILIES = ("llama", "mistral", "qwen2", "qwen3")
ROPES: Mapping[str, Mapping[str, str]] = {
    "none": {"rope_theta": "theta"},
    "llama3": {
        "rope_theta": "theta",
        "factor": "factor",
        "low_freq_factor": "low_freq_factor",
        "high_freq_factor": "high_freq_factor",
        "original_max_position_embeddings": "original_context",
    },
}
"""Kind of rotary embedding -> parameter in a configuration file -> field of `RopeSpec`."""


def scratch_student(loaded: LoadedModel, options: StudentOptions) -> PreTrainedModel:
    """New weights; the embedding holds the principal components of the target's, scaled to unit variance of a model."""
    target, size = loaded.config, options.hidden_size
    head = math.gcd(size, WIDEST_HEAD)
    student = _build(
        "llama",
        vocab_size=target.vocab_size,
        hidden_size=size,
        intermediate_size=64 * math.ceil(size * INNER_RATIO / 64),
        num_hidden_layers=options.num_layers,
        num_attention_heads=size // head,
        num_key_value_heads=size // head,
        head_dim=head,
        max_position_embeddings=target.max_context,
        tie_word_embeddings=True,
        **_ids(target),
    )
    embedding = principal_components(loaded.decoder.embedding, size)
    student.load_state_dict({**student.state_dict(), EMBEDDING: embedding, HEAD: embedding})
    return student


def cut_student(dense: LoadedModel, num_layers: int) -> PreTrainedModel:
    """Embedding, norm, output matrix and some layers of the target, the first and the last among them.

    Args:
        dense: the target with its weights as float32.

    Raises:
        UnsupportedModel: its family cannot be written down, or a feature of it.
        InvalidOption: it has fewer layers.
    """
    config = dense.config
    layers = spread(config.num_layers, num_layers)
    student = _build(
        _cut_family(config),
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=num_layers,
        num_attention_heads=config.num_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        max_position_embeddings=config.max_context,
        rms_norm_eps=config.norm_eps,
        tie_word_embeddings=config.tied_embedding,
        attention_bias=config.out_bias,
        mlp_bias=config.mlp_bias,
        rope_parameters=_rope_parameters(config.ropes, config.max_context),
        sliding_window=_window(config),
        **_ids(config),
    )
    student.load_state_dict(_state(dense.decoder, layers))
    return student


def spread(count: int, wanted: int) -> list[int]:
    """`wanted` of `count` layers at even distances, the last one always, the first one where there are two.

    Raises:
        InvalidOption: there are not so many.
    """
    if wanted > count:
        raise InvalidOption("num_layers", f"must be at most the target's {count}", wanted)
    if wanted == 1:
        return [count - 1]
    return [round(at * (count - 1) / (wanted - 1)) for at in range(wanted)]


def principal_components(embedding: Tensor, size: int) -> Tensor:
    """`[vocab, hidden]` -> `[vocab, size]`: the directions of most variance, of spread 1 / sqrt(size)."""
    rows = embedding.float().cpu()
    rows = rows - rows.mean(0)
    _, directions = torch.linalg.eigh(rows.T @ rows)
    kept = rows @ directions.flip(1)[:, :size]
    kept = torch.nn.functional.pad(kept, (0, size - kept.shape[1]))
    spread: Tensor = kept.std() * size**0.5
    return kept.div(spread)


def _build(family: str, **settings: Any) -> PreTrainedModel:
    build: Callable[[Any], PreTrainedModel] = AutoModelForCausalLM.from_config
    return build(AutoConfig.for_model(family, dtype=torch.float32, **settings))


def _ids(config: DecoderConfig) -> dict[str, Any]:
    return {"bos_token_id": config.bos_id, "eos_token_id": list(config.eos_ids) or None}


def _cut_family(config: DecoderConfig) -> str:
    if config.family not in CUT_FAMILIES:
        names = ", ".join(CUT_FAMILIES)
        raise UnsupportedModel(f"layers can be cut from {names}, got {config.family}; begin from scratch instead")
    return config.family


def _rope_parameters(ropes: Sequence[RopeSpec], context: int) -> dict[str, Any]:
    spec = ropes[0]
    if len(ropes) > 1 or spec.scaling not in ROPES:
        kinds = ", ".join(rope.scaling for rope in ropes)
        raise UnsupportedModel(f"rope scaling of a cut model must be one of {', '.join(ROPES)}, got {kinds}")
    parameters = {name: getattr(spec, field) for name, field in ROPES[spec.scaling].items()}
    if spec.divisors:
        return {**parameters, **_long_rope(spec, context)}
    return {**parameters, "rope_type": "default" if spec.scaling == "none" else spec.scaling}


def _long_rope(spec: RopeSpec, context: int) -> dict[str, Any]:
    """Divisors as the library writes them: the same for short and long texts."""
    if spec.scaling != "none":
        raise UnsupportedModel(f"rope divisors of a cut model must stand alone, got scaling {spec.scaling}")
    divisors = list(spec.divisors)
    return {
        "rope_type": "longrope",
        "short_factor": divisors,
        "long_factor": divisors,
        "attention_factor": 1.0,
        "original_max_position_embeddings": context,
    }


def _window(config: DecoderConfig) -> int | None:
    windows = {layer.window for layer in config.layers}
    if windows != {None} and (len(windows) > 1 or config.family != "mistral"):
        raise UnsupportedModel(f"attention windows of a cut model must be all alike, got {windows}")
    return windows.pop()


def _state(decoder: Decoder, layers: Sequence[int]) -> dict[str, Tensor]:
    """Weights under the names of the `transformers` library."""
    state = {EMBEDDING: decoder.embedding, "model.norm.weight": decoder.norm}
    for place, index in enumerate(layers):
        named = _layer_state(decoder.layers[index])
        state |= {f"model.layers.{place}.{name}": tensor for name, tensor in named.items()}
    return {**state, HEAD: head_rows(decoder)}


def _layer_state(layer: Layer) -> dict[str, Tensor]:
    config, names = layer.config, FAMILIES[layer.config.family].names
    key_rows = config.num_kv_heads * config.head_dim
    heights = {
        "qkv": [config.num_heads * config.head_dim, key_rows, key_rows],
        "gate_up": [config.intermediate_size] * 2,
        "out": [config.hidden_size],
        "down": [config.hidden_size],
    }
    state = {names[part][0]: norm for part, norm in layer.norms.items()}
    for part, rows in heights.items():
        linear: Linear = getattr(layer, part)
        for kind, tensor in (("weight", linear.dense()), ("bias", linear.bias)):
            if tensor is not None:
                state |= dict(zip(names[f"{part}.{kind}"], torch.split(tensor, rows), strict=True))
    return state
