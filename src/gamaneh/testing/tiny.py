"""Seeded tiny decoders: real arithmetic in milliseconds, one per family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch import Tensor

from gamaneh.models.config import DecoderConfig, LayerSpec, RopeSpec
from gamaneh.models.decoder import Decoder
from gamaneh.testing.tokens import BYTE_VOCAB, EOS_ID

_BASE = DecoderConfig(
    family="llama",
    vocab_size=BYTE_VOCAB,
    hidden_size=32,
    intermediate_size=64,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    layers=(LayerSpec(), LayerSpec()),
    max_context=512,
    eos_ids=(EOS_ID,),
)

TINY_CONFIGS: Mapping[str, DecoderConfig] = {
    "llama": _BASE,
    "mistral": replace(_BASE, family="mistral", layers=(LayerSpec(window=32), LayerSpec(window=32))),
    "qwen2": replace(_BASE, family="qwen2", qkv_bias=True, tied_embedding=True),
    "qwen3": replace(_BASE, family="qwen3", qk_norm=True),
    "smollm3": replace(_BASE, family="smollm3", layers=(LayerSpec(), LayerSpec(rope=None))),
    "gemma3": replace(
        _BASE,
        family="gemma3_text",
        qk_norm=True,
        post_norms=True,
        tied_embedding=True,
        activation="gelu_tanh",
        embedding_scale=32**0.5,
        layers=(LayerSpec(window=32, rope=1), LayerSpec()),
        ropes=(RopeSpec(theta=1e6), RopeSpec(theta=1e4)),
    ),
}


def tiny_decoder(
    family: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32, config: DecoderConfig | None = None
) -> Decoder:
    """A decoder with random weights; the same seed gives the same weights.

    Raises:
        KeyError: `family` is not in `TINY_CONFIGS` and no `config` is given.
    """
    config = config or TINY_CONFIGS[family]
    return Decoder(config, tiny_weights(config, seed=seed, dtype=dtype))


def tiny_weights(config: DecoderConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random weights under the names that `DecoderConfig` documents."""
    generator = torch.Generator().manual_seed(seed)
    return {name: _random(name, shape, generator).to(dtype) for name, shape in sorted(weight_shapes(config).items())}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Matrices spread wide enough that the most likely tokens differ from row to row."""
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return noise * 0.1 if name.endswith("bias") else 1 + noise * 0.1
    return noise * (1.0 if name == "embedding" else 2.0 / shape[-1] ** 0.5)


def weight_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Shape of every weight of a decoder."""
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocab_size, hidden), "norm": (hidden,)}
    if not config.tied_embedding:
        shapes["head"] = (config.vocab_size, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "qkv.weight": (config.qkv_size, hidden),
        "out.weight": (hidden, heads),
        "gate_up.weight": (2 * inner, hidden),
        "down.weight": (hidden, inner),
        "attn_norm": (hidden,),
        "mlp_norm": (hidden,),
    }
    layer |= {"qkv.bias": (config.qkv_size,)} if config.qkv_bias else {}
    layer |= {"out.bias": (hidden,)} if config.out_bias else {}
    layer |= {"gate_up.bias": (2 * inner,), "down.bias": (hidden,)} if config.mlp_bias else {}
    layer |= {"post_attn_norm": (hidden,), "post_mlp_norm": (hidden,)} if config.post_norms else {}
    layer |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)} if config.qk_norm else {}
    for index in range(config.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes
