"""Seeded tiny decoders: real arithmetic in milliseconds, one per family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from gamaneh.models.canonical import weight_shapes
from gamaneh.models.config import DecoderConfig, LayerSpec, RopeSpec
from gamaneh.models.decoder import Decoder
from gamaneh.models.loading import LoadedModel
from gamaneh.testing.tokens import BYTE_VOCAB, EOS_ID, ByteTokenizer

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
    "gemma2": replace(
        _BASE,
        family="gemma2",
        post_norms=True,
        tied_embedding=True,
        activation="gelu_tanh",
        embedding_scale=32**0.5,
        attention_softcap=5.0,
        logit_softcap=4.0,
        layers=(LayerSpec(window=32), LayerSpec()),
    ),
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
    """A decoder with random weights; the same arguments give the same one, since use does not change it.

    Raises:
        KeyError: `family` is not in `TINY_CONFIGS` and no `config` is given.
    """
    return _decoder(config or TINY_CONFIGS[family], seed, dtype)


@cache
def _decoder(config: DecoderConfig, seed: int, dtype: torch.dtype) -> Decoder:
    return Decoder(config, tiny_weights(config, seed=seed, dtype=dtype))


def tiny_model(
    family: str = "llama",
    *,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    config: DecoderConfig | None = None,
    tokenizer: ByteTokenizer | None = None,
) -> LoadedModel:
    """A tiny decoder, as if it had been loaded from a file, with a byte tokenizer unless there is another.

    Raises:
        KeyError: `family` is not in `TINY_CONFIGS` and no `config` is given.
    """
    decoder = tiny_decoder(family, seed=seed, dtype=dtype, config=config)
    return LoadedModel(
        name=f"tiny-{family}-{seed}",
        path=Path(f"tiny-{family}-{seed}"),
        config=decoder.config,
        decoder=decoder,
        tokenizer=tokenizer or ByteTokenizer(),  # type: ignore[arg-type]
        dtype=dtype,
        device=decoder.device,
        weight_bytes=decoder.nbytes(),
    )


def tiny_weights(config: DecoderConfig, *, seed: int = 0, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
    """Random weights under the names that `DecoderConfig` documents."""
    generator = torch.Generator().manual_seed(seed)
    weights = {name: _random(name, shape, generator) for name, shape in sorted(weight_shapes(config).items())}
    weights["embedding"] /= config.embedding_scale
    return {name: weight.to(dtype) for name, weight in weights.items()}


def _random(name: str, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Matrices spread wide enough that the most likely tokens differ from row to row."""
    noise = torch.randn(shape, generator=generator)
    if len(shape) == 1:
        return noise * 0.1 if name.endswith("bias") else 1 + noise * 0.1
    return noise * (1.0 if name == "embedding" else 2.0 / shape[-1] ** 0.5)
