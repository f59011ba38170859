"""The families of models: what their `config.json` and tensor names mean for our decoder."""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import CONFIG_MAPPING

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.config import DecoderConfig, LayerSpec
from gamaneh.models.keys import Keys
from gamaneh.models.rope_settings import ROPE_KEYS, RopePlaces, read_rope, stretched

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type`.

    Args:
        architectures: the classes of `transformers` that compute what our decoder computes.
        switches: fields of `DecoderConfig` in which the family differs from the plain one.
        names: tensor of a layer of ours -> names of the tensors to stack.
        norm_shift: number to add to every norm weight.
        ropes: where the config keeps the settings of each entry of `DecoderConfig.ropes`.
    """

    architectures: tuple[str, ...]
    switches: Callable[[Keys], dict[str, Any]]
    names: Mapping[str, tuple[str, ...]]
    norm_shift: float = 0.0
    ropes: tuple[RopePlaces, ...] = (RopePlaces(),)


def decoder_config(hf: Mapping[str, Any], source: str = "config.json") -> DecoderConfig:
    """Read the content of a Hugging Face `config.json`, in its old or its new spelling.

    Args:
        source: what errors call the file.

    Raises:
        UnsupportedModel: an architecture, a rope scaling or a feature that we do not have.
        CorruptModel: a value is missing or breaks its rule, or values contradict each other.
    """
    family, hf = _family(hf, source)
    stated = Keys(hf, source)
    _check_numbers(stated)
    settings = _settings(hf, source)
    _warn_of_defaults(stated, settings)
    heads, kv_heads = settings.whole("num_attention_heads"), settings.whole("num_key_value_heads")
    hidden, vocab_size = settings.whole("hidden_size"), settings.whole("vocab_size")
    context, layers = settings.whole("max_position_embeddings"), settings.whole("num_hidden_layers")
    if heads % kv_heads:
        settings.refuse("num_attention_heads", f"must be a multiple of num_key_value_heads ({kv_heads})")
    own = family.switches(settings)
    _refuse_features(settings, (*_REFUSED, *(key for field, key in _SOFTCAPS.items() if field not in own)))
    ropes = tuple(read_rope(stated, places, context) for places in family.ropes)
    config = DecoderConfig(
        **{
            "family": hf["model_type"],
            "vocab_size": vocab_size,
            "hidden_size": hidden,
            "intermediate_size": settings.whole("intermediate_size"),
            "num_heads": heads,
            "num_kv_heads": kv_heads,
            "head_dim": settings.whole("head_dim", hidden // heads),
            "layers": (LayerSpec(),) * layers,
            "max_context": stretched(ropes, context),
            "ropes": ropes,
            "norm_eps": settings.number("rms_norm_eps"),
            "activation": _activation(settings),
            "tied_embedding": settings.flag("tie_word_embeddings", False),
            "bos_id": stated.token("bos_token_id", vocab_size),
            "eos_ids": stated.tokens("eos_token_id", vocab_size),
            **own,
        }
    )
    if config.head_dim % 2:
        settings.refuse("head_dim", "must be even")
    return config


def _family(hf: Mapping[str, Any], source: str) -> tuple[Family, Mapping[str, Any]]:
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
            f"{source}: architecture must be one of {', '.join(known)}; "
            f"got {', '.join(map(str, architectures)) or kind!r} (model_type {kind!r})"
        )
    return family, hf


def _settings(hf: Mapping[str, Any], source: str) -> Keys:
    """The settings with the library's defaults filled in; rotary ones and ids of tokens are read as they are stated."""
    plain = {key: value for key, value in hf.items() if key not in (*ROPE_KEYS, *_TOKENS)}
    try:
        config = CONFIG_MAPPING[hf["model_type"]].from_dict(copy.deepcopy(plain))
        return Keys(dict(config.to_dict()), source)
    except Exception as error:  # the library raises what it likes at a bad value
        raise CorruptModel(
            f"{source} of a {hf['model_type']} model cannot be read: {' '.join(str(error).split())}"
        ) from error


_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id")
"""Keys that are read as they are stated: the default of a config class says nothing about a model."""

_WHOLE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "max_position_embeddings",
)


def _check_numbers(stated: Keys) -> None:
    """Refuse bad numbers by their own names, before the library does."""
    for key in _WHOLE:
        stated.whole(key, 1)
    stated.number("rms_norm_eps", 1.0)


_MATTERS = ("num_attention_heads", "rms_norm_eps", "max_position_embeddings")
"""Settings that no shape of a tensor tells."""


def _warn_of_defaults(stated: Keys, settings: Keys) -> None:
    missing = [f"{key} {settings.get(key)}" for key in _MATTERS if stated.get(key) is None]
    if missing:
        LOGGER.warning("%s leaves values to the defaults of transformers: %s", stated.source, ", ".join(missing))


_SOFTCAPS = {"attention_softcap": "attn_logit_softcapping", "logit_softcap": "final_logit_softcapping"}
"""Field of `DecoderConfig` -> setting; refused in families that do not read it."""

_REFUSED = (
    "use_bidirectional_attention",
    "num_experts",
    "num_local_experts",
    "quantization_config",
)


def _refuse_features(settings: Keys, features: Sequence[str]) -> None:
    for feature in features:
        if settings.get(feature):
            value = f"got {settings.get(feature)!r:.200}"
            raise UnsupportedModel(f"{settings.source}: {feature} is a feature that we do not have, {value}")


def _activation(settings: Keys) -> str:
    name = settings.get("hidden_activation") or settings.get("hidden_act")
    if name not in _ACTIVATIONS:
        raise UnsupportedModel(f"{settings.source}: activation must be one of {', '.join(_ACTIVATIONS)}; got {name!r}")
    return _ACTIVATIONS[name]


_ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


# -- what the families differ in -----------------------------------------------------------------


def _windows(settings: Keys) -> list[int | None]:
    """Attention window of each layer, by `layer_types`."""
    kinds, layers = settings.need("layer_types"), settings.whole("num_hidden_layers")
    known = ("full_attention", "sliding_attention")
    for kind in kinds:
        if kind not in known:
            raise UnsupportedModel(f"{settings.source}: layer_types must be among {', '.join(known)}; got {kind!r}")
    if len(kinds) != layers:
        raise CorruptModel(f"{settings.source}: layer_types must name {layers} layers, got {len(kinds)}")
    if "sliding_attention" not in kinds:
        return [None] * layers
    window = settings.whole("sliding_window")
    return [window if kind == "sliding_attention" else None for kind in kinds]


def _llama(settings: Keys) -> dict[str, Any]:
    bias = settings.flag("attention_bias", False)
    return {"qkv_bias": bias, "out_bias": bias, "mlp_bias": settings.flag("mlp_bias", False)}


def _mistral(settings: Keys) -> dict[str, Any]:
    window = None if settings.get("sliding_window") is None else settings.whole("sliding_window")
    return {"layers": (LayerSpec(window),) * settings.whole("num_hidden_layers")}


def _qwen2(settings: Keys) -> dict[str, Any]:
    return {"qkv_bias": True, "layers": tuple(map(LayerSpec, _windows(settings)))}


def _qwen3(settings: Keys) -> dict[str, Any]:
    bias = settings.flag("attention_bias", False)
    return {"qk_norm": True, "qkv_bias": bias, "out_bias": bias, "layers": tuple(map(LayerSpec, _windows(settings)))}


def _smollm3(settings: Keys) -> dict[str, Any]:
    windows, rotated = _windows(settings), settings.need("no_rope_layers")  # 1 where a layer does rotate
    if not isinstance(rotated, list) or len(rotated) != len(windows):
        settings.refuse("no_rope_layers", f"must have an entry for each of {len(windows)} layers")
    specs = [LayerSpec(window, 0 if on else None) for window, on in zip(windows, rotated, strict=True)]
    return {**_llama(settings), "layers": tuple(specs)}


def _gemma2(settings: Keys) -> dict[str, Any]:
    bias = settings.flag("attention_bias", False)
    caps = {name: None if settings.get(key) is None else settings.number(key) for name, key in _SOFTCAPS.items()}
    return {
        "layers": tuple(map(LayerSpec, _windows(settings))),
        "embedding_scale": settings.whole("hidden_size") ** 0.5,
        "attention_scale": settings.number("query_pre_attn_scalar") ** -0.5,
        **caps,
        "post_norms": True,
        "qkv_bias": bias,
        "out_bias": bias,
    }


def _gemma3(settings: Keys) -> dict[str, Any]:
    specs = tuple(LayerSpec(window, 0 if window is None else 1) for window in _windows(settings))
    own = {**_gemma2(settings), "layers": specs, "qk_norm": True}
    del own["attention_softcap"]  # `transformers` does not apply it
    return own


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

_GEMMA_NAMES = {
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

_GEMMA3_ROPES = (
    RopePlaces(default_theta=1e6),
    RopePlaces("sliding_attention", "rope_local_base_freq", scaled=False),
)

FAMILIES: Mapping[str, Family] = {
    "llama": Family(("LlamaForCausalLM",), _llama, _NAMES),
    "mistral": Family(("MistralForCausalLM",), _mistral, _NAMES),
    "qwen2": Family(("Qwen2ForCausalLM",), _qwen2, _NAMES),
    "qwen3": Family(("Qwen3ForCausalLM",), _qwen3, _NAMES),
    "smollm3": Family(("SmolLM3ForCausalLM",), _smollm3, _NAMES, ropes=(RopePlaces(default_theta=2e6),)),
    "gemma2": Family(("Gemma2ForCausalLM",), _gemma2, _GEMMA_NAMES, 1.0),
    "gemma3_text": Family(
        ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"), _gemma3, _GEMMA_NAMES, 1.0, _GEMMA3_ROPES
    ),
    "phi3": Family(("Phi3ForCausalLM",), _mistral, _PHI3_NAMES),
}
"""By `model_type`. SmolLM2 is a llama."""

_WRAPPERS = {"gemma3": "gemma3_text"}
"""Types that keep a language model in `text_config`, beside a vision tower that we leave out."""
