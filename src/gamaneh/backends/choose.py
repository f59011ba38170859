"""Which backend a model runs in, and how it is loaded for it."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from gamaneh.backends.paged import PagedModel
from gamaneh.errors import InvalidOption
from gamaneh.kv.cache import KVCache
from gamaneh.kv.manager import SlotStore
from gamaneh.models.loading import TARGET, LoadedModel, OpenModel, Role, blaming, choose_device, load, open_model
from gamaneh.models.runner import DecoderRunner

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


def beside(target: LoadedModel) -> Precision:
    """Return how a draft model is loaded for a target that is loaded already."""
    if is_compiled(target):
        return Precision()
    return Precision("torch", dtype=str(target.dtype).removeprefix("torch."), device=str(target.device))


def load_model(
    model: str | Path | OpenModel,
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
            LOGGER.warning("the torch backend runs the %s, which is slower on a CPU: %s", role.title, reason)
        return load(model, dtype=precision.dtype, device=precision.device, progress=progress, role=role)
    return _load_compiled(model, precision, progress, role)


def runner_for(
    model: LoadedModel, num_blocks: int, block_size: int, *, invariant: bool
) -> tuple[PagedModel, SlotStore]:
    """Return what runs a loaded model over a cache of so many blocks, and the cache.

    Args:
        invariant: shape-invariant execution; the compiled backend always is.

    Raises:
        OutOfMemory: the machine cannot hold the cache.
        InvalidOption: the backend has no blocks of that size.
    """
    config, decoder = model.config, model.decoder
    if is_compiled(model):
        from gamaneh.backends.compiled.backend import CompiledRunner, pages_for

        pages = pages_for(config, num_blocks, block_size)
        return CompiledRunner(decoder.compiled, pages, block_size), pages  # type: ignore[attr-defined]
    cache = KVCache(
        config.num_layers, num_blocks, block_size, config.num_kv_heads, config.head_dim, decoder.dtype, decoder.device
    )
    return DecoderRunner(decoder, cache, invariant=invariant), cache


def is_compiled(model: LoadedModel) -> bool:
    """Whether a model was loaded for the compiled backend."""
    return hasattr(model.decoder, "compiled")


def cache_dtype(model: LoadedModel) -> torch.dtype:
    """Return the type of the keys and values of a loaded model's cache."""
    return torch.float16 if is_compiled(model) else model.decoder.dtype


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
    model: str | Path | OpenModel, precision: Precision, progress: Callable[[int, int], None] | None, role: Role
) -> LoadedModel:
    from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder
    from gamaneh.backends.compiled.stored_decoder import StoredDecoder
    from gamaneh.backends.compiled.stored_weights import stored_weights

    opened = model if isinstance(model, OpenModel) else open_model(model, role=role)
    with blaming(role, opened.name):
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
