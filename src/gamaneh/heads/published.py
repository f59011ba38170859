"""EAGLE-3 heads as others publish them, read as heads of ours.

Two forms of one thing: the original one (`LlamaForCausalLMEagle3` and the like: one flat `config.json`) and that of the
`speculators` library (`speculators_model_type`: the layer's config is nested). The tensors are the same: `fc`,
one Llama layer whose queries, keys and values read two widths, `norm`, `lm_head`, and `d2t` with the distance of each
draft token to its id in the target.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NoReturn

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

LOGGER = logging.getLogger(__name__)

PUBLISHED_KIND = "eagle"
"""Kind of all heads that are read here."""

SPECULATORS_KIND = "speculators_model_type"
NATIVE_MARK = "Eagle3"
"""In the name of every architecture of the original form."""

TRAINED_DEPTH = 7
"""Draft positions that the original training unrolls, where a config tells no number."""

_TARGET_EMBEDDING, _HEAD, _OFFSETS, _KNOWN = "embed_tokens.weight", "lm_head.weight", "d2t", "t2d"
_NEIGHBOURS = 8
"""A map in which so many neighbouring ids are expected, and none is found, does not hold distances."""

_HARMLESS = "rotary_emb.inv_freq"

Settings = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class _Published:
    """What a config says, the same for both forms.

    Args:
        layer: the decoder layer, as of a Llama model of one layer.
        hidden_layers: layers of the target; empty where the config leaves it to the usual ones.
        draft_vocab: tokens that the heads draft from, where the config says it.
    """

    layer: DecoderConfig
    hidden_layers: tuple[int, ...]
    depth: int
    fuse_norm: FuseNorm
    norm_before_residual: bool
    norm_output: bool
    draft_vocab: int | None


def is_published(folder: Path) -> bool:
    """Whether the folder holds EAGLE-3 heads in one of the two forms."""
    if not (folder / "config.json").is_file():
        return False
    config = read_json(folder / "config.json")
    return SPECULATORS_KIND in config or any(NATIVE_MARK in name for name in config.get("architectures") or ())


def read_published(folder: Path, loaded: LoadedModel) -> Artifact:
    """Heads that others published, for this target.

    They name their target, but nothing in them proves which it was: sizes and vocabulary are checked.

    Raises:
        UnsupportedModel: a kind of heads or a feature that we do not have.
        CorruptModel: files, keys or tensors are missing, contradict each other, or do not fit the target.
    """
    file = folder / "config.json"
    config = read_json(file)
    published = (_from_speculators if SPECULATORS_KIND in config else _from_native)(config, str(file))
    _warn_of_theta(config, str(file), published, loaded)
    tensors = _Tensors(folder)
    shape = _shape(published, tensors, loaded)
    return Artifact(
        kind=PUBLISHED_KIND,
        shape=shape.mapping(),
        target=mark_target(loaded),
        tensors=tensors.renamed(shape, published.draft_vocab, loaded.config),
        provenance=Provenance(data={"published": folder.resolve().name}),
    )


def _warn_of_theta(config: Settings, source: str, published: _Published, loaded: LoadedModel) -> None:
    """Heads that do not state their base may have been trained with the target's, or with the default."""
    layer = config.get("transformer_layer_config", config)
    stated = layer.get("rope_theta") or (layer.get("rope_parameters") or layer.get("rope_scaling") or {}).get(
        "rope_theta"
    )
    ours, theirs = published.layer.ropes[0].theta, loaded.config.ropes[0].theta
    if stated is None and ours != theirs:
        LOGGER.warning("%s does not give rope_theta: taking %s, where the target has %s", source, ours, theirs)


def _from_speculators(config: Settings, source: str) -> _Published:
    if config[SPECULATORS_KIND] != "eagle3":
        raise UnsupportedModel(f"{source}: {SPECULATORS_KIND} must be eagle3, got {config[SPECULATORS_KIND]!r}")
    layer = _layer(_get(config, "transformer_layer_config", source), source)
    methods = config.get("speculators_config", {}).get("proposal_methods") or [{}]
    return _Published(
        layer=layer,
        hidden_layers=_hidden_layers(config.get("eagle_aux_hidden_state_layer_ids")),
        depth=methods[0].get("speculative_tokens") or TRAINED_DEPTH,
        fuse_norm=_fuse_norm(config),
        norm_before_residual=bool(_get(config, "norm_before_residual", source)),
        norm_output=bool(config.get("norm_output", False)),
        draft_vocab=config.get("draft_vocab_size"),
    )


def _from_native(config: Settings, source: str) -> _Published:
    inner = config.get("eagle_config") or {}
    own = {**config, **inner}
    return _Published(
        layer=_layer({**config, "model_type": config.get("model_type", "llama")}, source),
        hidden_layers=_hidden_layers(own.get("eagle_aux_hidden_state_layer_ids")),
        depth=TRAINED_DEPTH,
        fuse_norm=_fuse_norm(own),
        norm_before_residual=bool(own.get("norm_before_residual", False)),
        norm_output=bool(own.get("norm_output", False)),
        draft_vocab=own.get("draft_vocab_size"),
    )


