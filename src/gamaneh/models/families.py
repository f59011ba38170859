"""The families of models: what their `config.json` and tensor names mean for our decoder."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from transformers import CONFIG_MAPPING

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.config import DecoderConfig, LayerSpec, RopeSpec

Settings = Mapping[str, Any]
"""A `config.json` with its defaults filled in and its old spellings replaced."""


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type`.

    Args:
        architectures: the classes of `transformers` that compute what our decoder computes.
        switches: fields of `DecoderConfig` in which the family differs from the plain one.
        names: tensor of a layer of ours -> names of the tensors to stack.
        norm_shift: number to add to every norm weight.
    """

    architectures: tuple[str, ...]
    switches: Callable[[Settings], dict[str, Any]]
    names: Mapping[str, tuple[str, ...]]
    norm_shift: float = 0.0


def decoder_config(hf: Mapping[str, Any]) -> DecoderConfig:
    """Read the content of a Hugging Face `config.json`, in its old or its new spelling.

    Raises:
        UnsupportedModel: an architecture, a rope scaling or a feature that we do not have.
        CorruptModel: values that contradict each other.
    """
    family, hf = _family(hf)
    settings = _settings(hf)
    _refuse_features(settings)
    rope = settings["rope_parameters"]
    context = settings["max_position_embeddings"]
    common: dict[str, Any] = {
        "family": hf["model_type"],
        "vocab_size": settings["vocab_size"],
        "hidden_size": settings["hidden_size"],
        "intermediate_size": settings["intermediate_size"],
        "num_heads": settings["num_attention_heads"],
        "num_kv_heads": settings["num_key_value_heads"],
        "head_dim": settings.get("head_dim") or settings["hidden_size"] // settings["num_attention_heads"],
        "norm_eps": settings["rms_norm_eps"],
        "activation": _activation(settings),
        "tied_embedding": bool(settings["tie_word_embeddings"]),
        "bos_id": settings.get("bos_token_id"),
        "eos_ids": token_ids(settings.get("eos_token_id")),
    }
    own = family.switches(settings)
    own.setdefault("layers", (LayerSpec(),) * settings["num_hidden_layers"])
    if "ropes" not in own:
        own["ropes"] = (_rope(rope, context),)
    config = DecoderConfig(max_context=max(_stretched(spec, context) for spec in own["ropes"]), **common, **own)
    _check_sizes(config)
    return config


def token_ids(value: int | Iterable[int] | None) -> tuple[int, ...]:
    """One id, several or none, as configuration files write them."""
    if value is None:
        return ()
    return (value,) if isinstance(value, int) else tuple(value)


def _family(hf: Mapping[str, Any]) -> tuple[Family, Mapping[str, Any]]:
    """The family, and the part of the config that is about the language model."""
    kind, architectures = hf.get("model_type"), hf.get("architectures") or ()
    if kind in _WRAPPERS and "text_config" in hf:
        outer = {key: hf[key] for key in ("eos_token_id", "bos_token_id", "tie_word_embeddings") if key in hf}
        hf = {**hf["text_config"], **outer, "model_type": _WRAPPERS[kind]}
        kind = hf["model_type"]
    family = FAMILIES.get(str(kind))
    if family is None or not set(architectures) <= set(family.architectures):
        known = sorted({name for entry in FAMILIES.values() for name in entry.architectures})
        raise UnsupportedModel(
            f"architecture must be one of {', '.join(known)}; got {', '.join(architectures) or kind!r}"
            f" (model_type {kind!r})"
        )
    return family, hf


def _settings(hf: Mapping[str, Any]) -> Settings:
    try:
        config = CONFIG_MAPPING[hf["model_type"]].from_dict(copy.deepcopy(dict(hf)))
        return dict(config.to_dict())
    except Exception as error:  # the library raises what it likes at a bad value
        raise CorruptModel(f"config of a {hf['model_type']} model cannot be read: {error}") from error


_REFUSED = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "use_bidirectional_attention",
    "num_experts",
    "num_local_experts",
    "quantization_config",
)


