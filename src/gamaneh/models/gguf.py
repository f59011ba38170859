"""GGUF models: metadata to a config, and tensors under the names and in the layout of Hugging Face."""

from __future__ import annotations

import logging
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.config import DecoderConfig
from gamaneh.models.end_tokens import END_MARKERS
from gamaneh.models.families import decoder_config
from gamaneh.models.formats.known import from_floats, gguf_format
from gamaneh.models.formats.stored import Format, StoredTensor
from gamaneh.models.gguf_file import GgufFile, Metadata
from gamaneh.models.gguf_tokenizer import CONTROL
from gamaneh.models.keys import Keys

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GgufArchitecture:
    """What llama.cpp's converter did to the models of one `general.architecture`.

    Args:
        model_type: the family in `families.py`.
        permuted: query and key rows were reordered so that rotated pairs lie side by side.
        norm_shift: number that was added to the norm weights.
        names: where its tensor names differ from the common ones.
    """

    model_type: str
    permuted: bool = False
    norm_shift: float = 0.0
    names: Mapping[str, str] | None = None


_GEMMA_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

ARCHITECTURES: Mapping[str, GgufArchitecture] = {
    "llama": GgufArchitecture("llama", permuted=True),
    "qwen2": GgufArchitecture("qwen2"),
    "qwen3": GgufArchitecture("qwen3"),
    "smollm3": GgufArchitecture("smollm3", permuted=True),
    "gemma2": GgufArchitecture("gemma2", norm_shift=1.0, names=_GEMMA_NAMES),
    "gemma3": GgufArchitecture("gemma3_text", norm_shift=1.0, names=_GEMMA_NAMES),
}
"""By `general.architecture`; Mistral files say llama, see `_model_type`."""

_FREQUENCY_FACTORS = "rope_freqs.weight"

_FIXED_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


class GgufWeights:
    """The tensors of a GGUF model, as Hugging Face stores them.

    Raises:
        UnsupportedModel: a tensor whose meaning we do not know.
    """

    def __init__(self, file: GgufFile, config: DecoderConfig) -> None:
        self._file, self._config = file, config
        self._architecture = _architecture(file.metadata)
        self._origins = {
            _hf_name(name, self._architecture): name for name in file.tensors if name != _FREQUENCY_FACTORS
        }

    @property
    def names(self) -> Collection[str]:
        return self._origins.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.tensors[self._origins[name]].shape

    def format(self, name: str) -> Format:
        origin = self._origins[name]
        return gguf_format(self._file.tensors[origin].kind.name, origin)

    def stored(self, name: str) -> StoredTensor:
        tensor = self._file.stored(self._origins[name])
        if self._architecture.permuted and "self_attn.q_proj." in name:
            return _unpermuted(tensor, self._config.num_heads, name)
        if self._architecture.permuted and "self_attn.k_proj." in name:
            return _unpermuted(tensor, self._config.num_kv_heads, name)
        if self._architecture.norm_shift and name.endswith("norm.weight"):
            return from_floats(tensor.expand() - np.float32(self._architecture.norm_shift))
        return tensor

    def close(self) -> None:
        self._file.close()


