"""Where weights come from: one protocol, and the safetensors files of a Hugging Face folder."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.formats.dense import BFLOAT16, FLOAT16, FLOAT32
from gamaneh.models.formats.known import from_floats
from gamaneh.models.formats.stored import Bytes, Format, StoredTensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
ADAPTER = "adapter_config.json"

_DOUBLE = "F64"  # rounded to float32
_FORMATS: Mapping[str, Format] = {"F32": FLOAT32, "F16": FLOAT16, "BF16": BFLOAT16, _DOUBLE: FLOAT32}
_NUMBERS = {FLOAT32.name: torch.float32, FLOAT16.name: torch.float16, BFLOAT16.name: torch.bfloat16}
_SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
_CHUNK = 1 << 16
"""Numbers expanded at once; they and their temporaries stay in the CPU's cache."""


class WeightSource(Protocol):
    """Tensors of one model by their Hugging Face names, as their file keeps them."""

    @property
    def names(self) -> Collection[str]: ...

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape, by the file's header alone."""
        ...

    def format(self, name: str) -> Format:
        """Return the format in which `stored` hands the tensor out, by the file's header alone.

        Raises:
            UnsupportedModel: it is stored in a format that we cannot read.
        """
        ...

    def stored(self, name: str) -> StoredTensor:
        """Return the tensor in its own bytes, which are memory-mapped where nothing had to be reordered.

        Raises:
            UnsupportedModel: it is stored in a format that we cannot read.
        """
        ...

    def close(self) -> None:
        """Let go of the files. No tensor can be read afterwards."""
        ...


@dataclass(frozen=True, slots=True)
class _ShardEntry:
    """A tensor of a safetensors file: its type there, its shape, and its bytes, counted from the start of the file."""

    kind: str
    shape: tuple[int, ...]
    start: int
    stop: int


class SafetensorsWeights:
    """The safetensors file, or the shards, of a model folder.

    Raises:
        CorruptModel: there are no weights, a shard is missing, or a file is damaged.
        UnsupportedModel: the weights are a pickle or an adapter, or a tensor is of a type that we do not have.
    """

    def __init__(self, folder: Path) -> None:
        self._data: dict[str, Bytes] = {}
        self._entries: dict[str, _ShardEntry] = {}
        for path in _files(folder):
            data, entries = _mapped(path)
            twice = sorted(self._entries.keys() & entries.keys())
            if twice:
                raise CorruptModel(f"{path} must hold tensors that no other shard holds, got {twice[0]} again")
            self._entries |= entries
            self._data |= dict.fromkeys(entries, data)

    @property
    def names(self) -> Collection[str]:
        return self._entries.keys()

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def format(self, name: str) -> Format:
        kind = self._entries[name].kind
        if kind not in _FORMATS:
            raise UnsupportedModel(f"tensor {name} must be a float of 16 bits or more, got {kind}")
        return _FORMATS[kind]

    def stored(self, name: str) -> StoredTensor:
        entry, fmt = self._entries[name], self.format(name)
        raw = self._data[name][entry.start : entry.stop]
        if entry.kind == _DOUBLE:
            values = raw.view(np.float64).astype(np.float32)
            return from_floats(values.reshape(math.prod(entry.shape[:-1]), -1))
        return StoredTensor.read(fmt, raw, entry.shape, name)

    def close(self) -> None:
        self._data.clear()
        self._entries.clear()


def read_tensor(source: WeightSource, name: str, dtype: torch.dtype) -> Tensor:
    """Return one tensor as numbers of a type, in its shape."""
    stored = source.stored(name)
    out = torch.empty(stored.shape, dtype=dtype)
    expand_into(out, stored)
    return out.view(source.shape(name))