def _get(config: Settings, key: str, source: str) -> Any:
    if key not in config:
        raise CorruptModel(f"{source}: published heads must have the key {key}, got {', '.join(config)}")
    return config[key]


def _layer(settings: Settings, source: str) -> DecoderConfig:
    layers = settings.get("num_hidden_layers", 1)
    if layers != 1:
        raise UnsupportedModel(f"published heads must have one layer, got {layers}")
    if settings.get("model_type") != "llama":
        raise UnsupportedModel(f"the layer of published heads must be of llama, got {settings.get('model_type')!r}")
    if set(settings.get("layer_types") or ()) - {"full_attention"}:
        raise UnsupportedModel(f"the layer of published heads must see everything, got {settings['layer_types']}")
    plain = {key: value for key, value in settings.items() if key not in ("bos_token_id", "eos_token_id")}
    config = decoder_config({**plain, "num_hidden_layers": 1, "architectures": []}, source)
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
    """The tensors of a checkpoint by their usual names, whatever stands before them.

    Args:
        names: usual name -> name in the file.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: dict[str, Tensor] = {}
        self.names: dict[str, str] = {}
        for name, tensor in _read(folder).items():
            if name.endswith(_HARMLESS):
                continue
            plain = _plain(name)
            if plain in self.all:
                raise CorruptModel(f"{folder} must hold one of the tensors {self.names[plain]} and {name}, got both")
            self.all[plain], self.names[plain] = tensor, name
        _check_finite(self.all)

    def get(self, name: str) -> Tensor:
        if name not in self.all:
            raise CorruptModel(f"published heads in {self.folder} lack the tensor {name}")
        return self.all[name]

    def draft_ids(self, rows: int, draft_vocab: int | None, vocab_size: int) -> Tensor | None:
        """`[draft_vocab]` ids in the target; None where the heads draft from all of its tokens.

        Args:
            rows: of the output matrix.
            draft_vocab: tokens that the config says they draft from.

        Raises:
            CorruptModel: the map is missing, or cannot be right.
        """
        if draft_vocab is not None and draft_vocab != rows:
            raise CorruptModel(f"{self._named(_HEAD)} must have draft_vocab_size rows ({draft_vocab}), got {rows}")
        known = self._known_ids()
        if _OFFSETS not in self.all:
            return self._without_offsets(known, rows, vocab_size)
        offsets = self._offsets(rows)
        ids = offsets + torch.arange(rows)
        if not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
            self._refuse_map(f"must lead to tokens below {vocab_size}", ids)
        if len(set(ids.tolist())) != rows:
            self._refuse_map("must lead to each token once", ids)
        if known is not None and not torch.equal(ids.sort().values, known):
            self._refuse_map(f"must lead to the tokens that {self._named(_KNOWN)} marks", ids)
        if known is None and rows < vocab_size and int(offsets.max()) == 0:
            self._refuse_map(f"must hold distances, and not only zeros for {rows} of {vocab_size} tokens", offsets)
        # Distances stay the same over neighbouring ids, of which a map of so many tokens has rows^2 / vocab by chance.
        if known is None and bool((offsets.diff() > 0).all()) and rows**2 > _NEIGHBOURS * vocab_size:
            self._refuse_map("must hold distances, which do not rise at every token as absolute ids do", offsets)
        return ids

    def renamed(self, shape: EagleShape, draft_vocab: int | None, target: DecoderConfig) -> dict[str, Tensor]:
        """Under the names of `EagleHead`; every tensor must be spoken for, and of its shape."""
        names = _names(shape)
        spoken = {origin for origins in names.values() for origin in origins} | {_TARGET_EMBEDDING, _OFFSETS, _KNOWN}
        left = sorted(self.names[name] for name in self.all.keys() - spoken)
        if left:
            raise UnsupportedModel(f"published heads have tensors that we do not know: {', '.join(left[:5])}")
        rows = len(self.get(_HEAD))
        for name, sizes in _shapes(shape, target, rows).items():
            if name in spoken and name in self.all and tuple(self.all[name].shape) != sizes:
                raise CorruptModel(f"{self._named(name)} must have shape {sizes}, got {tuple(self.all[name].shape)}")
        tensors = {name: torch.cat([self.get(origin) for origin in origins]) for name, origins in names.items()}
        ids = self.draft_ids(rows, draft_vocab, target.vocab_size)
        return tensors if ids is None else {**tensors, DRAFT_IDS: ids}

    def _named(self, name: str) -> str:
        return f"tensor {self.names.get(name, name)} in {self.folder}"

    def _refuse_map(self, rule: str, got: Tensor) -> NoReturn:
        raise CorruptModel(f"{self._named(_OFFSETS)} {rule}, got {got.tolist()[:5]}")

    def _offsets(self, rows: int) -> Tensor:
        offsets = self.all[_OFFSETS]
        if offsets.is_floating_point() or offsets.is_complex() or offsets.dtype == torch.bool:
            raise CorruptModel(f"{self._named(_OFFSETS)} must hold whole numbers, got {offsets.dtype}")
        if tuple(offsets.shape) != (rows,):
            rule = f"must have an entry for each of {rows} rows of {self._named(_HEAD)}"
            raise CorruptModel(f"{self._named(_OFFSETS)} {rule}, got {tuple(offsets.shape)}")
        return offsets.long()

    def _known_ids(self) -> Tensor | None:
        """Ids of the target's tokens that the heads can draft, ascending, by the mark of each."""
        if _KNOWN not in self.all:
            return None
        marks = self.all[_KNOWN]
        if marks.ndim != 1 or not bool(((marks == 0) | (marks == 1)).all()):
            raise CorruptModel(f"{self._named(_KNOWN)} must hold a mark, 0 or 1, for each token of the target")
        return marks.nonzero().flatten()

    def _without_offsets(self, known: Tensor | None, rows: int, vocab_size: int) -> Tensor | None:
        if known is None and rows == vocab_size:
            return None
        if known is None:
            raise CorruptModel(
                f"{self._named(_HEAD)} must have the target's {vocab_size} rows or come with {_OFFSETS}, got {rows}"
            )
        if len(known) != rows or int(known.max()) >= vocab_size:
            raise CorruptModel(f"{self._named(_KNOWN)} must mark {rows} tokens below {vocab_size}, got {len(known)}")
        return known


