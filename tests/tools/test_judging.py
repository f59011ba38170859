"""The comparison of both ways to judge."""

from __future__ import annotations

import json

import pytest

from tools.judging import main


def test_both_ways_are_timed_over_the_same_verdicts(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--vocab", "300", "--batches", "2", "--lengths", "3", "--accuracy", "1", "--repeats", "2"])
    results = json.loads(capsys.readouterr().out)

    assert [result["setting"] for result in results] == ["greedy", "temperature", "top-k", "top-p", "penalty"]
    assert {(result["rows"], result["batch"], result["draft_length"]) for result in results} == {(8, 2, 3)}
    assert results[0]["reached"] == 8
    assert all(result["ratio"]["low"] <= result["ratio"]["value"] <= result["ratio"]["high"] for result in results)
