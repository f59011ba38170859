"""Rotary settings of a Hugging Face config, read from all the places that hold them.

Old files keep `rope_theta` at the top and the scaling in `rope_scaling`, new ones keep both in `rope_parameters`, flat
or by type of layer, and Phi keeps the original context length at the top. A setting may stand in several places if they
agree.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.config import RopeSpec
from gamaneh.models.keys import Keys, is_number

LOGGER = logging.getLogger(__name__)

ROPE_KEYS = (
    "rope_theta",
    "rope_local_base_freq",
    "rope_scaling",
    "rope_parameters",
    "partial_rotary_factor",
    "original_max_position_embeddings",
)
"""Keys of a config that hold rotary settings."""

Scaling = Literal["none", "linear", "dynamic", "llama3", "yarn"]

_SCALINGS: Mapping[str, Scaling] = {
    "default": "none",
    "linear": "linear",
    "dynamic": "dynamic",
    "llama3": "llama3",
    "yarn": "yarn",
}

_NUMBERS = {
    "factor": "factor",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
}
"""Key -> field of `RopeSpec`."""

_NEEDED: Mapping[Scaling, tuple[str, ...]] = {
    "none": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
    "yarn": ("factor",),
}
_KIND, _THETA, _PARTIAL = "rope_type", "rope_theta", "partial_rotary_factor"
_ORIGINAL = "original_max_position_embeddings"
_LONG, _SHORT_FACTORS, _LONG_FACTORS = "longrope", "short_factor", "long_factor"
_KNOWN = {
    *_NUMBERS,
    _KIND,
    _THETA,
    _ORIGINAL,
    _PARTIAL,
    _SHORT_FACTORS,
    _LONG_FACTORS,
    "truncate",
    "finetuned",
}


@dataclass(frozen=True, slots=True)
class RopePlaces:
    """Where a config keeps the rotary settings of some of its layers.

    Args:
        layer_type: the name of those layers in `rope_parameters`, where that is kept by type of layer.
        theta: the key at the top that holds the base.
        scaled: whether `rope_scaling` is about these layers.
        default_theta: the base where the config does not say it.
    """

    layer_type: str = "full_attention"
    theta: str = _THETA
    scaled: bool = True
    default_theta: float = 10000.0


def read_rope(keys: Keys, places: RopePlaces, context: int) -> RopeSpec:
    """Return the rotary settings of a config, as `transformers` reads them.

    Args:
        context: the longest context that the config states.

    Raises:
        CorruptModel: two places contradict each other, a value is missing or breaks its rule.
        UnsupportedModel: a scaling or a parameter that we do not have.
    """
    given = _gather(keys, places)
    kind = given.get(_KIND, "default")
    if str(kind) not in (*_SCALINGS, _LONG):
        raise UnsupportedModel(f"{keys.source}: rope scaling must be one of {', '.join(_SCALINGS)}; got {kind!r}")
    unknown = given.keys() - _KNOWN
    if unknown:
        known, others = (", ".join(sorted(names)) for names in (_KNOWN, unknown))
        raise UnsupportedModel(f"{keys.source}: rope parameters must be among {known}; got {others}")
    if given.get(_PARTIAL, 1.0) != 1.0:
        raise UnsupportedModel(f"{keys.source}: {_PARTIAL} must be 1, got {given[_PARTIAL]!r}")
    if kind == _LONG:
        return _long_rope(Keys(given, keys.source), places, context)
    scaling = _SCALINGS[kind]
    return _spec(Keys(given, keys.source), scaling, places, context)


def _spec(given: Keys, scaling: Scaling, places: RopePlaces, context: int) -> RopeSpec:
    for key in _NEEDED[scaling]:
        if given.get(key) is None:
            raise CorruptModel(f"{given.source}: {key} must be given where {_KIND} is {scaling}, got none")
    numbers = {field: given.number(key) for key, field in _NUMBERS.items() if given.get(key) is not None}
    spec = RopeSpec(
        theta=_theta(given, places),
        scaling=scaling,
        original_context=_original_context(given, scaling, context),
        truncate=given.flag("truncate", True),
        **numbers,  # type: ignore[arg-type]
    )
    if scaling == "llama3" and spec.low_freq_factor >= spec.high_freq_factor:
        given.refuse("low_freq_factor", f"must be below high_freq_factor ({spec.high_freq_factor})")
    return spec


def _long_rope(given: Keys, places: RopePlaces, context: int) -> RopeSpec:
    """A divisor for every pair, the same for short and long texts: nothing depends on the length."""
    short, long = given.get(_SHORT_FACTORS), given.get(_LONG_FACTORS)
    plain = given.get("attention_factor") == 1.0 or given.get(_ORIGINAL) == context
    if short != long or not plain:
        raise UnsupportedModel(
            f"{given.source}: longrope must have equal short and long factors and an attention factor of 1"
        )
    if not isinstance(short, list) or not all(is_number(divisor) and divisor > 0 for divisor in short):
        given.refuse(_SHORT_FACTORS, "must be a list of numbers above 0")
    return RopeSpec(theta=_theta(given, places), divisors=tuple(map(float, short)))


def _theta(given: Keys, places: RopePlaces) -> float:
    if given.get(_THETA) is None:
        default = places.default_theta
        LOGGER.warning("%s does not give %s; taking %s, as transformers does", given.source, places.theta, default)
    return given.number(_THETA, places.default_theta)


def _original_context(given: Keys, scaling: Scaling, context: int) -> int:
    if scaling == "dynamic":
        return context
    if scaling not in ("llama3", "yarn"):
        return 0
    if given.get(_ORIGINAL) is not None:
        return given.whole(_ORIGINAL)
    LOGGER.warning("%s does not give %s; taking max_position_embeddings, %d", given.source, _ORIGINAL, context)
    return context


def _gather(keys: Keys, places: RopePlaces) -> dict[str, Any]:
    """Every setting by its new name; places that contradict each other are refused."""
    found: dict[str, tuple[str, Any]] = {}
    for place, value in _statements(keys, places):
        key = place.rpartition(".")[2]
        name = {"type": _KIND, places.theta: _THETA}.get(key, key)
        first, known = found.setdefault(name, (place, value))
        if first != place and known != value:
            raise CorruptModel(f"{keys.source}: {first} and {place} must agree, got {known!r} and {value!r}")
    return {name: value for name, (_, value) in found.items()}


def _statements(keys: Keys, places: RopePlaces) -> list[tuple[str, Any]]:
    """Key, with the place that it stands in -> value; null counts as not given."""
    top = [(key, keys.get(key)) for key in (places.theta, _PARTIAL)]
    new, prefix = _new_place(keys, places)
    inner = [(prefix, new), *([("rope_scaling", _mapping(keys, "rope_scaling"))] if places.scaled else [])]
    nested = [(f"{place}.{key}", value) for place, values in inner for key, value in values.items()]
    return [(key, value) for key, value in [*top, *nested, (_ORIGINAL, keys.get(_ORIGINAL))] if value is not None]


def _new_place(keys: Keys, places: RopePlaces) -> tuple[Mapping[str, Any], str]:
    """`rope_parameters`, or its part for these layers, and how errors call that."""
    values = _mapping(keys, "rope_parameters")
    if not any(isinstance(value, Mapping) for value in values.values()):
        return (values, "rope_parameters") if places.scaled else ({}, "rope_parameters")
    part = values.get(places.layer_type)
    return (part if isinstance(part, Mapping) else {}), f"rope_parameters.{places.layer_type}"


def _mapping(keys: Keys, key: str) -> Mapping[str, Any]:
    value = keys.get(key, {})
    if not isinstance(value, Mapping):
        keys.refuse(key, "must be an object")
    return value


def stretched(specs: Sequence[RopeSpec], context: int) -> int:
    """Return the longest context: dynamic and yarn are told the length before stretching, the others after."""
    lengths = [int(spec.original_context * spec.factor) for spec in specs if spec.scaling in ("dynamic", "yarn")]
    return max([context, *lengths])