def _read(folder: Path) -> dict[str, Tensor]:
    """All tensors; a pickle is read as one of tensors and of nothing else, which runs no code."""
    files = sorted(folder.glob("*.safetensors"))
    pickle = folder / "pytorch_model.bin"
    try:
        if files:
            return _joined(files)
        if pickle.is_file():
            return dict(torch.load(pickle, map_location="cpu", weights_only=True))
    except (OSError, SafetensorError, UnpicklingError, RuntimeError) as error:
        raise CorruptModel(f"weights in {folder} cannot be read: {error}") from error
    raise CorruptModel(f"{folder} must hold a safetensors file or {pickle.name}, got neither")


def _joined(files: Sequence[Path]) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in files:
        part = load_file(file)
        twice = sorted(tensors.keys() & part.keys())
        if twice:
            raise CorruptModel(f"{file} must hold tensors that no other file holds, got {twice[0]} again")
        tensors |= part
    return tensors


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
            own_embedding=_has_own_embedding(tensors, loaded, layer.hidden_size),
            norm_eps=layer.norm_eps,
            rope=layer.ropes[0],
        )
    except InvalidOption as error:
        raise CorruptModel(f"published heads do not fit {loaded.name}: {error}") from error


def _has_own_embedding(tensors: _Tensors, loaded: LoadedModel, hidden: int) -> bool:
    """Most checkpoints hold a copy of the target's, or leave it out."""
    own, target = tensors.all.get(_TARGET_EMBEDDING), loaded.decoder.embedding
    if own is None and hidden != target.shape[1]:
        raise CorruptModel(
            f"published heads in {tensors.folder} must have {_TARGET_EMBEDDING}, since their hidden_size is {hidden} "
            f"and the target's {target.shape[1]}"
        )
    if own is None:
        return False
    if own.shape != target.shape:
        return True
    numbers = target[:]  # expanded here, where the target is kept in a format of its own
    return not torch.equal(own.to(numbers.device, numbers.dtype), numbers)


def _plain(name: str) -> str:
    for prefix in ("model.", "layers.0.", "midlayer."):
        name = name.removeprefix(prefix)
    return name


def _shapes(shape: EagleShape, target: DecoderConfig, rows: int) -> dict[str, tuple[int, ...]]:
    """Shape of every tensor, by the names of the file."""
    hidden, inner = shape.hidden_size, shape.intermediate_size
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    fused = len(shape.hidden_layers) * target.hidden_size
    return {
        "fc.weight": (hidden, fused),
        "input_norm.weight": (fused,),
        **{f"fc_norm.{at}.weight": (target.hidden_size,) for at in range(len(shape.hidden_layers))},
        "input_layernorm.weight": (hidden,),
        "hidden_norm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, 2 * hidden),
        "self_attn.k_proj.weight": (keys, 2 * hidden),
        "self_attn.v_proj.weight": (keys, 2 * hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
        "mlp.down_proj.weight": (hidden, inner),
        "norm.weight": (hidden,),
        _HEAD: (rows, hidden),
        _TARGET_EMBEDDING: (target.vocab_size, hidden),
    }


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
        "head.weight": (_HEAD,),
        "embedding.weight": (_TARGET_EMBEDDING,) if shape.own_embedding else (),
    }
    return {name: origins for name, origins in names.items() if origins}
