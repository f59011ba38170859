"""Structured logs: one JSON object a line on standard error, without the text of prompts unless it is asked for."""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

LOGGER = logging.getLogger("gamaneh.server")

CONFIGURED = ("gamaneh", "uvicorn")
"""Loggers of this package and of the web server."""

FIELDS = "fields"
"""Attribute of a record that holds what is logged beside the message."""


class JsonLines(logging.Formatter):
    """Formats a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, FIELDS, {}),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def configure(level: str) -> None:
    """Send what this package and the web server log to standard error as JSON lines."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    for name in CONFIGURED:
        logger = logging.getLogger(name)
        logger.handlers, logger.propagate = [handler], False
        logger.setLevel(level.upper())


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Log that something begins that takes long, and how many seconds it took."""
    started = time.monotonic()
    log("starting", doing=what)
    yield lambda done, total: None
    log("started", doing=what, seconds=round(time.monotonic() - started, 3))


def log(message: str, level: int = logging.INFO, **fields: Any) -> None:
    """Log a message with fields beside it."""
    LOGGER.log(level, message, extra={FIELDS: fields})
