"""What the controller learned about drafts, kept across restarts beside the measured costs."""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path

from gamaneh.control.survival import SurvivalTracker

VERSION = 1

PAUSE = 10.0
"""Seconds between two writes; requests that finish in between are in the next one."""


class Learned:
    """A small file with the pools of a `SurvivalTracker`.

    A file that is missing, broken or of another version counts as none, and a disk that is full or cannot be
    written to costs what would have been kept.

    Args:
        file: named after everything that decides about survival and costs: models, drafter, machine.
    """

    def __init__(self, file: Path, survival: SurvivalTracker) -> None:
        self.file, self.survival = file, survival
        self._written: float | None = None

    def recall(self) -> bool:
        """Begin with what the file holds; false where it holds nothing that can be used."""
        try:
            document = json.loads(self.file.read_text(encoding="utf-8"))
            if document["version"] != VERSION:
                return False
            self.survival.remember(document["survival"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return False
        return True

    def keep(self, now: float) -> None:
        """Write the file, unless that was done a moment before `now`, in seconds: whole or not at all."""
        if self._written is not None and now - self._written < PAUSE:
            return
        self._written = now
        part = self.file.with_suffix(f".{os.getpid()}")
        text = json.dumps({"version": VERSION, "survival": self.survival.learned()})
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            part.write_text(text, encoding="utf-8")
            part.replace(self.file)
        except OSError:
            with contextlib.suppress(OSError):
                part.unlink()
