"""Which backend a model runs in, and how it is loaded for it."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from gamaneh.errors import InvalidOption
from gamaneh.models.loading import TARGET, LoadedModel, Role, blaming, choose_device, load, open_model

LOGGER = logging.getLogger(__name__)

BACKENDS = ("auto", "compiled", "torch")
WEIGHTS = ("stored", "int8", "int4")


@dataclass(frozen=True, slots=True)
class Precision:
    """How a model is held and computed.

    Args:
        backend: `compiled` for CPUs, `torch` for any device, or `auto`: compiled where it can run and no dtype
            is asked for.
        weights: `stored` keeps the formats of the files; `int8` and `int4` round float weights to groups of 32.
            Compiled backend only.
        dtype: of weights and arithmetic in the torch backend.
        device: as torch names it, or `auto`.
        instructions: what the compiled kernels are made of, or `auto`: the best that the processor has.
        threads: of the compiled backend; None takes the physical cores that the process may use.
    """

    backend: str = "auto"
    weights: str = "stored"
    dtype: str = "auto"
    device: str = "auto"
    instructions: str = "auto"
    threads: int | None = None


def load_model(
    model: str | Path,
    precision: Precision,
    *,
    progress: Callable[[int, int], None] | None = None,
    role: Role = TARGET,
) -> LoadedModel:
    """Read a model for its backend.

    Args:
        progress: called with the number of tensors ready and their total.

    Raises:
        ModelError: the model is not there, is damaged, or needs something that we do not have.
        InvalidOption: an option is wrong, or the compiled backend is asked for where it cannot run.
        OutOfMemory: the weights do not fit.
    """
    _check(precision)
    reason = why_not_compiled(precision)
    if precision.backend == "compiled" and reason:
        raise InvalidOption("backend", f"must be torch here: {reason}", precision.backend)
    if precision.backend == "torch" or reason:
        if precision.weights != "stored":
            raise InvalidOption(
                "weights",
                f"must be stored unless the backend is compiled ({reason or 'it is torch'})",
                precision.weights,
            )
        if reason and precision.dtype == "auto" and choose_device(precision.device).type == "cpu":
            LOGGER.warning("the torch backend runs %s, which is slower on a CPU: %s", model, reason)
        return load(model, dtype=precision.dtype, device=precision.device, progress=progress, role=role)
    return _load_compiled(model, precision, progress, role)


def why_not_compiled(precision: Precision) -> str:
    """Return what keeps the compiled backend from running, in words; empty where nothing does."""
    device = choose_device(precision.device)
    if device.type != "cpu":
        return f"the compiled backend is for CPUs, the device is {device}"
    if precision.dtype != "auto":
        return f"the compiled backend has no dtype, asked for is {precision.dtype}"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed"
    from gamaneh.backends.compiled import processor

    if not processor.available():
        return f"the processor has none of {', '.join(processor.INSTRUCTION_SETS)}"
    return ""


def _check(precision: Precision) -> None:
    if precision.backend not in BACKENDS:
        raise InvalidOption("backend", f"must be one of {', '.join(BACKENDS)}", precision.backend)
    if precision.weights not in WEIGHTS:
        raise InvalidOption("weights", f"must be one of {', '.join(WEIGHTS)}", precision.weights)


def _load_compiled(
    model: str | Path, precision: Precision, progress: Callable[[int, int], None] | None, role: Role
) -> LoadedModel:
    from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder
    from gamaneh.backends.compiled.stored_decoder import StoredDecoder
    from gamaneh.backends.compiled.stored_weights import stored_weights

    opened = open_model(model, role=role)
    with blaming(role, model):
        weights = stored_weights(opened.tensors, precision.weights)
        compiled = CompiledDecoder(
            opened.config,
            weights,
            instructions=precision.instructions,
            threads=precision.threads,
            progress=progress,
        )
        decoder = StoredDecoder(opened.config, weights, compiled)
    return LoadedModel(
        name=opened.name,
        path=opened.path,
        config=opened.config,
        decoder=decoder,
        tokenizer=opened.tokenizer,
        dtype=torch.float32,
        device=torch.device("cpu"),
        weight_bytes=decoder.nbytes(),
    )
