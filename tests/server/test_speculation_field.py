"""CASES kind 39: each request says for itself how it speculates, and is told what came of it."""

from __future__ import annotations

from typing import Any

import pytest
from served import Running, engine_for, streamed

ASKED = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}


def told(running: Running, **speculation: Any) -> dict[str, Any]:
    answer = running.complete(**ASKED, speculation={"metrics": True, **speculation})
    metrics: dict[str, Any] = answer["gamaneh"]["speculation"]
    return metrics


@pytest.mark.parametrize("off", [{"enabled": False}, {"proposer": "none"}, {"draft_length": 0}])
def test_switched_off_it_makes_no_drafts(start, off: dict[str, Any]) -> None:
    running = start(engine_for())
    metrics = told(running, **off)
    assert (metrics["drafts"], metrics["drafted"], metrics["accepted_histogram"]) == (0, 0, [])
    assert metrics["tokens_by_origin"] == {"plain": 40, "accepted": 0, "correction": 0, "bonus": 0}
    assert running.engine.proposers["scripted"].asked == []


def test_switching_changes_no_token(server: Running) -> None:
    ways: list[dict[str, Any]] = [
        {"enabled": False},
        {"enabled": True},
        {"draft_length": 1},
        {"draft_length": 15},
        {"draft_length": "adaptive"},
        {"max_draft_length": 2, "draft_length": "adaptive"},
        {"rule": "match"},
    ]
    assert len({server.text(**ASKED, speculation=way) for way in ways}) == 1


@pytest.mark.parametrize("length", [1, 3, 15])
def test_a_fixed_length_is_kept(server: Running, length: int) -> None:
    metrics = told(server, draft_length=length)
    assert len(metrics["accepted_histogram"]) <= length + 1
    assert metrics["drafted"] <= metrics["drafts"] * length
    assert metrics["drafted"] > (metrics["drafts"] - 4) * length


def test_the_longest_draft_is_kept(server: Running) -> None:
    metrics = told(server, max_draft_length=2)
    assert 0 < metrics["drafted"] <= 2 * metrics["drafts"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"draft_length": 16}, "speculation.draft_length"),
        ({"max_draft_length": 16}, "speculation.max_draft_length"),
        ({"max_draft_length": 2, "draft_length": 3}, "speculation.draft_length"),
        ({"max_draft_length": 0}, "speculation.max_draft_length"),
        ({"draft_length": -1}, "speculation.draft_length"),
        ({"draft_length": 2.5}, "speculation.draft_length"),
        ({"draft_length": "long"}, "speculation.draft_length"),
        ({"proposer": "oracle"}, "speculation.proposer"),
        ({"rule": "luck"}, "speculation.rule"),
        ({"enabled": "yes"}, "speculation.enabled"),
    ],
)
def test_what_is_wrong_is_named(server: Running, fields: dict[str, Any], param: str) -> None:
    assert server.refusal(prompt="a", speculation=fields)["param"] == param


class TestMetrics:
    def test_counts_agree(self, server: Running) -> None:
        metrics = told(server)
        histogram = metrics["accepted_histogram"]
        assert sum(histogram) == metrics["drafts"]
        assert sum(length * count for length, count in enumerate(histogram)) == metrics["accepted"]
        assert metrics["emitted"] == metrics["accepted"] + metrics["rounds"]
        assert metrics["acceptance_rate"] == metrics["accepted"] / metrics["drafted"]
        assert sum(each["rounds"] for each in metrics["proposers"].values()) == metrics["rounds"]
        assert sum(each["rounds"] for each in metrics["reasons"]) == metrics["rounds"]
        assert sum(metrics["tokens_by_origin"].values()) == ASKED["max_tokens"]
        assert metrics["rules"] == ["match"] and metrics["exact"] is True

    def test_reasons_come_with_what_they_are_made_of(self, server: Running) -> None:
        (reason,) = told(server)["reasons"]
        assert (reason["reason"], reason["code"]) == ("draft length fixed by option", "fixed")
        assert reason["details"] == {
            "proposers": [],
            "draft_length": None,
            "kind": [],
            "chosen": None,
            "failures": [],
        }

    def test_times_are_told(self, server: Running) -> None:
        metrics = told(server)
        assert all(metrics["seconds"][name] > 0 for name in ("queued", "prefill", "decode", "draft", "verify"))
        assert metrics["estimated_speedup"] > 0

    def test_several_answers_are_summed_up(self, server: Running) -> None:
        answer = server.complete(**ASKED, n=3, speculation={"metrics": True})
        assert sum(answer["gamaneh"]["speculation"]["tokens_by_origin"].values()) == 3 * 40

    def test_an_approximate_rule_says_so(self, server: Running) -> None:
        asked = {**ASKED, "temperature": 1.0, "speculation": {"metrics": True, "rule": "typical"}}
        metrics = server.complete(**asked)["gamaneh"]["speculation"]
        assert (metrics["rules"], metrics["exact"]) == (["typical"], False)

    @pytest.mark.parametrize("usage", [True, False])
    def test_an_approximate_answer_says_so_whether_asked_or_not(self, server: Running, usage: bool) -> None:
        asked = {**ASKED, "temperature": 1.0, "speculation": {"rule": "typical"}}
        assert server.complete(**asked)["gamaneh"] == {"exact": False, "rules": ["typical"]}
        options = {"stream_options": {"include_usage": True}} if usage else {}
        chunks = streamed(server, "/v1/completions", prompt="hello", **asked, **options)
        assert chunks[-1]["gamaneh"] == {"exact": False, "rules": ["typical"]}
        rounds = [line for line in server.http.get("/metrics").text.splitlines() if "judged_rounds_total{" in line]
        assert any('exact="false",rule="typical"' in line for line in rounds)

    def test_who_does_not_ask_is_not_told(self, server: Running) -> None:
        assert "gamaneh" not in server.complete(max_tokens=2, speculation={"enabled": True})


@pytest.mark.parametrize("rule", ["rejection", "block", "typical"])
def test_a_seed_that_would_not_be_kept_is_named(server: Running, rule: str) -> None:
    adaptive = {"rule": rule, "draft_length": "adaptive"}
    error = server.refusal(prompt="a", temperature=1, seed=3, speculation=adaptive)
    assert error["param"] == "seed"
    texts = {server.text("a", temperature=1, seed=3, speculation={"rule": rule}, max_tokens=12) for _ in range(3)}
    assert len(texts) == 1
