"""What equivalence tests run over: each backend in turn. Tiny models come from here; results are kept per backend."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import torch
from backends.compiled.compiled_models import compiled_model

from gamaneh import testing
from gamaneh.backends.compiled import processor
from gamaneh.models.config import DecoderConfig
from gamaneh.models.loading import LoadedModel

TORCH, COMPILED = "torch", "compiled"
BACKENDS = (TORCH, COMPILED) if processor.available() else (TORCH,)

_FORMATS = {torch.float32: "int8", torch.bfloat16: "int4"}
"""What the compiled backend keeps weights in where torch keeps them in a type."""

_current = [TORCH]


@contextmanager
def running(backend: str) -> Any:
    """Let tiny models be loaded for a backend."""
    _current.append(backend)
    try:
        yield
    finally:
        _current.pop()


def tiny_model(
    family: str = "llama", *, seed: int = 0, dtype: torch.dtype = torch.float32, config: DecoderConfig | None = None
) -> LoadedModel:
    """`gamaneh.testing.tiny_model`, for the backend that is under test."""
    if _current[-1] == COMPILED:
        return compiled_model(family, _FORMATS[dtype], seed=seed, config=config)
    return testing.tiny_model(family, seed=seed, dtype=dtype, config=config)


def kept(function: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function whose results are kept, for each backend apart."""
    results = functools.cache(lambda backend, *args, **options: function(*args, **options))
    return functools.wraps(function)(lambda *args, **options: results(_current[-1], *args, **options))
