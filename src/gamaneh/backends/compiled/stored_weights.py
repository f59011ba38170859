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


def stored_weights(
    tensors: ModelTensors, weights: str = AS_STORED, progress: Callable[[int, int], None] | None = None
) -> Weights:
    """Return matrices as their file keeps them, norms and biases as float32.

    Args:
        weights: `int8` or `int4` rounds float matrices; anything else leaves them.
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
                found[name] = tuple(
                    rounded(tensor, weights, pool) if weights in QUANTISED else tensor
                    for tensor in tensors.stored(name)
                )
            if progress is not None:
                progress(done, len(tensors.shapes))
    return found
