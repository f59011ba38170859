"""The weights of an opened model as the compiled decoder wants them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch

from gamaneh.backends.compiled.compiled_decoder import Matrix, Weights
from gamaneh.backends.compiled.rounding import rounded
from gamaneh.backends.compiled.workers import usable_cores
from gamaneh.models.canonical import ModelTensors
from gamaneh.models.formats.known import QUANTISED
from gamaneh.models.formats.stored import Floats

AS_STORED = "stored"
"""Asks for the formats of the file."""


def rounded_kind(name: str, weights: str) -> str:
    """What a matrix is rounded to: embedding and output matrix to int8 at least, where 4 bits cost most."""
    return "int8" if weights == "int4" and name in ("embedding", "head") else weights


def stored_weights(
    tensors: ModelTensors, weights: str = AS_STORED, progress: Callable[[int, int], None] | None = None
) -> Weights:
    """Return matrices as their file keeps them, norms and biases as float32.

    Args:
        weights: `int8` or `int4` rounds float matrices, see `rounded_kind`; anything else leaves them.
        progress: called with the number of tensors done and their total.

    Raises:
        CorruptModel: a norm or a bias is not finite.
    """
    found: dict[str, Matrix | Floats] = {}
    with ThreadPoolExecutor(usable_cores()) as pool:
        for done, (name, shape) in enumerate(tensors.shapes.items(), start=1):
            if len(shape) == 1:
                found[name] = tensors.dense(name, torch.float32).numpy()
            else:
                stored, kind = tensors.stored(name), rounded_kind(name, weights)
                found[name] = tuple(rounded(each, kind, pool) for each in stored) if kind in QUANTISED else stored
            if progress is not None:
                progress(done, len(tensors.shapes))
    return found
