"""Servers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest
from served import Running, engine_for, serving


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    """One server for all tests of a module that only ask; pseudo-random bytes come out of it."""
    with serving(engine_for()) as running:
        yield running


@pytest.fixture
def start() -> Iterator[Callable[..., Running]]:
    """Starts servers that end with the test."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(serving(*args, **options))