def _refuse_features(settings: Settings) -> None:
    for feature in _REFUSED:
        if settings.get(feature):
            raise UnsupportedModel(f"{feature} is a feature that we do not have, got {settings[feature]!r}")


def _activation(settings: Settings) -> str:
    name = settings.get("hidden_activation") or settings.get("hidden_act")
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(f"activation must be one of {', '.join(_ACTIVATIONS)}; got {name!r}")
    return _ACTIVATIONS[name]


_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def _check_sizes(config: DecoderConfig) -> None:
    sizes = ("vocab_size", "hidden_size", "intermediate_size", "num_heads", "num_kv_heads", "head_dim", "num_layers")
    for name in (*sizes, "max_context"):
        if getattr(config, name) < 1:
            raise CorruptModel(f"{name} must be at least 1, got {getattr(config, name)}")
    if config.num_heads % config.num_kv_heads:
        raise CorruptModel(
            f"num_heads must be a multiple of num_kv_heads ({config.num_kv_heads}), got {config.num_heads}"
        )
    if config.head_dim % 2:
        raise CorruptModel(f"head_dim must be even, got {config.head_dim}")


# -- rotary embedding ---------------------------------------------------------------------------

_SCALINGS = {name: name for name in ("linear", "dynamic", "llama3", "yarn")} | {"default": "none"}

_ROPE_FIELDS = {
    "rope_theta": "theta",
    "factor": "factor",
    "original_max_position_embeddings": "original_context",
    "low_freq_factor": "low_freq_factor",
    "high_freq_factor": "high_freq_factor",
    "beta_fast": "beta_fast",
    "beta_slow": "beta_slow",
    "attention_factor": "attention_factor",
    "mscale": "mscale",
    "mscale_all_dim": "mscale_all_dim",
    "truncate": "truncate",
}

_ROPE_IGNORED = {"rope_type", "type", "finetuned", "partial_rotary_factor"}


