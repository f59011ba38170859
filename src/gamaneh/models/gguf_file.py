"""The GGUF container: metadata, a table of tensors, and their bytes as they are.

The layout is that of ggml's `docs/gguf.md`, versions 2 and 3. The header is parsed here because the
reader of the `gguf` package takes over ten seconds for a vocabulary of 150,000 tokens; its table of
block sizes is used as it is.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from gamaneh.errors import CorruptModel, UnsupportedModel
from gamaneh.models.formats.known import gguf_format
from gamaneh.models.formats.stored import StoredTensor
from gamaneh.models.keys import Keys

Metadata = Mapping[str, Any]
"""Keys of the header."""

_MAGIC, _VERSIONS, _ALIGNMENT = b"GGUF", (2, 3), 32
_SPLIT_NAME = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor: its shape `[..., columns]`, its ggml type, and where its bytes lie in the file."""

    shape: tuple[int, ...]
    kind: GGMLQuantizationType
    start: int
    nbytes: int


class GgufFile:
    """A memory-mapped GGUF file; a model that was split in several files is read as one.

    Args:
        path: the file, or any part of a split model.

    Attributes:
        metadata: every key of the header, of a split model that of the first part.
        tensors: the tensors by their name in the file.

    Raises:
        CorruptModel: a file is truncated, or is no GGUF file, or a part is missing.
        UnsupportedModel: a version or a tensor type that we cannot read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        first = _read_part(path)
        parts = [first]
        count = Keys(first.metadata, str(path)).whole("split.count", 1)
        if count > 1:
            parts = [_read_part(part) for part in _split_paths(path, count)]
        self.metadata = parts[0].metadata
        self.tensors: dict[str, TensorInfo] = {}
        self._data: dict[str, npt.NDArray[np.uint8]] = {}
        for part in parts:
            twice = sorted(self.tensors.keys() & part.tensors.keys())
            if twice:
                raise CorruptModel(f"{part.path} must hold tensors that no other part holds, got {twice[0]} again")
            self.tensors |= part.tensors
            self._data |= dict.fromkeys(part.tensors, part.data)
        total = self.metadata.get("split.tensors.count", len(self.tensors))
        if total != len(self.tensors):
            raise CorruptModel(f"{path}: its parts must hold {total} tensors together, got {len(self.tensors)}")

    def stored(self, name: str) -> StoredTensor:
        """Return the tensor in its own bytes, without reading them."""
        info = self.tensors[name]
        raw = self._data[name][info.start : info.start + info.nbytes]
        return StoredTensor.read(gguf_format(info.kind.name, name), raw, info.shape, name)

    def close(self) -> None:
        """Let go of the mapping."""
        self._data.clear()


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """One file of a model."""

    path: Path
    data: npt.NDArray[np.uint8]
    metadata: dict[str, Any]
    tensors: dict[str, TensorInfo]


def _read_part(path: Path) -> _Part:
    data = _map(path)
    try:
        metadata, tensors = _parse(_Header(data))
    except (struct.error, IndexError, UnicodeDecodeError, OverflowError, MemoryError, KeyError) as error:
        raise CorruptModel(f"{path} must be a whole GGUF file, its header breaks off: {error}") from error
    except (CorruptModel, UnsupportedModel) as error:
        raise type(error)(f"{path}: {error}") from error
    for name, info in tensors.items():
        if info.start + info.nbytes > len(data):
            raise CorruptModel(
                f"{path} must hold {info.start + info.nbytes} bytes for tensor {name}, got {len(data)}: it is truncated"
            )
    return _Part(path, data, metadata, tensors)


def split_name(path: Path) -> tuple[str, int, int] | None:
    """Return stem, number and count of a part of a split model, by its name; None for other files."""
    match = _SPLIT_NAME.fullmatch(path.name)
    return None if match is None else (match[1], int(match[2]), int(match[3]))


def _split_paths(path: Path, count: int) -> list[Path]:
    """All parts of the model that a part belongs to, in order."""
    named = split_name(path)
    if named is None or named[2] != count:
        raise CorruptModel(f"{path} is a part of {count} and must be named NAME-00001-of-{count:05}.gguf")
    paths = [path.with_name(f"{named[0]}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise CorruptModel(f"{path.parent} must hold all {count} parts of the model, lacks {', '.join(missing)}")
    return paths


def _map(path: Path) -> npt.NDArray[np.uint8]:
    try:
        # Copy-on-write, because torch wants writable memory; nothing is ever written.
        mapped = np.memmap(path, mode="c")
    except (OSError, ValueError) as error:
        raise CorruptModel(f"{path} cannot be read: {error}") from error
    return np.asarray(mapped)


class _Header:
    """A cursor over the bytes of the header."""

    def __init__(self, data: npt.NDArray[np.uint8]) -> None:
        self.data = data.data
        self.at = 0

    def take(self, layout: str) -> Any:
        """One little-endian number."""
        value = struct.unpack_from(f"<{layout}", self.data, self.at)[0]
        self.at += struct.calcsize(layout)
        return value

    def raw(self, length: int) -> bytes:
        if self.at + length > len(self.data):
            raise IndexError(f"byte {self.at + length} is wanted, the file has {len(self.data)}")
        self.at += length
        return bytes(self.data[self.at - length : self.at])

    def text(self) -> str:
        return self.raw(self.take("Q")).decode("utf-8")

    def value(self, kind: int) -> Any:
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self.array()
        return self.take(_SCALARS[kind])

    def array(self) -> list[Any]:
        kind, length = self.take("I"), self.take("Q")
        layout = _SCALARS.get(kind)
        if layout is None:
            return [self.value(kind) for _ in range(length)]
        packed = self.raw(length * struct.calcsize(layout))
        return list(struct.unpack(f"<{length}{layout}", packed))


def _parse(header: _Header) -> tuple[dict[str, Any], dict[str, TensorInfo]]:
    if header.raw(4) != _MAGIC:
        raise CorruptModel("it is no GGUF file: the first bytes must be 'GGUF'")
    version = header.take("I")
    if version not in _VERSIONS:
        raise UnsupportedModel(f"GGUF version must be 2 or 3 (little-endian), got {version}")
    num_tensors, num_keys = header.take("Q"), header.take("Q")
    metadata = {header.text(): header.value(header.take("I")) for _ in range(num_keys)}
    return metadata, _tensor_table(header, num_tensors, Keys(metadata, "header").whole("general.alignment", _ALIGNMENT))


def _tensor_table(header: _Header, num_tensors: int, alignment: int) -> dict[str, TensorInfo]:
    entries = [_tensor_entry(header) for _ in range(num_tensors)]
    base = -(-header.at // alignment) * alignment
    return {name: build(base) for name, build in entries}


def _tensor_entry(header: _Header) -> tuple[str, Callable[[int], TensorInfo]]:
    """Name of the next tensor, and its description once the start of the data is known."""
    name = header.text()
    shape = tuple(header.take("Q") for _ in range(header.take("I")))[::-1]
    kind, offset = _kind(header.take("I"), name), header.take("Q")
    block, block_bytes = GGML_QUANT_SIZES[kind]
    if not shape or shape[-1] % block:
        raise CorruptModel(f"rows of tensor {name} must be a multiple of {block} numbers ({kind.name}), got {shape}")
    nbytes = math.prod(shape) // block * block_bytes
    return name, lambda base: TensorInfo(shape, kind, base + offset, nbytes)


def _kind(number: int, name: str) -> GGMLQuantizationType:
    known: Mapping[int, GGMLQuantizationType] = {entry.value: entry for entry in GGMLQuantizationType}
    gguf_format(known[number].name if number in known else str(number), name)
    return known[number]
