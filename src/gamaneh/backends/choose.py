"""Which backend a model runs in, and how it is loaded for it."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path

import torch

from gamaneh.backends.paged import PagedBackend, PagedModel
from gamaneh.core import Backend
from gamaneh.errors import InvalidOption, ModelError
from gamaneh.kv.cache import KVCache
from gamaneh.kv.manager import KVManager, SlotStore
from gamaneh.kv.pool import BlockPool
from gamaneh.models import loading
from gamaneh.models.formats.known import REQUANTISED
from gamaneh.models.loading import TARGET, LoadedModel, OpenModel, Progress, Role, blaming, choose_device
from gamaneh.models.runner import DecoderRunner
from gamaneh.options import Precision

LOGGER = logging.getLogger(__name__)

BACKENDS = ("auto", "compiled", "torch", "hf")

ROUNDED = ("int8", "int4")
"""Weights that only the compiled backend has."""


HINT_BYTES = 500_000_000
"""Float weights from so many bytes on are worth a hint that rounded ones are faster."""

_FLOATS = {"float32", "bfloat16", "float16"}


def load(
    model: str | Path | OpenModel,
    *,
    precision: Precision | None = None,
    backend: str = "auto",
    device: str = "auto",
    progress: Progress | None = None,
    role: Role = TARGET,
    instructions: str = "auto",
    threads: int | None = None,
) -> LoadedModel:
    """Read a model for the backend that will run it.

    Args:
        precision: the compiled backend keeps weights as they are stored, or rounds float weights to `int8` or `int4`
            in groups of 32; other types ask for torch.
        backend: `compiled` for CPUs, `torch` for any device, `hf` for what only `transformers` knows, or `auto`:
            compiled where it can run.
        device: as torch names it, or `auto`.
        progress: called with the number of tensors ready and their total.
        instructions: what the compiled kernels are made of, or `auto`: the best that the processor has.
        threads: of the compiled backend; None takes the physical cores that the process may use.

    Raises:
        ModelError: the model is not there, is damaged, or needs something that we do not have.
        InvalidOption: an option is wrong, or the compiled backend is asked for where it cannot run.
        OutOfMemory: the weights do not fit.
    """
    if backend not in BACKENDS:
        raise InvalidOption("backend", f"must be one of {', '.join(BACKENDS)}", backend)
    asked = precision or Precision()
    if backend == "hf":
        from gamaneh.backends.hf import load_library_model

        assert not isinstance(model, OpenModel), "a folder for the library is opened by the library"
        with blaming(role, model):
            return load_library_model(loading.resolve(model), str(model), asked, device)
    reason = why_not_compiled(asked, device)
    if backend == "compiled" and reason:
        raise InvalidOption("backend", f"must be torch here: {reason}", backend)
    if backend == "torch" or reason:
        wanted = asked.weights in ROUNDED or (asked.weights, asked.compute, asked.kv) == ("auto",) * 3
        if reason and wanted and choose_device(device).type == "cpu":
            LOGGER.warning("torch runs the %s, which is slower on a CPU: %s", role.title, reason)
        return loading.load(model, precision=precision, device=device, progress=progress, role=role)
    return _load_compiled(model, asked, progress, role, instructions, threads)


def check_block_size(block_size: int, precision: Precision | None, backend: str, device: str) -> None:
    """Refuse a size that the backend does not have, before anything is loaded.

    Raises:
        InvalidOption: the compiled backend would run the model, and `block_size` is no multiple of 16.
    """
    if backend in ("auto", "compiled") and not why_not_compiled(precision or Precision(), device):
        from gamaneh.backends.compiled.backend import check_blocks

        check_blocks(block_size)


def compile_ahead(model: Path) -> bool:
    """Compile the steps of a model where the compiled backend can run it; returns whether it could.

    What is wrong with a model is left to its first load.
    """
    if why_not_compiled(Precision()):
        return False
    from gamaneh.backends.compiled import compiled_decoder

    try:
        opened = loading.open_model(model)
    except ModelError:
        return False
    compiled_decoder.compile_ahead(opened.tensors)
    opened.close()
    return True


def open_for(model: str | Path, backend: str, role: Role = TARGET) -> OpenModel | Path:
    """Open a model's files, before anything big is read; the library's own backend opens them itself.

    Raises:
        ModelError: the model is not there, is damaged, contradicts itself, or needs something that we do not have.
    """
    if backend != "hf":
        return loading.open_model(model, role=role)
    with blaming(role, model):
        return loading.resolve(model)


def backend_for(
    model: LoadedModel, num_blocks: int, block_size: int, *, invariant: bool, prefix_cache: bool
) -> Backend:
    """Return where a loaded model runs, with a cache of so many blocks.

    Raises:
        OutOfMemory: the machine cannot hold the cache.
        InvalidOption: the backend has no blocks of that size.
    """
    if is_library_model(model):
        from gamaneh.backends.hf import HFBackend

        return HFBackend(model.decoder.model, num_blocks * block_size)  # type: ignore[attr-defined]
    runner, cache = runner_for(model, num_blocks, block_size, invariant=invariant)
    return PagedBackend(runner, KVManager(BlockPool(num_blocks, block_size, prefix_cache=prefix_cache), cache))


def is_library_model(model: LoadedModel) -> bool:
    """Whether a model is run by `transformers` itself, and shows no layers."""
    return hasattr(model.decoder, "model")


def beside(target: LoadedModel) -> Precision:
    """Return how a draft model is kept beside a target that is loaded already."""
    if is_compiled(target):
        return Precision()
    return Precision(weights=str(target.dtype).removeprefix("torch."))


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


def why_not_compiled(precision: Precision, device: str = "auto") -> str:
    """Return what keeps the compiled backend from running, in words; empty where nothing does."""
    chosen = choose_device(device)
    if chosen.type != "cpu":
        return f"the compiled backend is for CPUs, the device is {chosen}"
    if precision.weights not in ("auto", "stored", *ROUNDED):
        return f"the compiled backend keeps weights as they are stored or rounds them, asked for is {precision.weights}"
    for name in ("compute", "kv"):
        if getattr(precision, name) != "auto":
            return f"the compiled backend has arithmetic of its own, asked for is {name} {getattr(precision, name)}"
    if importlib.util.find_spec("numba") is None:
        return "numba is not installed"
    from gamaneh.backends.compiled import processor

    if not processor.available():
        return f"the processor has none of {', '.join(processor.INSTRUCTION_SETS)}"
    return ""


def _in_two_parts(progress: Progress | None, first: int, second: int) -> tuple[Progress | None, Progress | None]:
    """Return what two works of so many tensors report to, so that their sum is shown."""
    if progress is None:
        return None, None
    return (
        lambda done, _: progress(done, first + second),
        lambda done, _: progress(first + done, first + second),
    )


def _load_compiled(
    model: str | Path | OpenModel,
    precision: Precision,
    progress: Progress | None,
    role: Role,
    instructions: str,
    threads: int | None,
) -> LoadedModel:
    from gamaneh.backends.compiled.compiled_decoder import CompiledDecoder
    from gamaneh.backends.compiled.stored_decoder import StoredDecoder
    from gamaneh.backends.compiled.stored_weights import stored_weights

    opened = model if isinstance(model, OpenModel) else loading.open_model(model, role=role)
    if precision.weights == "auto" and opened.tensors.nbytes >= HINT_BYTES and set(opened.tensors.formats) <= _FLOATS:
        read = f"each token reads {opened.tensors.nbytes / 1e9:.1f} GB of {', '.join(opened.tensors.formats)}"
        option = "--weights" if role is TARGET else "--draft-weights"
        LOGGER.warning("%s %s: %s; %s int8 reads less and is faster", role.title, opened.name, read, option)
    foreign = [name for name in opened.tensors.formats if name in REQUANTISED]
    if foreign:
        rule = "is rounded to int8 in groups of 32, since there are no compiled products for it"
        LOGGER.warning("%s %s: what is stored as %s %s", role.title, opened.name, ", ".join(foreign), rule)
    with blaming(role, opened.name):
        first = len(opened.tensors.shapes) if precision.weights in ROUNDED else 0
        reading, laying = _in_two_parts(progress, first, 4 * opened.config.num_layers + 1)
        weights = stored_weights(opened.tensors, precision.weights, reading if first else None)
        compiled = CompiledDecoder(opened.config, weights, instructions=instructions, threads=threads, progress=laying)
        decoder = StoredDecoder(opened.config, weights, compiled)
    opened.close()
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
