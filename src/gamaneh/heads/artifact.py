"""What trained heads are kept as: a folder with `config.json` and `model.safetensors`.

The config says what the heads are, for which target, how they were made and how good they are; it
holds the hash of the tensors. docs/heads.md describes every key.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from gamaneh.errors import CorruptModel, ModelError, UnsupportedModel
from gamaneh.files import whole_folder
from gamaneh.heads.target import TargetMark, mark_target
from gamaneh.heads.trainable import DraftHeads
from gamaneh.models.loading import LoadedModel
from gamaneh.models.weights import read_json

__all__ = [
    "KINDS",
    "Artifact",
    "Provenance",
    "TargetMark",
    "artifact_kind",
    "check_heads_place",
    "check_quality",
    "check_target",
    "is_artifact",
    "load_artifact",
    "load_tensors",
    "mark_target",
    "overall_survival",
    "read_record",
    "save_artifact",
    "tensors_of",
]

FORMAT = "gamaneh-heads"
VERSION = 1
CONFIG, TENSORS = "config.json", "model.safetensors"

KINDS = ("medusa", "mtp", "eagle", "early_exit", "block")
"""Kinds of heads; each is the name of the proposer that drafts with it."""

DRAFT_IDS = "draft_ids"
"""Tensor `[draft_vocab]` of int64, the target's token id of each draft token, where heads draft from a part of its
vocabulary."""

ALL_PROMPTS = "all"
"""Name of the set of all prompts held out, among those whose survival is told."""

_KEYS = ("format", "version", "kind", "shape", "target", "draft_vocab", "provenance", "quality", "sha256")

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Provenance:
    """How heads came about.

    Args:
        command: the command line that makes them again.
        data: what they learned from: names, counts, hashes.
        commit: of this project's source.
        versions: of the packages that took part.
        date: when, as ISO 8601.
    """

    command: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)
    commit: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
    date: str = ""


@dataclass(frozen=True, slots=True, eq=False)
class Artifact:
    """Trained heads, and all that is known about them.

    Args:
        kind: one of `KINDS`.
        shape: sizes and switches that its kind needs to build the module.
        target: the model that they belong to.
        tensors: weights by name, and `draft_ids` where they draft from a part of the vocabulary.
        quality: what was measured on prompts held out. `survival` maps the name of a set of prompts to
            s_1, s_2, ...; `ranks` has for each draft position the shares of tokens that were its first, second, ...
            guess.
    """

    kind: str
    shape: Mapping[str, Any]
    target: TargetMark
    tensors: Mapping[str, Tensor]
    provenance: Provenance = field(default_factory=Provenance)
    quality: Mapping[str, Any] = field(default_factory=dict)

    @property
    def draft_vocab(self) -> int | None:
        """Tokens that the heads can draft; None for all of the target's."""
        return len(self.tensors[DRAFT_IDS]) if DRAFT_IDS in self.tensors else None

    @property
    def survival(self) -> tuple[float, ...]:
        """s_1, s_2, ... over all prompts held out; empty if they were not measured."""
        return overall_survival(self.quality)


def overall_survival(quality: Mapping[str, Any]) -> tuple[float, ...]:
    """s_1, s_2, ... over all prompts held out; empty if they were not measured."""
    return tuple(quality.get("survival", {}).get(ALL_PROMPTS, ()))


def save_artifact(artifact: Artifact, folder: Path) -> None:
    """Write the heads into `folder`, whole or not at all; heads that are there already are replaced.

    Raises:
        ModelError: the folder is in use for something else, or cannot be written.
        CorruptModel: a weight is NaN or infinite.
    """
    _check_finite(artifact.tensors, folder)
    check_heads_place(folder)
    with whole_folder(folder) as fresh:
        save_file({name: tensor.contiguous() for name, tensor in artifact.tensors.items()}, fresh / TENSORS)
        text = json.dumps(_config(artifact, _sha256(fresh / TENSORS)), indent=2, ensure_ascii=False)
        (fresh / CONFIG).write_text(f"{text}\n", encoding="utf-8")


