"""Weights under our own names: what a decoder is made of, and how to gather it from a source."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from gamaneh.errors import CorruptModel
from gamaneh.models.config import DecoderConfig
from gamaneh.models.families import FAMILIES
from gamaneh.models.weights import WeightSource

_EMBEDDING, _HEAD = "embed_tokens.weight", "lm_head.weight"
_HARMLESS = "rotary_emb.inv_freq"  # old checkpoints store what the config says already


def weight_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a decoder of this config is made of."""
    shapes: dict[str, tuple[int, ...]] = {"embedding": (config.vocab_size, config.hidden_size)}
    layer = _layer_shapes(config)
    for index in range(config.num_layers):
        shapes |= {f"layers.{index}.{name}": shape for name, shape in layer.items()}
    shapes["norm"] = (config.hidden_size,)
    return shapes if config.tied_embedding else {**shapes, "head": shapes["embedding"]}


def canonical_weights(
    config: DecoderConfig,
    source: WeightSource,
    *,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Tensor]:
    """Read every tensor under our names, one at a time, straight into its place.

    Args:
        progress: called with the number of tensors done and their total.

    Raises:
        CorruptModel: tensors are missing, left over, of a wrong shape, or not finite.
    """
    shapes = weight_shapes(config)
    origins = _origins(config, shapes, source)
    weights: dict[str, Tensor] = {}
    for done, (name, shape) in enumerate(shapes.items(), start=1):
        if name.endswith("norm"):
            weights[name] = _norm(config, source, origins[name], shape).to(device, dtype)
        else:
            weights[name] = torch.empty(shape, dtype=dtype, device=device)
            _fill(weights[name], source, origins[name], _heights(config, name, shape, len(origins[name])))
        if progress is not None:
            progress(done, len(shapes))
    return weights


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
    prefix = next((name.removesuffix(_EMBEDDING) for name in sorted(names) if name.endswith(_EMBEDDING)), "model.")
    head = next((name for name in sorted(names) if name.endswith(_HEAD)), _HEAD)
    fixed = {"embedding": (prefix + _EMBEDDING,), "norm": (f"{prefix}norm.weight",), "head": (head,)}
    origins = {name: fixed.get(name) or _layer_origin(config, prefix, name) for name in shapes}
    wanted = {name for stack in origins.values() for name in stack}
    _complain("lacks the tensors", wanted - names)
    known = {name for name in names if name.startswith(prefix) and not name.endswith(_HARMLESS)}
    _complain("has tensors that its config does not account for:", known - wanted - {head})
    return origins


def _layer_origin(config: DecoderConfig, prefix: str, name: str) -> tuple[str, ...]:
    _, index, part = name.split(".", 2)
    return tuple(f"{prefix}layers.{index}.{origin}" for origin in FAMILIES[config.family].names[part])


def _complain(what: str, names: set[str]) -> None:
    if names:
        shown = sorted(names)[:5]
        more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
        raise CorruptModel(f"model {what} {', '.join(shown)}{more}")


def _norm(config: DecoderConfig, source: WeightSource, origins: tuple[str, ...], shape: tuple[int, ...]) -> Tensor:
    # Shifted in float32: 1 + w would lose most of w in 16 bits.
    weight = torch.empty(shape)
    _fill(weight, source, origins, [shape[0]])
    return weight + FAMILIES[config.family].norm_shift


def _fill(stacked: Tensor, source: WeightSource, names: tuple[str, ...], heights: list[int]) -> None:
    """Read the named tensors into consecutive rows."""
    start = 0
    for name, height in zip(names, heights, strict=True):
        part = stacked[start : start + height]
        part.copy_(_checked(source.get(name, stacked.dtype), name, part.shape))
        start += height


def _checked(tensor: Tensor, name: str, shape: torch.Size) -> Tensor:
    if tensor.shape != shape:
        raise CorruptModel(f"tensor {name} must have shape {tuple(shape)}, got {tuple(tensor.shape)}")
    if not torch.isfinite(torch.stack(tensor.aminmax())).all():
        raise CorruptModel(f"tensor {name} must hold finite numbers, got NaN or infinity as {tensor.dtype}")
    return tensor
