"""What holds for all tests."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from gamaneh.server.logs import CONFIGURED


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