def expand_into(out: Tensor, stored: StoredTensor) -> None:
    """Write the numbers of a stored tensor into `out`, `[rows, columns]` on any device and in any float type."""
    if stored.format.name in _NUMBERS:
        out.copy_(torch.from_numpy(stored.raw).view(_NUMBERS[stored.format.name]))
        return
    rows, columns = stored.shape
    step = max(1, _CHUNK // columns)
    whole = out if out.device.type == "cpu" else torch.empty(out.shape, dtype=out.dtype)

    def fill(start: int) -> None:
        whole[start : start + step] = torch.from_numpy(stored.rows(start, start + step).expand())

    with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool, np.errstate(all="ignore"):
        list(pool.map(fill, range(0, rows, step)))
    if whole is not out:
        out.copy_(whole)


def _mapped(path: Path) -> tuple[Bytes, dict[str, _ShardEntry]]:
    """The bytes of a file and the table of its tensors; the library checks that the table fits the file."""
    try:
        with safe_open(path, framework="pt"):
            data: Bytes = np.asarray(np.memmap(path, mode="c"))  # copy-on-write, because torch wants writable memory
    except (SafetensorError, OSError, ValueError) as error:
        raise CorruptModel(f"{path} must be a whole safetensors file: {error}") from error
    length = int(data[:8].view("<u8")[0])
    header = json.loads(data[8 : 8 + length].tobytes())
    base = 8 + length
    entries = {
        name: _ShardEntry(entry["dtype"], tuple(entry["shape"]), *(base + at for at in entry["data_offsets"]))
        for name, entry in header.items()
        if name != "__metadata__"
    }
    return data, entries


def _files(folder: Path) -> list[Path]:
    if (folder / ADAPTER).is_file():
        base = read_json(folder / ADAPTER).get("base_model_name_or_path", "another model")
        raise UnsupportedModel(
            f"{folder} holds an adapter ({ADAPTER}) for {base}, which would be left out: "
            "merge it into its model, or move it elsewhere"
        )
    if (folder / INDEX).is_file():
        return _indexed(folder)
    found = [folder / SINGLE] if (folder / SINGLE).is_file() else sorted(folder.glob("*.safetensors"))
    if found and all(map(_SHARD.fullmatch, (path.name for path in found))):
        return _numbered(found)
    if len(found) == 1:
        return found
    if found:
        names = ", ".join(path.name for path in found)
        raise CorruptModel(f"{folder} must have {INDEX} to tell its {len(found)} safetensors files apart: {names}")
    if any(folder.glob("*.bin")):
        raise UnsupportedModel(
            f"weights in {folder} must be safetensors, got a pickle (.bin), which can run code when opened; "
            "save the model again with safe_serialization"
        )
    raise CorruptModel(f"{folder} must hold {SINGLE} or {INDEX}, got neither")


def _numbered(found: list[Path]) -> list[Path]:
    """Shards without an index, which must be all parts of one whole by their names."""
    [(stem, _, count), *others] = [_SHARD.fullmatch(path.name).groups() for path in found]  # type: ignore[union-attr]
    if any((other, number) != (stem, count) for other, _, number in others):
        names = ", ".join(path.name for path in found)
        raise CorruptModel(f"{found[0].parent} must hold shards of one model, or have {INDEX}; got {names}")
    wanted = [f"{stem}-{number:05}-of-{count}.safetensors" for number in range(1, int(count) + 1)]
    missing = sorted(set(wanted) - {path.name for path in found})
    if missing:
        raise CorruptModel(f"{found[0].parent} must hold all of {count} shards, lacks {', '.join(missing)}")
    return found


def _indexed(folder: Path) -> list[Path]:
    index = read_json(folder / INDEX)
    shards = [folder / name for name in sorted(set(_weight_map(index, folder).values()))]
    missing = [shard.name for shard in shards if not shard.is_file()]
    if missing:
        raise CorruptModel(f"{folder / INDEX} names files that are not there: {', '.join(missing)}")
    return shards


def _weight_map(index: Mapping[str, Any], folder: Path) -> Mapping[str, str]:
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(map(_is_own_file, shards.values())):
        raise CorruptModel(f"{folder / INDEX} must map tensor names to files of its own folder, got {shards!r:.80}")
    return dict(shards)


def _is_own_file(name: object) -> bool:
    return isinstance(name, str) and Path(name).name == name


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
