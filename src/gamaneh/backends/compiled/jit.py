"""Numba, with its code kept on disk where a folder can be written, and in memory only where none can."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

FLAGS = {"reassoc", "contract", "nsz", "arcp", "afn"}
"""Freedoms of float arithmetic: all but those that take NaN and infinity to be impossible."""


@cache
def code_folder() -> Path | None:
    """Return the folder of compiled code, made if need be: that of `NUMBA_CACHE_DIR`, else one of the project's cache.

    None where nothing can be written.
    """
    base = os.environ.get("GAMANEH_CACHE") or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "gamaneh"
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or Path(base) / "compiled").expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as probe:
            probe.write(b"x" * 4096)
    except OSError:
        return None
    return folder


if "NUMBA_CACHE_DIR" not in os.environ and code_folder() is not None:
    os.environ["NUMBA_CACHE_DIR"] = str(code_folder())

import numba  # noqa: E402
from llvmlite.binding import get_host_cpu_name  # noqa: E402

LOGGER = logging.getLogger(__name__)

# Numba read its settings before, where something else imported it.
_settings: Any = numba.config
if code_folder() is not None and not _settings.CACHE_DIR:
    _settings.CACHE_DIR = str(code_folder())


def announce(*sources: object) -> None:
    """Say once per processor and version of the code that compiling takes a while."""
    folder = code_folder()
    digest = hashlib.sha256(f"{numba.__version__} {get_host_cpu_name()} {sources}".encode()).hexdigest()
    mark = None if folder is None else folder / f"compiled-{digest[:16]}"
    if mark is not None and mark.exists():
        return
    LOGGER.warning("compiling for this processor, once: about 20 seconds")
    if mark is not None:
        with contextlib.suppress(OSError):
            mark.touch()


class Compiled:
    """A function compiled at its first call with its one signature, or by `build`."""

    def __init__(self, function: Callable[..., Any], signature: Any, **options: Any) -> None:
        self.function, self.signature, self.options = function, signature, options
        self.dispatcher: Any = None

    def build(self) -> Any:
        """Return the dispatcher: read from disk, or compiled."""
        if self.dispatcher is None:
            try:
                self.dispatcher = self._compile(keep=code_folder() is not None)
            except OSError:  # the disk is full, or the folder was taken away
                self.dispatcher = self._compile(keep=False)
        return self.dispatcher

    def __call__(self, *args: Any) -> Any:
        return self.build()(*args)

    def _compile(self, *, keep: bool) -> Any:
        return numba.njit(
            [self.signature], cache=keep, nogil=True, boundscheck=False, error_model="numpy", **self.options
        )(self.function)


def compiled(signature: Any, **options: Any) -> Callable[[Callable[..., Any]], Compiled]:
    """Decorate a function that Python calls, with its one signature."""
    return lambda function: Compiled(function, signature, **options)


def inner(function: Callable[..., Any]) -> Any:
    """Decorate a function that only compiled functions call."""
    return numba.njit(boundscheck=False, fastmath=FLAGS, error_model="numpy", nogil=True)(function)
