"""Where weights come from: one protocol, and the safetensors files of a Hugging Face folder."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gamaneh.errors import CorruptModel, UnsupportedModel

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"

_FLOATS = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class WeightSource(Protocol):
    """Tensors of one model by their Hugging Face names, read one at a time."""

    @property
    def names(self) -> Collection[str]: ...

    def get(self, name: str, dtype: torch.dtype) -> Tensor:
        """The tensor, converted to `dtype`.

        Raises:
            CorruptModel: it cannot be read.
            UnsupportedModel: it is stored in a format that we cannot convert.
        """
        ...

    def close(self) -> None:
        """Let go of the files. No tensor can be read afterwards."""
        ...


class SafetensorsWeights:
    """The safetensors file, or the shards, of a model folder.

    Raises:
        CorruptModel: there are no weights, a shard is missing, or a file is damaged.
        UnsupportedModel: the weights are a pickle.
    """

    def __init__(self, folder: Path) -> None:
        self._files = [open_tensors(path) for path in _files(folder)]
        self._homes = {name: file for file in self._files for name in list(file.keys())}

    @property
    def names(self) -> Collection[str]:
        return self._homes.keys()

    def get(self, name: str, dtype: torch.dtype) -> Tensor:
        tensor: Tensor = self._homes[name].get_tensor(name)
        if tensor.dtype not in _FLOATS:
            raise UnsupportedModel(f"tensor {name} must be a float of 16 bits or more, got {tensor.dtype}")
        return tensor.to(dtype)

    def close(self) -> None:
        self._homes.clear()
        self._files.clear()


def _files(folder: Path) -> list[Path]:
    if (folder / INDEX).is_file():
        return _shards(folder)
    found = [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise CorruptModel(f"{folder} must have {INDEX} to tell its {len(found)} safetensors files apart, got none")
    if any(folder.glob("*.bin")):
        raise UnsupportedModel(
            f"weights in {folder} must be safetensors, got a pickle (.bin), which can run code when opened; "
            "save the model again with safe_serialization"
        )
    raise CorruptModel(f"{folder} must hold {SINGLE} or {INDEX}, got neither")


def _shards(folder: Path) -> list[Path]:
    index = read_json(folder / INDEX)
    shards = [folder / name for name in sorted(set(_weight_map(index, folder).values()))]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise CorruptModel(f"{folder / INDEX} names files that are not there: {', '.join(missing)}")
    return shards


def _weight_map(index: Mapping[str, Any], folder: Path) -> Mapping[str, str]:
    shards = index.get("weight_map")
    if not shards or any(Path(name).name != name for name in shards.values()):
        raise CorruptModel(f"{folder / INDEX} must map tensor names to files of its own folder, got {shards!r:.80}")
    return dict(shards)


def open_tensors(path: Path) -> Any:
    """A safetensors file, whose tensors are read one at a time.

    Raises:
        CorruptModel: it is not there, or damaged.
    """
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as error:
        raise CorruptModel(f"{path} must be a whole safetensors file: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file.

    Raises:
        CorruptModel: it is not there, not JSON or not an object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CorruptModel(f"{path} must be a JSON object: {error}") from error
    if not isinstance(value, dict):
        raise CorruptModel(f"{path} must be a JSON object, got {type(value).__name__}")
    return value
