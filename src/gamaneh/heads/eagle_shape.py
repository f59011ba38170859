"""Sizes and switches of an EAGLE head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from gamaneh.errors import InvalidOption
from gamaneh.heads.shapes import FLAG, check, stored_shape, whole
from gamaneh.models.config import DecoderConfig, RopeSpec
from gamaneh.models.loading import LoadedModel
from gamaneh.options import from_mapping

FuseNorm = Literal["none", "joint", "each"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EagleShape:
    """What an EAGLE head is made of (Li et al. 2025, EAGLE-3; the switches are those of published checkpoints).

    Args:
        hidden_size, intermediate_size, num_heads, num_kv_heads, head_dim: of its one decoder layer.
        hidden_layers: layers of the target whose outputs it fuses; 0 is the embedding.
        depth: draft positions that it is trained for. It may draft more.
        fuse_norm: whether the target's hidden states are normalised before they are fused: not at all,
            all together or each layer by itself.
        norm_before_residual: the residual of the layer is the normalised feature.
        norm_output: the feature handed to the next position is the normalised output.
        share_head: its output matrix is made of rows of the target's.
        own_embedding: it has an embedding of its own.
    """

    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    hidden_layers: tuple[int, ...]
    depth: int = 4
    fuse_norm: FuseNorm = "each"
    norm_before_residual: bool = True
    norm_output: bool = True
    share_head: bool = True
    own_embedding: bool = False
    norm_eps: float = 1e-5
    rope: RopeSpec = field(default_factory=RopeSpec)

    def __post_init__(self) -> None:
        check(self, _RULES)
        if self.num_heads % self.num_kv_heads:
            raise InvalidOption(
                "num_heads", f"must be a multiple of num_kv_heads ({self.num_kv_heads})", self.num_heads
            )
        if self.head_dim % 2:
            raise InvalidOption("head_dim", "must be even", self.head_dim)

    @property
    def qkv_size(self) -> int:
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    def mapping(self) -> dict[str, Any]:
        """As it is kept in an artifact."""
        return {**asdict(self), "hidden_layers": list(self.hidden_layers)}


_POSITIVE = whole(1, 1 << 24)

_RULES = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim"), _POSITIVE),
    **dict.fromkeys(("norm_before_residual", "norm_output", "share_head", "own_embedding"), FLAG),
    "depth": whole(1, 32),
    "hidden_layers": ("must name layers of the target, each once", lambda layers: _are_layers(layers)),
    "fuse_norm": (f"must be one of {', '.join(get_args(FuseNorm))}", lambda value: value in get_args(FuseNorm)),
    "norm_eps": ("must be a number from 0 to 1", lambda value: isinstance(value, int | float) and 0 <= value <= 1),
}


def eagle_shape(values: Mapping[str, Any], loaded: LoadedModel) -> dict[str, Any]:
    """A shape of which any part may be left out -> every part of it.

    Raises:
        InvalidOption: a key is unknown, or a value breaks a rule.
    """
    return shape_for(loaded.config, values).mapping()


def shape_for(config: DecoderConfig, values: Mapping[str, Any]) -> EagleShape:
    """The target's own sizes, and an early, the middle and the last layer, where `values` does not say otherwise.

    Raises:
        InvalidOption: a key is unknown, or a value breaks a rule.
    """
    own = {
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_heads,
        "num_kv_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_layers": default_layers(config.num_layers),
        "norm_eps": config.norm_eps,
    }
    return from_mapping(EagleShape, _typed({**own, **values}))


def stored_eagle_shape(values: Mapping[str, Any]) -> EagleShape:
    """What `EagleShape.mapping` gave.

    Raises:
        CorruptModel: a key is missing or unknown, or a value breaks a rule.
    """
    return stored_shape(EagleShape, _typed(values))


def default_layers(num_layers: int) -> tuple[int, ...]:
    """An early, the middle and the last layer of a target."""
    return tuple(sorted({max(num_layers // 8, 1), max(num_layers // 2, 1), num_layers}))


def _typed(values: Mapping[str, Any]) -> dict[str, Any]:
    """JSON knows neither tuples nor records."""
    typed = dict(values)
    if isinstance(values.get("hidden_layers"), list):
        typed["hidden_layers"] = tuple(values["hidden_layers"])
    if isinstance(values.get("rope"), dict):
        rope = dict(values["rope"])
        typed["rope"] = from_mapping(RopeSpec, rope | {"divisors": tuple(rope.get("divisors", ()))})
    return typed


def _are_layers(layers: Any) -> bool:
    if not isinstance(layers, tuple) or not layers or len(set(layers)) != len(layers):
        return False
    return all(isinstance(layer, int) and layer >= 0 for layer in layers)
