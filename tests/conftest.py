"""What holds for all tests."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gamaneh.server.logs import CONFIGURED

# Tests that give a process a cache folder of its own need not compile for it again.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path("~/.cache/gamaneh/compiled").expanduser()))


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    """`gamaneh serve` sets up for a whole process where logs go; the standard error of a test is closed before that."""
    loggers = [logging.getLogger(name) for name in CONFIGURED]
    before = [(logger.handlers, logger.propagate, logger.level) for logger in loggers]
    yield
    for logger, (handlers, propagate, level) in zip(loggers, before, strict=True):
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny matrices are slower in several threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
