"""The real small model, as `gamaneh pull` fetched it; `make test` does so before the tests run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from gamaneh.models.fetch import find

NAME = "smollm2-135m-instruct"


@pytest.fixture(autouse=True, scope="module")
def all_processors() -> Iterator[None]:
    """The real model is tested as it runs, on several threads, whatever the other tests run on."""
    threads = torch.get_num_threads()
    torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def model_file() -> Path:
    """The model's file. A test that needs it fails without, rather than being left out unseen."""
    path = find(NAME)
    assert path is not None, f"{NAME} is not in the cache: run `gamaneh pull {NAME}`"
    return path
