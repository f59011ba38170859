"""Which target a set of heads belongs to: its size, and a fingerprint of its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from gamaneh.models.config import DecoderConfig
from gamaneh.models.decoder import Decoder, Layer
from gamaneh.models.linear import Linear
from gamaneh.models.loading import LoadedModel

_EMBEDDING_ROWS = 64
_COLUMN_STEP = 7919  # a prime, so that layer after layer another column is read
_LOUD = 2.0**64
"""What one column is multiplied by. Any bias beside it is rounded away, and powers of two change no other bit."""

_DIMENSIONS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "num_layers",
    "activation",
    "tied_embedding",
)


@dataclass(frozen=True, slots=True)
class TargetMark:
    """The target that heads were made for.

    Args:
        name: what its user called it; two names of one model make no difference.
        fingerprint: hash of its shape and of a sample of its weights.
    """

    name: str
    fingerprint: str
    hidden_size: int
    vocab_size: int
    num_layers: int


def mark_target(loaded: LoadedModel) -> TargetMark:
    """Name, size and fingerprint of a model; takes about as long as one token of it.

    The fingerprint is a SHA-256 over the shape, all norms, some rows of the embedding and one column of
    every matrix, as bfloat16: the same whether the model was loaded as bfloat16 or as float32.
    """
    config = loaded.config
    return TargetMark(
        loaded.name, _fingerprint(loaded.decoder), config.hidden_size, config.vocab_size, config.num_layers
    )


@torch.inference_mode()
def _fingerprint(decoder: Decoder) -> str:
    digest = hashlib.sha256(repr(_dimensions(decoder.config)).encode())
    for sample in _samples(decoder):
        digest.update(sample.to("cpu", torch.bfloat16).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _dimensions(config: DecoderConfig) -> list[tuple[str, object]]:
    return [(name, getattr(config, name)) for name in _DIMENSIONS]


def _samples(decoder: Decoder) -> Iterator[Tensor]:
    yield decoder.embedding[:: -(-len(decoder.embedding) // _EMBEDDING_ROWS)]
    yield decoder.norm
    if not decoder.config.tied_embedding:
        yield _column(decoder.head, 0, decoder)
    for layer in decoder.layers:
        yield from _layer_samples(layer, decoder)


def _layer_samples(layer: Layer, decoder: Decoder) -> Iterator[Tensor]:
    yield from (layer.norms[name] for name in sorted(layer.norms))
    yield from (_column(linear, layer.index, decoder) for linear in layer.linears)


def _column(linear: Linear, index: int, like: Decoder) -> Tensor:
    """`[out]` one column of a matrix, in whatever format it lies: the product with a vector of a single number."""
    column = index * _COLUMN_STEP % linear.in_features
    read = getattr(linear, "column", None)
    if read is not None:  # a matrix that is stored in a format of its own reads it without a product
        return torch.as_tensor(read(column) * _LOUD)
    probe = torch.zeros(1, linear.in_features, dtype=like.dtype, device=like.device)
    probe[0, column] = _LOUD
    return linear(probe)[0]