def _rope(parameters: Mapping[str, Any], context: int) -> RopeSpec:
    kind = parameters.get("rope_type", "default")
    if kind not in _SCALINGS:
        raise UnsupportedModel(f"rope scaling must be one of {', '.join(_SCALINGS)}; got {kind!r}")
    if (parameters.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedModel(f"partial_rotary_factor must be 1, got {parameters['partial_rotary_factor']}")
    unknown = parameters.keys() - _ROPE_FIELDS.keys() - _ROPE_IGNORED
    if unknown:
        raise UnsupportedModel(f"rope parameters must be among {', '.join(_ROPE_FIELDS)}; got {', '.join(unknown)}")
    given = {field: parameters[key] for key, field in _ROPE_FIELDS.items() if parameters.get(key) is not None}
    if kind == "dynamic":
        given["original_context"] = context
    return RopeSpec(scaling=_SCALINGS[kind], **given)  # type: ignore[arg-type]


def _stretched(spec: RopeSpec, context: int) -> int:
    """Longest context: these two scalings are told the length before stretching, the others after."""
    if spec.scaling in ("dynamic", "yarn"):
        return max(context, int(spec.original_context * spec.factor))
    return context


# -- what the families differ in -----------------------------------------------------------------


def _windows(settings: Settings) -> list[int | None]:
    """Attention window of each layer, by `layer_types`."""
    kinds = settings["layer_types"]
    known = {"full_attention": None, "sliding_attention": settings.get("sliding_window")}
    for kind in kinds:
        if kind not in known:
            raise UnsupportedModel(f"layer_types must be among {', '.join(known)}; got {kind!r}")
    if "sliding_attention" in kinds and known["sliding_attention"] is None:
        raise CorruptModel("sliding_window must be a number where layer_types has sliding_attention, got None")
    if len(kinds) != settings["num_hidden_layers"]:
        raise CorruptModel(f"layer_types must name {settings['num_hidden_layers']} layers, got {len(kinds)}")
    return [known[kind] for kind in kinds]


def _llama(settings: Settings) -> dict[str, Any]:
    bias = settings["attention_bias"]
    return {"qkv_bias": bias, "out_bias": bias, "mlp_bias": settings["mlp_bias"]}


def _mistral(settings: Settings) -> dict[str, Any]:
    return {"layers": (LayerSpec(settings["sliding_window"]),) * settings["num_hidden_layers"]}


def _qwen2(settings: Settings) -> dict[str, Any]:
    return {"qkv_bias": True, "layers": tuple(map(LayerSpec, _windows(settings)))}


def _qwen3(settings: Settings) -> dict[str, Any]:
    bias = settings["attention_bias"]
    return {"qk_norm": True, "qkv_bias": bias, "out_bias": bias, "layers": tuple(map(LayerSpec, _windows(settings)))}


def _smollm3(settings: Settings) -> dict[str, Any]:
    rotated = settings["no_rope_layers"]  # 1 where a layer does rotate
    specs = [LayerSpec(window, 0 if on else None) for window, on in zip(_windows(settings), rotated, strict=False)]
    return {**_llama(settings), "layers": tuple(specs)}


def _gemma3(settings: Settings) -> dict[str, Any]:
    parameters, context = settings["rope_parameters"], settings["max_position_embeddings"]
    windows = _windows(settings)
    bias = settings["attention_bias"]
    return {
        "ropes": tuple(_rope(parameters[kind], context) for kind in ("full_attention", "sliding_attention")),
        "layers": tuple(LayerSpec(window, 0 if window is None else 1) for window in windows),
        "embedding_scale": settings["hidden_size"] ** 0.5,
        "attention_scale": settings["query_pre_attn_scalar"] ** -0.5,
        "qk_norm": True,
        "post_norms": True,
        "qkv_bias": bias,
        "out_bias": bias,
    }


_NAMES: Mapping[str, tuple[str, ...]] = {
    "attn_norm": ("input_layernorm.weight",),
    "qkv.weight": ("self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"),
    "qkv.bias": ("self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"),
    "q_norm": ("self_attn.q_norm.weight",),
    "k_norm": ("self_attn.k_norm.weight",),
    "out.weight": ("self_attn.o_proj.weight",),
    "out.bias": ("self_attn.o_proj.bias",),
    "mlp_norm": ("post_attention_layernorm.weight",),
    "gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
    "gate_up.bias": ("mlp.gate_proj.bias", "mlp.up_proj.bias"),
    "down.weight": ("mlp.down_proj.weight",),
    "down.bias": ("mlp.down_proj.bias",),
}

_GEMMA3_NAMES = {
    **_NAMES,
    "post_attn_norm": ("post_attention_layernorm.weight",),
    "mlp_norm": ("pre_feedforward_layernorm.weight",),
    "post_mlp_norm": ("post_feedforward_layernorm.weight",),
}

_PHI3_NAMES = {
    **_NAMES,
    "qkv.weight": ("self_attn.qkv_proj.weight",),
    "gate_up.weight": ("mlp.gate_up_proj.weight",),
}

FAMILIES: Mapping[str, Family] = {
    "llama": Family(("LlamaForCausalLM",), _llama, _NAMES),
    "mistral": Family(("MistralForCausalLM",), _mistral, _NAMES),
    "qwen2": Family(("Qwen2ForCausalLM",), _qwen2, _NAMES),
    "qwen3": Family(("Qwen3ForCausalLM",), _qwen3, _NAMES),
    "smollm3": Family(("SmolLM3ForCausalLM",), _smollm3, _NAMES),
    "gemma3_text": Family(
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), _gemma3, _GEMMA3_NAMES, norm_shift=1.0
    ),
    "phi3": Family(("Phi3ForCausalLM",), _mistral, _PHI3_NAMES),
}
"""By `model_type`. SmolLM2 is a llama."""

_WRAPPERS = {"gemma3": "gemma3_text"}
"""Types that keep a language model in `text_config`, beside a vision tower that we leave out."""
