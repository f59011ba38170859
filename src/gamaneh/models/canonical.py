"""Weights under our own names: what a decoder is made of, and how to gather it from a source."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from gamaneh.errors import CorruptModel
from gamaneh.models.config import DecoderConfig
from gamaneh.models.families import FAMILIES
from gamaneh.models.formats.stored import Floats, StoredTensor
from gamaneh.models.weights import WeightSource, expand_into

LOGGER = logging.getLogger(__name__)

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_UNTIED = ", and its config does not say tie_word_embeddings: true"

_ROWS = 256
"""Rows compared at once."""

_HARMLESS = "rotary_emb.inv_freq"  # old checkpoints store what the config says already


def weight_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a decoder of this config is made of."""
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocab_size, config.hidden_size)}
    layer = _layer_shapes(config)
    for index in range(config.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["norm"] = (config.hidden_size,)
    return shapes if config.tied_embedding else {**shapes, "head": shapes["embedding"]}


class ModelTensors:
    """The tensors of a model under our names; nothing is read before it is asked for.

    Args:
        shapes: name -> shape, of every tensor that the config asks for.

    Raises:
        CorruptModel: tensors are missing, left over or of a wrong shape.
        UnsupportedModel: one is stored in a format that we cannot read.
    """

    def __init__(self, config: DecoderConfig, source: WeightSource) -> None:
        self.shapes = weight_shapes(config)
        self._config, self._source = config, source
        self._origins = _origins(config, self.shapes, source)
        for name, shape in self.shapes.items():
            for origin, part in self._parts(name):
                source.format(origin)
                _check_shape(source, origin, (part, *shape[1:]))

    @property
    def names(self) -> Collection[str]:
        return self.shapes.keys()

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors as their files keep them."""
        return sum(self._nbytes(origin) for origin in {each for stack in self._origins.values() for each in stack})

    @property
    def formats(self) -> tuple[str, ...]:
        """Names of the formats that the matrices are stored in."""
        matrices = [stack for name, stack in self._origins.items() if len(self.shapes[name]) > 1]
        return tuple(sorted({self._source.format(origin).name for stack in matrices for origin in stack}))

    def stored(self, name: str) -> tuple[StoredTensor, ...]:
        """Return a matrix as its file keeps it: the parts whose rows are stacked, such as queries, keys and values.

        Their numbers are not looked at; a vector comes from `dense`, which also adds what a family adds to norms.
        """
        return tuple(self._source.stored(origin) for origin in self._origins[name])

    def dense(self, name: str, dtype: torch.dtype, device: torch.device | str = "cpu") -> Tensor:
        """Return a tensor as numbers of a type.

        Raises:
            CorruptModel: a number is not finite.
        """
        norm = name.endswith("norm")
        out = torch.empty(self.shapes[name], dtype=torch.float32 if norm else dtype, device=device)
        start = 0
        for origin, height in self._parts(name):
            part = out[start : start + height]
            expand_into(part if part.ndim > 1 else part[None], self._source.stored(origin))
            _check_finite(part, origin)
            start += height
        # Norms are shifted in float32: 1 + w would lose most of w in 16 bits.
        return (out + FAMILIES[self._config.family].norm_shift).to(dtype) if norm else out

    def as_stored(self) -> dict[str, tuple[StoredTensor, ...] | Floats]:
        """Return everything for a backend that keeps weights as they are stored: vectors come as float32 numbers."""
        return {
            name: self.stored(name) if len(shape) > 1 else self.dense(name, torch.float32).numpy()
            for name, shape in self.shapes.items()
        }

    def close(self) -> None:
        """Let go of the files. No tensor can be read afterwards."""
        self._source.close()

    def _nbytes(self, origin: str) -> int:
        *rows, columns = self._source.shape(origin)
        return math.prod(rows) * self._source.format(origin).row_bytes(columns)

    def _parts(self, name: str) -> list[tuple[str, int]]:
        """Name in the source and number of rows of each tensor that is stacked."""
        origins = self._origins[name]
        return list(zip(origins, _heights(self._config, name, self.shapes[name], len(origins)), strict=True))


def canonical_weights(
    config: DecoderConfig,
    source: WeightSource,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Read every tensor as numbers of one type, under our names.

    Args:
        progress: called with the number of tensors done and their total.

    Raises:
        CorruptModel: tensors are missing, left over, of a wrong shape, or not finite.
    """
    return read_all(ModelTensors(config, source), dtype=dtype, device=device, progress=progress)


def read_all(
    tensors: ModelTensors,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Read every tensor as numbers of one type, one at a time.

    Raises:
        CorruptModel: a number is not finite.
    """
    weights: dict[str, Tensor] = {}
    for done, name in enumerate(tensors.names, start=1):
        weights[name] = tensors.dense(name, dtype, device)
        if progress is not None:
            progress(done, len(tensors.names))
    return weights


def with_own_head(config: DecoderConfig, source: WeightSource, place: str) -> DecoderConfig:
    """Return the config, untied where the file holds an output matrix that differs from the embedding.

    `transformers` does the same, with a warning too.
    """
    head, embedding = (_find(source, end) for end in (_HEAD, _EMBEDDING))
    if not config.tied_embedding or head is None or embedding is None:
        return config
    if _same_numbers(source.stored(head), source.stored(embedding)):
        return config
    LOGGER.warning(
        "%s says tie_word_embeddings, but %s differs from %s in its files; it is used as it is", place, head, embedding
    )
    return replace(config, tied_embedding=False)


def _same_numbers(one: StoredTensor, other: StoredTensor) -> bool:
    """Whether two tensors hold the same numbers, read by groups of rows."""
    if one.shape != other.shape:
        return False
    for start in range(0, one.shape[0], _ROWS):
        ours, theirs = (tensor.rows(start, start + _ROWS) for tensor in (one, other))
        same = one.format is other.format and np.array_equal(ours.raw, theirs.raw)
        if not same and not np.array_equal(ours.expand(), theirs.expand()):
            return False
    return True


def _layer_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    hidden, inner, heads = config.hidden_size, config.intermediate_size, config.num_heads * config.head_dim
    shapes: dict[str, tuple[int, ...] | None] = {
        "attn_norm": (hidden,),
        "qkv.weight": (config.qkv_size, hidden),
        "qkv.bias": (config.qkv_size,) if config.qkv_bias else None,
        "q_norm": (config.head_dim,) if config.qk_norm else None,
        "k_norm": (config.head_dim,) if config.qk_norm else None,
        "out.weight": (hidden, heads),
        "out.bias": (hidden,) if config.out_bias else None,
        "post_attn_norm": (hidden,) if config.post_norms else None,
        "mlp_norm": (hidden,),
        "gate_up.weight": (2 * inner, hidden),
        "gate_up.bias": (2 * inner,) if config.mlp_bias else None,
        "down.weight": (hidden, inner),
        "down.bias": (hidden,) if config.mlp_bias else None,
        "post_mlp_norm": (hidden,) if config.post_norms else None,
    }
    return {name: shape for name, shape in shapes.items() if shape is not None}


def _heights(config: DecoderConfig, name: str, shape: tuple[int, ...], parts: int) -> list[int]:
    """Rows of each tensor that is stacked into `name`."""
    if parts == 1:
        return [shape[0]]
    if ".qkv." in name:
        key_rows = config.num_kv_heads * config.head_dim
        return [config.num_heads * config.head_dim, key_rows, key_rows]
    return [config.intermediate_size] * 2


def _origins(
    config: DecoderConfig, shapes: Mapping[str, tuple[int, ...]], source: WeightSource
) -> dict[str, tuple[str, ...]]:
    """Our name -> names in the source; every tensor of the language model must be spoken for."""
    names = set(source.names)
    prefix = (_find(source, _EMBEDDING) or f"model.{_EMBEDDING}").removesuffix(_EMBEDDING)
    head = _find(source, _HEAD) or _HEAD
    fixed = {"embedding": (prefix + _EMBEDDING,), "norm": (f"{prefix}norm.weight",), "head": (head,)}
    origins = {name: fixed.get(name) or _layer_origin(config, prefix, name) for name in shapes}
    wanted = {name for stack in origins.values() for name in stack}
    _complain("lacks the tensors", wanted - names, hint=_UNTIED if wanted - names == {head} else "")
    known = {name for name in names if name.startswith(prefix) and not name.endswith(_HARMLESS)}
    _complain("has tensors that its config does not account for:", known - wanted - {head})
    return origins


def _find(source: WeightSource, end: str) -> str | None:
    """The tensor whose name ends so, whatever model the language model is a part of."""
    return next((name for name in sorted(source.names) if name.endswith(end)), None)


def _layer_origin(config: DecoderConfig, prefix: str, name: str) -> tuple[str, ...]:
    _, index, part = name.split(".", 2)
    return tuple(f"{prefix}layers.{index}.{origin}" for origin in FAMILIES[config.family].names[part])


def _complain(what: str, names: set[str], hint: str = "") -> None:
    if names:
        shown = sorted(names)[:5]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        raise CorruptModel(f"model {what} {', '.join(shown)}{more}{hint}")


def _check_shape(source: WeightSource, name: str, shape: tuple[int, ...]) -> None:
    if source.shape(name) != shape:
        raise CorruptModel(f"tensor {name} must have shape {shape}, got {source.shape(name)}")


def _check_finite(tensor: Tensor, name: str) -> None:
    if not torch.isfinite(torch.stack(tensor.aminmax())).all():
        raise CorruptModel(f"tensor {name} must hold finite numbers, got NaN or infinity as {tensor.dtype}")
