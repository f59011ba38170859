"""The load tool alternates a service that may speculate, the same told not to, and one without proposers."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from gamaneh.testing import ByteTokenizer, tiny_model
from tools import load


class ShortPrompts(ByteTokenizer):
    """A byte tokenizer without a chat template that reads the first letters."""

    backend = SimpleNamespace(chat_template=None)

    def encode(self, text: str, special: bool = True) -> list[int]:
        return super().encode(text[:20], special)


def test_each_cell_compares_three_ways_that_say_the_same(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(load, "load", lambda model, precision: tiny_model(tokenizer=ShortPrompts()))
    command = ["--categories", "code", "--concurrency", "1", "2", "--tokens", "4", "--rounds", "1"]
    assert load.main(command) == 0
    cells = json.loads(capsys.readouterr().out.splitlines()[-1])["cells"]
    assert [(cell["category"], cell["concurrency"], cell["differences"]) for cell in cells] == [
        ("code", 1, 0),
        ("code", 2, 0),
    ]
    assert all(set(cell["off"]) == {"value", "low", "high"} for cell in cells)


@pytest.mark.parametrize("option", ["--tokens", "--rounds"])
def test_no_work_is_refused_by_name(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert load.main([option, "0", "--model", "nothing"]) == load.EXIT_ERROR
    assert f"{option} must be at least 1, got 0" in capsys.readouterr().err