def gguf_config(file: GgufFile) -> DecoderConfig:
    """Read the metadata of a model.

    Raises:
        UnsupportedModel: an architecture, a rope scaling or a feature that we do not have.
        CorruptModel: a key is missing, breaks its rule, or contradicts another.
    """
    architecture = _architecture(file.metadata)
    values = Keys(_plain(file), str(file.path), f"{file.metadata['general.architecture']}.")
    _check_known(values)
    model_type = _model_type(architecture, values)
    heads, hidden = values.whole("attention.head_count"), values.whole("embedding_length")
    head_dim = values.whole("attention.key_length", hidden // heads)
    for key in ("attention.value_length", "attention.key_length_swa", "attention.value_length_swa", *_DIMENSIONS):
        if values.whole(key, head_dim) != head_dim:
            raise _unsupported(values, key, f"must equal the head's size ({head_dim})")
    vocab_size = _vocab_size(file, values)
    tokens = Keys(file.metadata, str(file.path))
    hf = {
        "model_type": model_type,
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": values.whole("feed_forward_length"),
        "num_hidden_layers": values.whole("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": values.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": values.whole("context_length"),
        "rms_norm_eps": values.number("attention.layer_norm_rms_epsilon"),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": tokens.token("tokenizer.ggml.bos_token_id", vocab_size),
        "eos_token_id": list(stated_ends(file.metadata, str(file.path), vocab_size)),
        **_own_settings(file, values, model_type, head_dim),
    }
    config = decoder_config(hf, str(file.path))
    divisors = _divisors(file, head_dim)
    if not divisors:
        return config
    if len(config.ropes) > 1 or config.ropes[0].scaling not in ("none", "linear"):
        kinds = ", ".join(spec.scaling for spec in config.ropes)
        raise UnsupportedModel(f"{file.path}: {_FREQUENCY_FACTORS} must stand beside no other scaling, got {kinds}")
    return replace(config, ropes=(replace(config.ropes[0], divisors=divisors),))


def stated_ends(metadata: Metadata, source: str, rows: int) -> tuple[int, ...]:
    """Return the tokens that the metadata names as ends, then control tokens that are known to end a message.

    Raises:
        CorruptModel: one is no id, or outside the rows.
    """
    keys = Keys(metadata, source, "tokenizer.ggml.")
    named = [token for kind in ("eos", "eot", "eom") for token in keys.tokens(f"{kind}_token_id", rows)]
    pieces = zip(keys.get("tokens", ()), keys.get("token_type", ()), strict=False)
    known = [at for at, (text, kind) in enumerate(pieces) if kind == CONTROL and text in END_MARKERS and at < rows]
    return tuple(dict.fromkeys([*named, *known]))


def _plain(file: GgufFile) -> dict[str, Any]:
    """The metadata, with one number where every layer has the same.

    Raises:
        UnsupportedModel: layers differ.
    """
    prefix = f"{file.metadata['general.architecture']}."
    plain: dict[str, Any] = {}
    for key, value in file.metadata.items():
        alike = isinstance(value, list) and key.startswith(prefix) and value and all(each == value[0] for each in value)
        if isinstance(value, list) and key.startswith(prefix) and not alike:
            raise UnsupportedModel(f"{file.path}: {key} must be the same in all layers, got {value!r:.200}")
        plain[key] = value[0] if alike else value
    return plain


_DIMENSIONS = ("rope.dimension_count", "rope.dimension_count_swa")

_KNOWN = frozenset(
    {
        "block_count",
        "context_length",
        "embedding_length",
        "feed_forward_length",
        "attention.head_count",
        "attention.head_count_kv",
        "attention.key_length",
        "attention.value_length",
        "attention.key_length_swa",
        "attention.value_length_swa",
        "attention.layer_norm_rms_epsilon",
        "attention.sliding_window",
        "attention.sliding_window_pattern",
        "rope.freq_base",
        "rope.freq_base_swa",
        "rope.scaling.type",
        "rope.scaling.factor",
        "rope.scaling.original_context_length",
        "rope.scaling.yarn_beta_fast",
        "rope.scaling.yarn_beta_slow",
        "rope.scaling.finetuned",
        "vocab_size",
        "tensor_data_layout",
        *_DIMENSIONS,
    }
)
"""Keys that are read, and those that change no number."""

_SOFTCAPS = ("attn_logit_softcapping", "final_logit_softcapping")
_GEMMAS = ("gemma2", "gemma3_text")
"""Types of models that read them."""

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    **dict.fromkeys(("expert_count", "expert_used_count", "expert_shared_count", "nextn_predict_layers"), (0,)),
    **dict.fromkeys(("attention.clamp_kqv", "attention.max_alibi_bias", "attention.alibi_bias_max"), (0,)),
    **dict.fromkeys((*_SOFTCAPS, "attention.scale"), (0,)),
    **dict.fromkeys(("attention.shared_kv_layers", "leading_dense_block_count", "pooling_type"), (0,)),
    **dict.fromkeys(("embedding_scale", "residual_scale", "logit_scale", "rope.scale_linear"), (0, 1)),
    **dict.fromkeys(("rope.scaling.attn_factor", "rope.scaling.yarn_attn_factor"), (1,)),
    "rope.scaling.yarn_ext_factor": (-1, 1),
    "rope.scaling.yarn_log_multiplier": (0,),
    "attention.causal": (True,),
    "use_parallel_residual": (False,),
}
"""Keys of features that we do not have -> values that say that the model does without."""


def _check_known(values: Keys) -> None:
    """Every key of the architecture must be one that is read, or say nothing.

    Raises:
        UnsupportedModel: a key may change the arithmetic.
    """
    for name in values.values:
        key = name.removeprefix(values.prefix)
        if not name.startswith(values.prefix) or key in _KNOWN:
            continue
        if key not in _NEUTRAL:
            raise _unsupported(values, key, "is a key that we do not know, and may change the arithmetic")
        if values.get(key) not in _NEUTRAL[key] and not (key in _SOFTCAPS and values.prefix.startswith("gemma")):
            raise _unsupported(values, key, "is a feature that we do not have")


def _unsupported(values: Keys, key: str, rule: str) -> UnsupportedModel:
    return UnsupportedModel(f"{values.source}: {values.prefix}{key} {rule}, got {values.get(key)!r:.200}")


def _architecture(metadata: Metadata) -> GgufArchitecture:
    kind = metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedModel(f"general.type must be model, got {kind!r}")
    name = metadata.get("general.architecture")
    if name not in list(ARCHITECTURES):
        raise UnsupportedModel(f"GGUF architecture must be one of {', '.join(ARCHITECTURES)}; got {name!r}")
    return ARCHITECTURES[str(name)]


def _model_type(architecture: GgufArchitecture, values: Keys) -> str:
    """The family; a Llama that names a window in all its layers is a Mistral.

    A window as long as the context cuts nothing off, whichever layers have it.
    """
    kind, window = architecture.model_type, values.whole("attention.sliding_window", 0, least=0)
    if kind in _GEMMAS or not window or window >= values.whole("context_length"):
        return kind
    if values.get("attention.sliding_window_pattern"):
        raise _unsupported(values, "attention.sliding_window_pattern", "is a feature that we do not have")
    if kind != "llama":
        raise UnsupportedModel(f"{values.source}: a {kind} file must not have attention.sliding_window, got {window}")
    return "mistral"


def _vocab_size(file: GgufFile, values: Keys) -> int:
    if "token_embd.weight" not in file.tensors:
        raise CorruptModel(f"{file.path} must hold the tensor token_embd.weight, got none")
    rows = file.tensors["token_embd.weight"].shape[0]
    if values.whole("vocab_size", rows) != rows:
        values.refuse("vocab_size", f"must be the rows of token_embd.weight ({rows})")
    return rows


def _own_settings(file: GgufFile, values: Keys, model_type: str, head_dim: int) -> dict[str, Any]:
    """What a family's `config.json` says in its own way."""
    if model_type in _GEMMAS:
        return _gemma_settings(values, model_type, head_dim)
    rope = {"rope_theta": _theta(values, "rope.freq_base", 1e4), **_rope_scaling(values)}
    biased = {"attention_bias": "blk.0.attn_q.bias" in file.tensors, "mlp_bias": "blk.0.ffn_up.bias" in file.tensors}
    own = {"llama": biased, "mistral": {"sliding_window": values.get("attention.sliding_window")}}
    return {"rope_parameters": rope, **own.get(model_type, {})}


def _gemma_settings(values: Keys, model_type: str, head_dim: int) -> dict[str, Any]:
    layers, hidden, heads = (values.whole(key) for key in ("block_count", "embedding_length", "attention.head_count"))
    settings = {
        "sliding_window": values.whole("attention.sliding_window"),
        # The file does not say it: the 27B models, alone in having so many layers, scale by hidden / heads.
        "query_pre_attn_scalar": hidden // heads if layers == _LARGEST_GEMMAS[model_type] else head_dim,
        **{key: values.get(key) or None for key in _SOFTCAPS if values.get(key) is not None},
    }
    if model_type == "gemma2":
        # Converters leave the base out: it is the same in all of them.
        theta = values.number("rope.freq_base", 1e4)
        return {**settings, "rope_parameters": {"rope_theta": theta, **_rope_scaling(values)}}
    ropes = {
        "full_attention": {"rope_theta": _theta(values, "rope.freq_base", 1e6), **_rope_scaling(values)},
        # Converters leave this one out.
        "sliding_attention": {"rope_theta": values.number("rope.freq_base_swa", 1e4), "rope_type": "default"},
    }
    return {**settings, "rope_parameters": ropes}


_LARGEST_GEMMAS = {"gemma2": 46, "gemma3_text": 62}
"""Layers of the 27B models."""


def _theta(values: Keys, key: str, default: float) -> float:
    if values.get(key) is None:
        LOGGER.warning("%s does not give %s%s; taking %s", values.source, values.prefix, key, default)
    return values.number(key, default)


_SCALING_FIELDS = {
    "factor": "rope.scaling.factor",
    "original_max_position_embeddings": "rope.scaling.original_context_length",
    "beta_fast": "rope.scaling.yarn_beta_fast",
    "beta_slow": "rope.scaling.yarn_beta_slow",
}
_YARN_ONLY = {"rope.scaling.yarn_beta_fast": 32.0, "rope.scaling.yarn_beta_slow": 1.0}
"""Key -> the value that it has anyway."""


def _rope_scaling(values: Keys) -> dict[str, Any]:
    kind = values.get("rope.scaling.type", "none")
    if kind == "none" and values.number("rope.scaling.factor", 1.0) != 1.0:
        stated = values.get("rope.scaling.type")
        values.refuse("rope.scaling.factor", f"must come with {values.prefix}rope.scaling.type ({stated!r})")
    for key, usual in _YARN_ONLY.items():
        if kind != "yarn" and values.number(key, usual) != usual:
            values.refuse(key, f"must come with yarn as {values.prefix}rope.scaling.type ({kind!r})")
    if kind == "none":
        return {"rope_type": "default"}
    given = {field: values.number(key) for field, key in _SCALING_FIELDS.items() if values.get(key) is not None}
    return {"rope_type": kind, **given}


def _divisors(file: GgufFile, head_dim: int) -> tuple[float, ...]:
    """What each frequency is divided by, where the file says so: Llama 3's scaling is written like that."""
    if _FREQUENCY_FACTORS not in file.tensors:
        return ()
    divisors = file.stored(_FREQUENCY_FACTORS).expand().reshape(-1)
    if len(divisors) != head_dim // 2 or not np.all(np.isfinite(divisors) & (divisors > 0)):
        rule = f"must hold {head_dim // 2} numbers above 0, got {divisors.tolist()!r:.200}"
        raise CorruptModel(f"{file.path}: {_FREQUENCY_FACTORS} {rule}")
    return () if np.all(divisors == 1) else tuple(divisors.tolist())


def _hf_name(name: str, architecture: GgufArchitecture) -> str:
    if name in _FIXED_NAMES:
        return _FIXED_NAMES[name]
    match = _LAYER.fullmatch(name)
    names = {**_LAYER_NAMES, **(architecture.names or {})}
    if match is None or match[2] not in names:
        raise UnsupportedModel(f"tensor {name} is none that we know, got it in a {architecture.model_type} model")
    return f"model.layers.{match[1]}.{names[match[2]]}.{match[3]}"


def _unpermuted(tensor: StoredTensor, heads: int, name: str) -> StoredTensor:
    """Rows (pair, half) of each head back to (half, pair); a bias is one row, whose numbers are reordered."""
    is_bias = name.endswith("bias")
    count = tensor.shape[1] if is_bias else tensor.shape[0]
    if count % (2 * heads):
        raise CorruptModel(f"rows of {name} must be a multiple of {2 * heads}, got {count}")
    order = np.arange(count).reshape(heads, -1, 2).swapaxes(1, 2).reshape(-1)
    return from_floats(tensor.expand()[:, order]) if is_bias else tensor.take(order)
