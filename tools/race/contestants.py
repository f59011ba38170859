"""Who races: one server of ours, and one of llama.cpp for each of its ways to speculate."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx
import psutil

from gamaneh.errors import GamanehError, InvalidOption

OURS, THEIRS = "ours", "theirs"
PLAIN, AUTO = "plain", "auto"
START_SECONDS = 600.0
POLL_SECONDS = 0.02
STOP_SECONDS = 30.0
LOG_TAIL = 2000
"""Characters of a server's log that are shown where it does not start."""

DRAFT = "DRAFT"
"""Stands for the file of the draft model."""

MODES: Mapping[str, Sequence[str]] = {
    PLAIN: (),
    "draft": ("--spec-type", "draft-simple", "--spec-draft-n-max", "3", "--model-draft", DRAFT),
    "draft-long": (
        *("--spec-type", "draft-simple", "--spec-draft-n-max", "8", "--spec-draft-p-min", "0.6"),
        *("--model-draft", DRAFT),
    ),
    "ngram-simple": ("--spec-type", "ngram-simple"),
    "ngram-simple-short": (
        *("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "4"),
        *("--spec-ngram-simple-size-m", "16"),
    ),
    "ngram-map-k": (
        *("--spec-type", "ngram-map-k", "--spec-ngram-map-k-size-n", "6"),
        *("--spec-ngram-map-k-size-m", "16"),
    ),
    "ngram-map-k4v": (
        *("--spec-type", "ngram-map-k4v", "--spec-ngram-map-k4v-size-n", "6"),
        *("--spec-ngram-map-k4v-size-m", "16"),
    ),
    "ngram-mod": ("--spec-type", "ngram-mod"),
    "ngram-mod-short": (
        *("--spec-type", "ngram-mod", "--spec-ngram-mod-n-match", "6"),
        *("--spec-ngram-mod-n-min", "4", "--spec-ngram-mod-n-max", "16"),
    ),
    "ngram-cache": ("--spec-type", "ngram-cache"),
    "ngram-draft": (
        *("--spec-type", "ngram-simple,draft-simple", "--spec-ngram-simple-size-n", "4"),
        *("--spec-ngram-simple-size-m", "16", "--spec-draft-n-max", "3", "--model-draft", DRAFT),
    ),
}
"""Ways of llama.cpp to decode: its defaults and, where those hardly ever draft (n-grams of 12 tokens and more), shorter
ones that do. Which of them is best is told by the race, for each kind of prompt."""


@dataclass(frozen=True, slots=True)
class Start:
    """What starting a server took.

    Args:
        ready_seconds: from the start of the process until it says that it is ready.
        resident_bytes: of the process when it is ready, mapped files included.
    """

    ready_seconds: float
    resident_bytes: int


class Server:
    """A process that serves on loopback until it is left.

    Args:
        name: what to call it.
        command: `PORT` stands for the port.
        log: file for what it prints.
    """

    def __init__(self, name: str, command: Sequence[str], log: Path) -> None:
        self.name, self.log = name, log
        self.port = _free_port()
        self.command = [part.replace("PORT", str(self.port)) for part in command]
        self.start = Start(0.0, 0)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def process(self) -> psutil.Process:
        assert self._process is not None
        return psutil.Process(self._process.pid)

    def __enter__(self) -> Self:
        """
        Raises:
            GamanehError: it ended, or did not get ready.
        """
        started = time.perf_counter()
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=os.environ
            )
        try:
            self._wait(started)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def resident_bytes(self) -> int:
        """Of the process now, mapped files included."""
        size: int = self.process.memory_info().rss
        return size

    def cpu_seconds(self) -> float:
        """Processor time of the process so far."""
        times = self.process.cpu_times()
        return float(times.user + times.system)

    def _wait(self, started: float) -> None:
        assert self._process is not None
        while time.perf_counter() - started < START_SECONDS:
            if self._process.poll() is not None:
                raise GamanehError(f"{self.name} must start, it ended with {self._process.returncode}: {self._tail()}")
            if _is_ready(self.url):
                self.start = Start(time.perf_counter() - started, self.resident_bytes())
                return
            time.sleep(POLL_SECONDS)
        raise GamanehError(f"{self.name} must be ready after {START_SECONDS:g} seconds: {self._tail()}")

    def _tail(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")[-LOG_TAIL:]


@dataclass(frozen=True, slots=True)
class Way:
    """One way to answer: a server, told to speculate or not.

    Args:
        name: such as `ours auto` or `theirs plain`.
    """

    name: str
    server: Server
    speculate: bool = True

    @property
    def side(self) -> str:
        return self.name.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Files:
    """The models that both sides serve."""

    target: Path
    draft: Path | None


def our_command(files: Files, max_batch: int, extra: Sequence[str]) -> list[str]:
    """Our server, which asks `auto` what pays."""
    draft = () if files.draft is None else ("--draft-model", str(files.draft))
    program = (sys.executable, "-c", "from gamaneh.cli.main import main; main()", "serve")
    limits = ("--max-batch", str(max_batch), "--proposer", "auto", "--host", "127.0.0.1", "--port", "PORT")
    return [*program, "--model", str(files.target), *draft, *limits, *extra]


def their_command(
    program: Path, files: Files, mode: str, slots: int, context: int, threads: int, extra: Sequence[str]
) -> list[str]:
    """llama.cpp's server in one of its modes.

    Args:
        slots: requests at once.
        context: tokens of each.

    Raises:
        InvalidOption: the mode needs a draft model, and there is none.
    """
    flags = MODES[mode]
    if DRAFT in flags and files.draft is None:
        raise InvalidOption("--theirs", "must do without a draft model where there is none", mode)
    filled = [str(files.draft) if flag == DRAFT else flag for flag in flags]
    limits = ("--parallel", str(slots), "--ctx-size", str(slots * context), "--threads", str(threads))
    served = ("--host", "127.0.0.1", "--port", "PORT", "--metrics", "--no-webui", "--cache-ram", "0")
    return [str(program), "--model", str(files.target), *limits, *served, *filled, *extra]


def usable_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        port: int = bound.getsockname()[1]
        return port


def _is_ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=1.0).is_success
    except httpx.HTTPError:
        return False
