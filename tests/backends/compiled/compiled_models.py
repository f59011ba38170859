"""Tiny random models for the compiled steps, in any weight format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import torch
from torch import Tensor

from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder, FedSpan, Weights
from gamaneh.backends.compiled.pages import Pages
from gamaneh.backends.compiled.stored_decoder import StoredDecoder
from gamaneh.models.config import DecoderConfig
from gamaneh.models.formats.dense import BFLOAT16, FLOAT16
from gamaneh.models.formats.known import QUANTISED, from_floats
from gamaneh.models.formats.stored import StoredTensor
from gamaneh.models.loading import LoadedModel
from gamaneh.testing.tiny import TINY_CONFIGS, tiny_model, tiny_weights

BLOCKS = 60


def stored(values: Tensor, fmt: str) -> StoredTensor:
    """Return a matrix in one of the formats that numbers can be rounded to."""
    floats = values.float().numpy()
    if fmt in QUANTISED:
        return QUANTISED[fmt].quantise(floats)
    if fmt == "bfloat16":
        bits = values.to(torch.bfloat16).view(torch.int16).numpy()
        return StoredTensor.read(BFLOAT16, bits, tuple(values.shape), "w")
    if fmt == "float16":
        return StoredTensor.read(FLOAT16, floats.astype(np.float16), tuple(values.shape), "w")
    return from_floats(floats)


def compiled_weights(config: DecoderConfig, fmt: str, seed: int = 0) -> tuple[Weights, dict[str, Tensor]]:
    """Return random weights in a format, query, key and value apart, and the float32 numbers that they stand for."""
    ours: dict[str, tuple[StoredTensor, ...] | np.ndarray] = {}
    same: dict[str, Tensor] = {}
    for name, values in tiny_weights(config, seed=seed).items():
        if values.ndim == 1:
            ours[name], same[name] = values.numpy(), values
            continue
        heights = [values.shape[0]]
        if ".qkv." in name:
            heights = [config.num_heads * config.head_dim, *[config.num_kv_heads * config.head_dim] * 2]
        parts = tuple(stored(part, fmt) for part in values.split(heights))
        ours[name] = parts
        same[name] = torch.cat([torch.from_numpy(part.expand()) for part in parts])
    return ours, same


@cache
def compiled_decoder(family: str, fmt: str, instructions: str = "auto", threads: int = 2) -> CompiledDecoder:
    config = TINY_CONFIGS[family]
    return CompiledDecoder(config, compiled_weights(config, fmt)[0], instructions=instructions, threads=threads)


def new_pages(config: DecoderConfig) -> Pages:
    return Pages(config.num_layers, BLOCKS, config.num_kv_heads, config.head_dim)


def blocks_of(sequence: int) -> list[int]:
    """Blocks of one of several sequences; neighbours in a sequence are not consecutive."""
    return [1 + sequence + 5 * at for at in range(8)]


def span(tokens: Sequence[int], start: int, stop: int, *, sequence: int = 0, parents: Sequence[int] = ()) -> FedSpan:
    """Rows `start` to `stop` of the tokens, all with scores."""
    return FedSpan(list(tokens[start:stop]), start, blocks_of(sequence), list(parents), logit_rows=stop - start)


def compiled_model(
    family: str = "llama",
    fmt: str = "int8",
    *,
    seed: int = 0,
    config: DecoderConfig | None = None,
    instructions: str = "auto",
) -> LoadedModel:
    """Return a tiny model with a byte tokenizer, as if it had been loaded for the compiled backend."""
    model = tiny_model(family, seed=seed, config=config)
    return replace(model, decoder=_stored_decoder(model.config, fmt, seed, instructions))


@cache
def _stored_decoder(config: DecoderConfig, fmt: str, seed: int, instructions: str) -> StoredDecoder:
    weights, _ = compiled_weights(config, fmt, seed)
    return StoredDecoder(config, weights, CompiledDecoder(config, weights, instructions=instructions, threads=2))
