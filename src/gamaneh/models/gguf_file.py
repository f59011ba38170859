"""The GGUF container: metadata, a table of tensors, and their data, dequantised on demand.

The layout is that of ggml's `docs/gguf.md`, versions 2 and 3. The header is parsed here because the
reader of the `gguf` package takes over ten seconds for a vocabulary of 150,000 tokens; its tables of
block sizes and its dequantisation are used as they are.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from gamaneh.errors import CorruptModel, UnsupportedModel

Metadata = Mapping[str, Any]
"""Keys of the header."""

TENSOR_TYPES = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")

_MAGIC, _VERSIONS, _ALIGNMENT = b"GGUF", (2, 3), 32
_CHUNK = 1 << 16  # numbers dequantised at once; they and their temporaries stay in the CPU's cache
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
    """A memory-mapped GGUF file.

    Args:
        metadata: every key of the header.
        tensors: the tensors by their name in the file.

    Raises:
        CorruptModel: the file is truncated, or is no GGUF file.
        UnsupportedModel: a version, a tensor type or a split that we cannot read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._data = _map(path)
        header = _Header(self._data)
        try:
            self.metadata, self.tensors = _parse(header)
        except (struct.error, IndexError, UnicodeDecodeError, OverflowError, MemoryError, KeyError) as error:
            raise CorruptModel(f"{path} must be a whole GGUF file, its header breaks off: {error}") from error
        except (CorruptModel, UnsupportedModel) as error:
            raise type(error)(f"{path}: {error}") from error
        self._check_extent()

    def read(self, name: str, dtype: torch.dtype) -> Tensor:
        """The tensor, dequantised to `dtype`."""
        info = self.tensors[name]
        raw = self._data[info.start : info.start + info.nbytes].reshape(math.prod(info.shape[:-1]), -1)
        out = torch.empty(info.shape, dtype=dtype)
        rows = out.view(raw.shape[0], -1)
        step = max(1, _CHUNK // info.shape[-1])

        def fill(start: int) -> None:
            values = dequantize(raw[start : start + step], info.kind)
            rows[start : start + step] = torch.from_numpy(values)

        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool, np.errstate(all="ignore"):
            list(pool.map(fill, range(0, raw.shape[0], step)))
        return out

    def close(self) -> None:
        """Let go of the mapping."""
        self._data = np.empty(0, dtype=np.uint8)

    def _check_extent(self) -> None:
        for name, info in self.tensors.items():
            if info.start + info.nbytes > len(self._data):
                raise CorruptModel(
                    f"{self.path} must hold {info.start + info.nbytes} bytes for tensor {name}, "
                    f"got {len(self._data)}: it is truncated"
                )


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
    if metadata.get("split.count", 1) > 1:
        raise UnsupportedModel(f"a GGUF model must be one file, got a part of {metadata['split.count']}; merge them")
    return metadata, _tensor_table(header, num_tensors, metadata.get("general.alignment", _ALIGNMENT))


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
    kind = known.get(number)
    if kind is None or kind.name not in TENSOR_TYPES:
        raise UnsupportedModel(
            f"type of tensor {name} must be one of {', '.join(TENSOR_TYPES)}; got {kind.name if kind else number}"
        )
    return kind
