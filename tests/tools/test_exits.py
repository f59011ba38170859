"""The command that tells what early exits of a target are worth."""

from __future__ import annotations

import json

import pytest

from gamaneh.testing import tiny_model
from tools import exits


@pytest.fixture(autouse=True)
def tiny_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "load", lambda model, precision: tiny_model("llama"))


def test_every_layer_has_a_line_and_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits.main(["tiny", "--layers", "1", "2"]) == 0
    *lines, document = capsys.readouterr().out.splitlines()
    found = json.loads(document)["exits"]
    assert [record["layer"] for record in found] == [1, 2]
    assert found[1]["agreement"] == 1.0
    assert all(record["speedup"] > 0 for record in found)
    assert [line.split(":")[0] for line in lines] == ["after 1 layers", "after 2 layers", "best of 2 layers"]


def test_a_layer_that_is_not_there_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert exits.main(["tiny", "--layers", "3"]) == exits.EXIT_ERROR
    assert "--layers must be from 1 to 2, got 3" in capsys.readouterr().err
