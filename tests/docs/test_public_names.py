"""What `import gamaneh` offers, and at what price."""

from __future__ import annotations

import subprocess
import sys

import pytest

import gamaneh


@pytest.mark.parametrize("name", gamaneh.__all__)
def test_every_public_name_is_there(name: str) -> None:
    assert getattr(gamaneh, name) is not None


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Speculator'"):
        gamaneh.Speculator  # noqa: B018


def test_all_public_names_are_listed_by_dir() -> None:
    assert set(gamaneh.__all__) <= set(dir(gamaneh))


def test_the_import_leaves_the_slow_libraries_alone() -> None:
    program = "import sys, gamaneh; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"