def check_heads_place(folder: Path) -> None:
    """Whether heads may be written there.

    Raises:
        ModelError: the folder is in use for something else, or is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise ModelError(f"{folder} must be a folder or not be there, got a file")
    if folder.exists() and not (folder / CONFIG).is_file() and any(folder.iterdir()):
        raise ModelError(f"{folder} must be empty or hold heads to be replaced, got other files")


def is_artifact(folder: Path) -> bool:
    """Whether heads of ours lie there.

    Raises:
        CorruptModel: there is a config that cannot be read.
    """
    return (folder / CONFIG).is_file() and read_json(folder / CONFIG).get("format") == FORMAT


def artifact_kind(folder: Path) -> str:
    """The kind of heads, whose tensors are not read.

    Raises:
        CorruptModel: the config is missing or damaged.
        UnsupportedModel: the format, its version or the kind is not ours.
    """
    kind: str = _read_config(folder)["kind"]
    return kind


def load_artifact(path: Path) -> Artifact:
    """Read heads and check them.

    Raises:
        CorruptModel: files or keys are missing, tensors are not those that the config tells of, or not finite.
        UnsupportedModel: the format, its version or the kind is not ours.
    """
    config = _read_config(path)
    artifact = Artifact(
        kind=config["kind"],
        shape=config["shape"],
        target=read_record(TargetMark, config["target"], path / CONFIG),
        tensors=_read_tensors(path, config["sha256"]),
        provenance=read_record(Provenance, config["provenance"], path / CONFIG),
        quality=config["quality"],
    )
    if artifact.draft_vocab != config["draft_vocab"]:
        counts = f"got {config['draft_vocab']} for {artifact.draft_vocab}"
        raise CorruptModel(f"draft_vocab in {path / CONFIG} must be the length of {DRAFT_IDS}, {counts}")
    _check_draft_ids(artifact, path)
    return artifact


def _check_draft_ids(artifact: Artifact, path: Path) -> None:
    ids, rows = artifact.tensors.get(DRAFT_IDS), artifact.target.vocab_size
    if ids is None:
        return
    whole = ids.dtype == torch.int64 and ids.ndim == 1 and len(ids) > 0
    if not whole or not 0 <= int(ids.min()) <= int(ids.max()) < rows or len(set(ids.tolist())) != len(ids):
        rule = f"must be ids from 0 to {rows - 1}, each once"
        raise CorruptModel(f"{DRAFT_IDS} in {path / TENSORS} {rule}, got {ids.flatten().tolist()[:5]}")


def check_target(artifact: Artifact, loaded: LoadedModel) -> None:
    """Heads work for the target that they were made for, and for no other.

    Raises:
        ModelError: they were made for another one; both are named.
    """
    mark = mark_target(loaded)
    if mark.fingerprint != artifact.target.fingerprint:
        raise ModelError(
            f"{artifact.kind} heads were made for {_described(artifact.target)} "
            f"and must be used with it, got {_described(mark)}"
        )


def load_tensors(module: nn.Module, artifact: Artifact) -> None:
    """Fill a module of the artifact's shape with its tensors, in the module's own type and device.

    Raises:
        CorruptModel: a tensor is missing, left over or of a wrong shape; it is named.
    """
    wanted = module.state_dict()
    given = {name: tensor for name, tensor in artifact.tensors.items() if name != DRAFT_IDS or name in wanted}
    _complain(artifact, "lack the tensors", wanted.keys() - given.keys())
    _complain(artifact, "have tensors that their shape does not account for:", given.keys() - wanted.keys())
    for name, tensor in wanted.items():
        if tensor.shape != given[name].shape:
            shapes = f"{tuple(tensor.shape)}, got {tuple(given[name].shape)}"
            raise CorruptModel(f"tensor {name} of {artifact.kind} heads must have shape {shapes}")
    module.load_state_dict(given)


def tensors_of(heads: DraftHeads) -> dict[str, Tensor]:
    """What an artifact keeps of trained heads: the weights, and the tokens that they draft from."""
    ids = heads.draft_ids()
    return {**heads.module().state_dict(), **({} if ids is None else {DRAFT_IDS: ids})}


def _config(artifact: Artifact, sha256: str) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "version": VERSION,
        "kind": artifact.kind,
        "shape": dict(artifact.shape),
        "target": asdict(artifact.target),
        "draft_vocab": artifact.draft_vocab,
        "provenance": asdict(artifact.provenance),
        "quality": dict(artifact.quality),
        "sha256": sha256,
    }


def _read_config(path: Path) -> dict[str, Any]:
    config = read_json(path / CONFIG)
    _check_format(config, path)
    return config


def _check_format(config: Mapping[str, Any], path: Path) -> None:
    if config.get("format") != FORMAT:
        raise UnsupportedModel(f"format in {path / CONFIG} must be {FORMAT}, got {config.get('format')!r}")
    if config.get("version") != VERSION:
        raise UnsupportedModel(f"version in {path / CONFIG} must be {VERSION}, got {config.get('version')!r}")
    if config.get("kind") not in KINDS:
        raise UnsupportedModel(f"kind in {path / CONFIG} must be one of {', '.join(KINDS)}, got {config.get('kind')!r}")
    if config.keys() != set(_KEYS):
        raise CorruptModel(f"{path / CONFIG} must have the keys {', '.join(_KEYS)}, got {', '.join(config)}")
    for name in ("shape", "target", "provenance", "quality"):
        if not isinstance(config[name], dict):
            raise CorruptModel(f"{name} in {path / CONFIG} must be an object, got {config[name]!r:.80}")
    check_quality(config["quality"], path / CONFIG)


def check_quality(quality: Mapping[str, Any], file: Path) -> None:
    """What drafting relies on; the rest is for people.

    Raises:
        CorruptModel: survival or ranks are no shares.
    """
    ranks, survival = quality.get("ranks", []), quality.get("survival", {})
    if not isinstance(ranks, list) or not all(map(_are_shares, ranks)):
        raise CorruptModel(f"ranks in {file} must be lists of numbers from 0 to 1, got {ranks!r:.80}")
    if not isinstance(survival, dict) or not all(map(_are_shares, survival.values())):
        raise CorruptModel(
            f"survival in {file} must be lists of numbers from 0 to 1 by set of prompts, got {survival!r:.80}"
        )


def _are_shares(values: object) -> bool:
    return isinstance(values, list) and all(isinstance(value, int | float) and 0.0 <= value <= 1.0 for value in values)


def read_record(kind: type[_T], values: Mapping[str, Any], file: Path) -> _T:
    """Part of a JSON file as one of our records.

    Raises:
        CorruptModel: a key is missing or unknown.
    """
    known = [entry.name for entry in fields(kind)]  # type: ignore[arg-type]
    if values.keys() != set(known):
        what = f"{kind.__name__} in {file}"
        raise CorruptModel(f"{what} must have the keys {', '.join(known)}, got {', '.join(values)}")
    return kind(**values)


def _read_tensors(path: Path, sha256: str) -> dict[str, Tensor]:
    file = path / TENSORS
    try:
        if _sha256(file) != sha256:
            raise CorruptModel(f"{file} must have the hash that {CONFIG} tells, {sha256}, got {_sha256(file)}")
        tensors: dict[str, Tensor] = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CorruptModel(f"{file} must be a whole safetensors file: {error}") from error
    _check_finite(tensors, path)
    return tensors


def _check_finite(tensors: Mapping[str, Tensor], path: Path) -> None:
    for name, tensor in tensors.items():
        if tensor.numel() and not torch.isfinite(torch.stack(tensor.aminmax())).all():
            raise CorruptModel(f"tensor {name} of {path} must hold finite numbers, got NaN or infinity")


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _described(mark: TargetMark) -> str:
    size = f"{mark.num_layers} layers of {mark.hidden_size}, {mark.vocab_size} tokens"
    return f"{mark.name} ({size}, fingerprint {mark.fingerprint[:12]})"


def _complain(artifact: Artifact, what: str, names: set[str]) -> None:
    if names:
        raise CorruptModel(f"{artifact.kind} heads {what} {', '.join(sorted(names))}")
