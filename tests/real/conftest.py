"""The real small model, as `gamaneh pull` fetched it; `make test` does so before the tests run."""

from __future__ import annotations

from pathlib import Path

import pytest

from gamaneh.models.fetch import find

NAME = "smollm2-135m-instruct"


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The model's file. A test that needs it fails without, rather than being left out unseen."""
    path = find(NAME)
    assert path is not None, f"{NAME} is not in the cache: run `gamaneh pull {NAME}`"
    return path
