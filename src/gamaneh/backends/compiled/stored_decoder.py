"""What trained heads read of their target, from weights in their stored formats."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from torch import Tensor

from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder, Matrix, Weights
from gamaneh.errors import UnsupportedModel
from gamaneh.models.attention import LayerCache
from gamaneh.models.batch import FlatBatch
from gamaneh.models.config import DecoderConfig
from gamaneh.models.decoder import Decoder, Layer
from gamaneh.models.formats.stored import StoredTensor


class StoredMatrix:
    """A matrix that expands the rows that are asked for, float32."""

    def __init__(self, tensors: Matrix) -> None:
        self.tensors = tensors
        self.shape = torch.Size((sum(tensor.shape[0] for tensor in tensors), tensors[0].shape[1]))
        self.dtype = torch.float32

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Tensor | slice | int) -> Tensor:
        """Rows by ids of any shape, `[..., columns]`, or by a slice."""
        (tensor,) = self.tensors
        if isinstance(rows, slice):
            return torch.from_numpy(_part(tensor, tensor.raw[rows]).expand())
        ids = torch.as_tensor(rows)
        taken = tensor.take(ids.reshape(-1).numpy().astype(np.intp)).expand()
        return torch.from_numpy(taken).view(*ids.shape, tensor.shape[1])

    def dense(self) -> Tensor:
        """The whole matrix, `[rows, columns]`."""
        return torch.cat([torch.from_numpy(tensor.expand()) for tensor in self.tensors])

    def contiguous(self) -> Tensor:
        """The whole matrix: what a tensor returns for the same call."""
        return self.dense()

    def column(self, index: int) -> Tensor:
        """One column, `[rows]`."""
        return torch.cat([torch.from_numpy(tensor.column(index).copy()) for tensor in self.tensors])


class StoredLinear(StoredMatrix):
    """A matrix of a layer, or the output matrix, as heads know one. Its bytes are counted elsewhere.

    Args:
        decoder: computes products with the output matrix; None for other matrices, which nobody multiplies.
    """

    bias: Tensor | None = None

    def __init__(self, tensors: Matrix, decoder: CompiledDecoder | None = None) -> None:
        super().__init__(tensors)
        self.out_features, self.in_features = self.shape
        self._decoder = decoder

    def __call__(self, x: Tensor) -> Tensor:
        if self._decoder is None:
            return x.float() @ self.dense().T
        return self._decoder.scores(x.reshape(-1, self.in_features), norm=False).view(*x.shape[:-1], -1)

    def nbytes(self) -> int:
        return 0


class StoredLayer:
    """Norms and matrices of one layer, by the names of the torch decoder's."""

    def __init__(self, index: int, weights: Weights) -> None:
        self.index = index
        prefix = f"layers.{index}."
        self.norms = {
            name: torch.from_numpy(value)
            for name, value in ((name.removeprefix(prefix), value) for name, value in weights.items())
            if name.endswith("norm") and isinstance(value, np.ndarray) and f"{prefix}{name}" in weights
        }
        self.linears = [StoredLinear(_matrix(weights, f"{prefix}{name}.weight")) for name in _LINEARS]


_LINEARS = ("qkv", "out", "gate_up", "down")


class StoredDecoder(Decoder):
    """A decoder as trained heads see it: embedding, norms, output matrix and samples of the rest.

    It runs in compiled steps only: `forward` of the torch decoder is not there.

    Args:
        weights: by the names that `DecoderConfig` documents.
    """

    def __init__(self, config: DecoderConfig, weights: Weights, compiled: CompiledDecoder) -> None:
        self.config, self.compiled = config, compiled
        norm = weights["norm"]
        assert isinstance(norm, np.ndarray)
        self.norm = torch.from_numpy(norm)
        head = _matrix(weights, "embedding" if config.tied_embedding else "head")
        # These stand in for tensors and layers: rows by ids, whole matrices and columns are all that heads ask for.
        self.embedding = cast(Tensor, StoredMatrix(_matrix(weights, "embedding")))
        self.head = StoredLinear(head, compiled)
        self.layers = [cast(Layer, StoredLayer(index, weights)) for index in range(config.num_layers)]

    @property
    def dtype(self) -> torch.dtype:
        return torch.float32

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")

    def nbytes(self) -> int:
        return self.compiled.nbytes()

    def forward(
        self, batch: FlatBatch, cache: LayerCache, *, taps: Sequence[int] = (), num_layers: int | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        raise UnsupportedModel("a model of the compiled backend runs in its own steps; load it with backend torch")

    def normed(self, hidden: Tensor) -> Tensor:
        """The final norm."""
        return torch.nn.functional.rms_norm(hidden.float(), self.norm.shape, self.norm, self.config.norm_eps)

    def logits(self, hidden: Tensor, splits: Sequence[int] = ()) -> Tensor:
        """`[num_rows, hidden]` before the final norm -> `[num_rows, vocab]`."""
        return self.compiled.scores(hidden)


def _matrix(weights: Weights, name: str) -> Matrix:
    matrix = weights[name]
    assert isinstance(matrix, tuple)
    return matrix


def _part(tensor: StoredTensor, raw: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> StoredTensor:
    return StoredTensor(tensor.format, (raw.shape[0], tensor.shape[1]), raw)
