"""Files that are written whole or not at all, with errors that say what to do about them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from gamaneh.errors import ModelError


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Say of an error of the file system what it is about.

    Raises:
        ModelError: `path` cannot be written.
    """
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ModelError(
            f"{path} must be writable and its disk have room ({reason}); what was written before is kept"
        ) from error


def append_to(path: Path, content: bytes) -> None:
    """Add to the end of a file, whose folder is made if need be.

    Raises:
        ModelError: it cannot be written.
    """
    with room_for(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.write(content)


@contextmanager
def whole_folder(folder: Path) -> Iterator[Path]:
    """An empty folder that takes the place of `folder`, new or not, when all went well, and is gone when not.

    Raises:
        ModelError: it cannot be written.
    """
    fresh = folder.with_name(f".{folder.name}.part")
    with room_for(folder):
        shutil.rmtree(fresh, ignore_errors=True)
        fresh.mkdir(parents=True)
        try:
            yield fresh
            _flush(fresh)
            _put(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)


def _put(fresh: Path, folder: Path) -> None:
    """What is there already is kept beside it until the other has its name."""
    old = folder.with_name(f".{folder.name}.old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def _flush(folder: Path) -> None:
    """To the disk, so that a machine that stops does not leave empty files under their final names."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())
