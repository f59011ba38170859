"""EAGLE-3 heads as others publish them, read as heads of ours.

Two forms of one thing: the original one (`LlamaForCausalLMEagle3` and the like: one flat `config.json`) and that of the
`speculators` library (`speculators_model_type`: the layer's config is nested). The tensors are the same: `fc`,
one Llama layer whose queries, keys and values read two widths, `norm`, `lm_head`, and `d2t` with the distance of each
draft token to its id in the target.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from gamaneh.errors import CorruptModel, InvalidOption, UnsupportedModel
from gamaneh.heads.artifact import DRAFT_IDS, Artifact, Provenance
from gamaneh.heads.eagle_shape import EagleShape, FuseNorm
from gamaneh.heads.target import mark_target
from gamaneh.models.config import DecoderConfig
from gamaneh.models.families import decoder_config
from gamaneh.models.loading import LoadedModel
from gamaneh.models.weights import read_json

PUBLISHED_KIND = "eagle"
"""Kind of all heads that are read here."""

SPECULATORS_KIND = "speculators_model_type"
NATIVE_MARK = "Eagle3"
"""In the name of every architecture of the original form."""

TRAINED_DEPTH = 7
"""Draft positions that the original training unrolls, where a config tells no number."""

_TARGET_EMBEDDING, _OFFSETS, _KNOWN = "embed_tokens.weight", "d2t", "t2d"
_HARMLESS = "rotary_emb.inv_freq"

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Published:
    """What a config says, the same for both forms.

    Args:
        layer: the decoder layer, as of a Llama model of one layer.
        hidden_layers: layers of the target; empty where the config leaves it to the usual ones.
    """

    layer: DecoderConfig
    hidden_layers: tuple[int, ...]
    depth: int
    fuse_norm: FuseNorm
    norm_before_residual: bool
    norm_output: bool


def is_published(folder: Path) -> bool:
    """Whether the folder holds EAGLE-3 heads in one of the two forms."""
    if not (folder / "config.json").is_file():
        return False
    config = read_json(folder / "config.json")
    return SPECULATORS_KIND in config or any(NATIVE_MARK in name for name in config.get("architectures") or ())


def read_published(folder: Path, loaded: LoadedModel) -> Artifact:
    """Heads that others published, for this target.

    They name their target, but nothing in them proves which it was: only the sizes are checked.

    Raises:
        UnsupportedModel: a kind of heads or a feature that we do not have.
        CorruptModel: files, keys or tensors are missing, or do not fit the target.
    """
    config = read_json(folder / "config.json")
    published = _from_speculators(config) if SPECULATORS_KIND in config else _from_native(config)
    tensors = _Tensors(folder)
    shape = _shape(published, tensors, loaded)
    return Artifact(
        kind=PUBLISHED_KIND,
        shape=shape.mapping(),
        target=mark_target(loaded),
        tensors=tensors.renamed(shape, loaded.config.vocab_size),
        provenance=Provenance(data={"published": folder.resolve().name}),
    )


def _from_speculators(config: Settings) -> _Published:
    if config[SPECULATORS_KIND] != "eagle3":
        raise UnsupportedModel(f"{SPECULATORS_KIND} must be eagle3, got {config[SPECULATORS_KIND]!r}")
    layer = _layer(_get(config, "transformer_layer_config"))
    methods = config.get("speculators_config", {}).get("proposal_methods") or [{}]
    return _Published(
        layer=layer,
        hidden_layers=_hidden_layers(config.get("eagle_aux_hidden_state_layer_ids")),
        depth=methods[0].get("speculative_tokens") or TRAINED_DEPTH,
        fuse_norm=_fuse_norm(config),
        norm_before_residual=bool(_get(config, "norm_before_residual")),
        norm_output=bool(config.get("norm_output", False)),
    )


def _from_native(config: Settings) -> _Published:
    inner = config.get("eagle_config") or {}
    own = {**config, **inner}
    return _Published(
        layer=_layer({**config, "model_type": config.get("model_type", "llama")}),
        hidden_layers=_hidden_layers(own.get("eagle_aux_hidden_state_layer_ids")),
        depth=TRAINED_DEPTH,
        fuse_norm=_fuse_norm(own),
        norm_before_residual=bool(own.get("norm_before_residual", False)),
        norm_output=bool(own.get("norm_output", False)),
    )


def _get(config: Settings, key: str) -> Any:
    if key not in config:
        raise CorruptModel(f"config of published heads must have the key {key}, got {', '.join(config)}")
    return config[key]


def _layer(settings: Settings) -> DecoderConfig:
    layers = settings.get("num_hidden_layers", 1)
    if layers != 1:
        raise UnsupportedModel(f"published heads must have one layer, got {layers}")
    if settings.get("model_type") != "llama":
        raise UnsupportedModel(f"the layer of published heads must be of llama, got {settings.get('model_type')!r}")
    if set(settings.get("layer_types") or ()) - {"full_attention"}:
        raise UnsupportedModel(f"the layer of published heads must see everything, got {settings['layer_types']}")
    config = decoder_config({**settings, "num_hidden_layers": 1, "architectures": []})
    if config.activation != "silu" or config.qkv_bias or config.out_bias or config.mlp_bias:
        raise UnsupportedModel("the layer of published heads must have the activation silu and no biases")
    return config


def _hidden_layers(ids: Sequence[int] | None) -> tuple[int, ...]:
    """Ids by either of two conventions, as ours: layer n puts out what layer n + 1 reads.

    Some count from the first layer's output as 0, so that their first id is 1 where others say 2 and mean the
    same. Nobody says 1 otherwise: engines tell the two apart by that (sgl-project/sglang#25454).
    """
    shift = 1 if ids and ids[0] == 1 else 0
    return tuple(layer + shift for layer in ids or ())


def _fuse_norm(config: Settings) -> FuseNorm:
    if config.get("fc_norm"):
        return "each"
    return "joint" if config.get("norm_before_fc") else "none"


class _Tensors:
    """The tensors of a checkpoint by their usual names, whatever stands before them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all = {_plain(name): tensor for name, tensor in _read(folder).items() if not name.endswith(_HARMLESS)}
        _check_finite(self.all)

    def get(self, name: str) -> Tensor:
        if name not in self.all:
            raise CorruptModel(f"published heads in {self.folder} lack the tensor {name}")
        return self.all[name]

    def draft_ids(self, vocab_size: int) -> Tensor | None:
        """`[draft_vocab]` ids in the target; None where the heads draft from all of its tokens."""
        if _OFFSETS not in self.all:
            return None
        offsets = self.all[_OFFSETS].long()
        ids = offsets + torch.arange(len(offsets))
        if len(ids) == 0 or not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
            raise CorruptModel(f"{_OFFSETS} must lead to tokens below {vocab_size}, got {ids.tolist()[:5]}")
        return ids

    def renamed(self, shape: EagleShape, vocab_size: int) -> dict[str, Tensor]:
        """Under the names of `EagleHead`; every tensor must be spoken for."""
        names = _names(shape)
        spoken = {origin for origins in names.values() for origin in origins} | {_TARGET_EMBEDDING, _OFFSETS, _KNOWN}
        left = sorted(self.all.keys() - spoken)
        if left:
            raise UnsupportedModel(f"published heads have tensors that we do not know: {', '.join(left[:5])}")
        tensors = {name: torch.cat([self.get(origin) for origin in origins]) for name, origins in names.items()}
        ids = self.draft_ids(vocab_size)
        return tensors if ids is None else {**tensors, DRAFT_IDS: ids}


def _read(folder: Path) -> dict[str, Tensor]:
    """All tensors; a pickle is read as one of tensors and of nothing else, which runs no code."""
    files = sorted(folder.glob("*.safetensors"))
    pickle = folder / "pytorch_model.bin"
    try:
        if files:
            return {name: tensor for file in files for name, tensor in load_file(file).items()}
        if pickle.is_file():
            return dict(torch.load(pickle, map_location="cpu", weights_only=True))
    except (OSError, SafetensorError, UnpicklingError, RuntimeError) as error:
        raise CorruptModel(f"weights in {folder} cannot be read: {error}") from error
    raise CorruptModel(f"{folder} must hold a safetensors file or {pickle.name}, got neither")


def _check_finite(tensors: Mapping[str, Tensor]) -> None:
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not torch.isfinite(torch.stack(tensor.aminmax())).all():
            raise CorruptModel(f"tensor {name} of published heads must hold finite numbers, got NaN or infinity")


def _shape(published: _Published, tensors: _Tensors, loaded: LoadedModel) -> EagleShape:
    layer, layers = published.layer, loaded.config.num_layers
    try:
        return EagleShape(
            hidden_size=layer.hidden_size,
            intermediate_size=layer.intermediate_size,
            num_heads=layer.num_heads,
            num_kv_heads=layer.num_kv_heads,
            head_dim=layer.head_dim,
            hidden_layers=published.hidden_layers or (2, layers // 2, layers - 3),
            depth=published.depth,
            fuse_norm=published.fuse_norm,
            norm_before_residual=published.norm_before_residual,
            norm_output=published.norm_output,
            share_head=False,
            own_embedding=_has_own_embedding(tensors, loaded),
            norm_eps=layer.norm_eps,
            rope=layer.ropes[0],
        )
    except InvalidOption as error:
        raise CorruptModel(f"published heads do not fit {loaded.name}: {error}") from error


def _has_own_embedding(tensors: _Tensors, loaded: LoadedModel) -> bool:
    """Most checkpoints hold a copy of the target's, or leave it out."""
    own, target = tensors.all.get(_TARGET_EMBEDDING), loaded.decoder.embedding
    if own is None:
        return False
    same = own.shape == target.shape and torch.equal(own.to(target.device, target.dtype), target)
    return not same


def _plain(name: str) -> str:
    for prefix in ("model.", "layers.0.", "midlayer."):
        name = name.removeprefix(prefix)
    return name


def _names(shape: EagleShape) -> dict[str, tuple[str, ...]]:
    """Ours -> theirs, which are stacked."""
    fuse_norms: Mapping[str, Callable[[], tuple[str, ...]]] = {
        "none": tuple,
        "joint": lambda: ("input_norm.weight",),
        "each": lambda: tuple(f"fc_norm.{at}.weight" for at in range(len(shape.hidden_layers))),
    }
    names = {
        "fuse.weight": ("fc.weight",),
        "fuse_norm": fuse_norms[shape.fuse_norm](),
        "embed_norm": ("input_layernorm.weight",),
        "hidden_norm": ("hidden_norm.weight",),
        "qkv.weight": tuple(f"self_attn.{part}_proj.weight" for part in "qkv"),
        "out.weight": ("self_attn.o_proj.weight",),
        "mlp_norm": ("post_attention_layernorm.weight",),
        "gate_up.weight": ("mlp.gate_proj.weight", "mlp.up_proj.weight"),
        "down.weight": ("mlp.down_proj.weight",),
        "norm": ("norm.weight",),
        "head.weight": ("lm_head.weight",),
        "embedding.weight": (_TARGET_EMBEDDING,) if shape.own_embedding else (),
    }
    return {name: origins for name, origins in names.items() if origins}
