import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gamaneh.backends import choose
from gamaneh.bench.advise import candidate
from gamaneh.bench.advise.advice import read_steps
from gamaneh.cli import session
from gamaneh.cli.main import app
from gamaneh.engine import llm
from gamaneh.errors import CorruptModel
from gamaneh.models import loading
from gamaneh.models.loading import LoadedModel
from gamaneh.testing import ByteTokenizer
from gamaneh.testing.tiny import tiny_model

TINY = ("--model", "tiny")
QUICK = ("--no-chat", "--quick", "--limit", "2", "-n", "8", "--batch", "1")


class ChatBytes(ByteTokenizer):
    """A byte tokenizer with the simplest of chat templates."""

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode(f"Q: {messages[0]['content']} A:")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model is a tiny one, `small` another of its kind."""

    def load(name: str | Path, **_: object) -> LoadedModel:
        model = tiny_model(seed=1 if str(name) == "small" else 0)
        return replace(model, name=str(name), tokenizer=ChatBytes())  # type: ignore[arg-type]

    monkeypatch.setattr(session, "file_or_name", lambda name: name)
    monkeypatch.setattr(loading, "resolve", lambda name: Path(name))
    monkeypatch.setattr(choose, "load", load)
    monkeypatch.setattr(candidate, "load", load)
    monkeypatch.setattr(llm, "load", load)
    monkeypatch.setattr(llm, "open_for", lambda name, *_: name)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": f"p{at}", "category": "repeat", "language": "en", "prompt": "abcabcabcabc" * at} for at in (1, 2, 3)]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


@pytest.fixture
def traffic(tmp_path: Path) -> Path:
    path = tmp_path / "traffic.jsonl"
    rows = [
        {"prompt": "Say: the cat sat on the mat", "answer": "the cat sat on the mat, the cat sat on the mat"},
        {"prompt": "بگو: سلام سلام", "answer": "سلام سلام سلام", "category": "copy"},
    ]
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    return path


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=False)


def last_json(result: Result) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return found


def test_advice_ranks_measures_and_judges(prompts: Path) -> None:
    result = run("advise", *TINY, *QUICK, "--prompts", prompts, "--draft-model", "small", "--json")
    advice = last_json(result)
    titles = [one["title"] for one in advice["candidates"]]
    assert {"lookup", "draft_model (small)"} <= set(titles)
    speedups = [one["prediction"]["speedup"]["value"] for one in advice["candidates"]]
    assert speedups == sorted(speedups, reverse=True)
    assert len(advice["checklist"]) == 13
    assert {line["status"] for line in advice["checklist"]} <= {"pass", "fail", "not_measured"}
    assert advice["validation"]["differing"] == 0
    assert result.exit_code == 0
    assert advice["setting"]["model"] == "tiny"


def test_a_candidate_that_cannot_be_used_is_told_and_the_exit_code_says_so(
    prompts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(name: str, **_: object) -> LoadedModel:
        raise CorruptModel(f"{name} is truncated")

    monkeypatch.setattr(candidate, "load", refuse)
    result = run("advise", *TINY, *QUICK, "--prompts", prompts, "--draft-model", "small", "--json")
    assert result.exit_code == 1
    assert "small could not be measured: small is truncated" in result.stdout
    assert "lookup" in [one["title"] for one in last_json(result)["candidates"]]


def test_the_lines_of_the_checklist_are_shown_in_persian(prompts: Path) -> None:
    result = run("advise", *TINY, *QUICK, "--prompts", prompts, "--method", "lookup", "--language", "fa")
    assert "حافظه‌ی KV مدیریت شده" in result.stdout
    assert "KV cache managed" not in result.stdout


def test_recorded_answers_set_the_lengths(traffic: Path) -> None:
    result = run("advise", *TINY, *QUICK, "--traffic", traffic, "--method", "lookup", "-n", 20, "--json")
    setting = last_json(result)["setting"]
    assert (setting["own"], setting["recorded"]) == (True, True)
    assert setting["languages"] == ["en", "fa"]
    assert setting["categories"] == ["recorded", "copy"]


def test_plain_answers_can_be_recorded_and_replayed(prompts: Path, tmp_path: Path) -> None:
    record = tmp_path / "answers.jsonl"
    run("advise", *TINY, *QUICK, "--prompts", prompts, "--method", "lookup", "--record", record)
    assert [json.loads(line)["id"] for line in record.read_text(encoding="utf-8").splitlines()] == ["p1", "p2"]
    assert run("what-if", record, *TINY, "--no-chat", "--method", "lookup").exit_code == 0


def test_the_file_holds_what_rounds_cost(prompts: Path, tmp_path: Path, traffic: Path) -> None:
    out = tmp_path / "advice.json"
    run("advise", *TINY, *QUICK, "--batch", 2, "--prompts", prompts, "--method", "lookup", "--out", out)
    assert {batch for batch, _ in read_steps(out).cells} == {1, 2}
    replayed = run("what-if", traffic, *TINY, "--no-chat", "--costs", out, "--batch", 2, "--json")
    assert replayed.exit_code == 0
    assert [one["batch"] for one in last_json(replayed)["scenarios"][0]["by_batch"]] == [2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--language", "de"), "language must be one of en, fa, got 'de'"),
        (("--out", "gone/x.json"), "--out must be a file in a folder that exists, got 'gone/x.json'"),
        (("--record", "gone/x.jsonl"), "--record must be a file in a folder that exists, got 'gone/x.jsonl'"),
        (("--memory-gb", "0"), "--memory-gb must be above 0, got 0.0"),
        (("--temperature", "-1"), "temperature must be a number at least 0"),
        (("--method", "telepathy", "--no-chat"), "proposer must be one of"),
        (("--prompts", "gone.jsonl"), "prompts must be a readable UTF-8 file, got 'gone.jsonl'"),
        (("--traffic", "gone.jsonl"), "traffic must be a readable UTF-8 file, got 'gone.jsonl'"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(prompts: Path, arguments: tuple[str, ...], message: str) -> None:
    given = () if {"--prompts", "--traffic"} & set(arguments) else ("--prompts", prompts)
    result = run("advise", *TINY, *given, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_recorded_requests_are_replayed_without_the_target(traffic: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gamaneh.models.runner import DecoderRunner

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the target ran")

    monkeypatch.setattr(DecoderRunner, "forward", refuse)
    result = run("what-if", traffic, *TINY, "--no-chat", "--method", "lookup", "--acceptance", 0.9, "--json")
    lookup, assumed = last_json(result)["scenarios"]
    assert (lookup["title"], lookup["replayed"]) == ("lookup", True)
    assert lookup["best"]["tokens_per_round"] > 1.5
    assert (assumed["title"], assumed["replayed"]) == ("acceptance 0.9", False)
    assert set(lookup["by_category"]) == {"recorded", "copy"}


def test_a_draft_model_is_replayed_as_well(traffic: Path) -> None:
    result = run("what-if", traffic, *TINY, "--no-chat", "--draft-model", "small", "--largest-k", 2, "--json")
    titles = [one["title"] for one in last_json(result)["scenarios"]]
    assert {"draft_model", "lookup"} <= set(titles)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--acceptance", "1.5"), "--acceptance must be from 0 to 1, got 1.5"),
        (("--batch", "4"), "--batch needs --costs"),
        (("--costs", "gone.json"), "costs must be a readable JSON file"),
        (("--method", "telepathy"), "proposer must be one of"),
    ],
)
def test_what_is_wrong_with_a_replay_is_said_in_one_line(
    traffic: Path, arguments: tuple[str, ...], message: str
) -> None:
    result = run("what-if", traffic, *TINY, "--no-chat", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"format": "gamaneh.bench", "version": 1}, "must be an advice of version 1"),
        ([], "must be an advice of version 1"),
        ({"format": "gamaneh.advice", "version": 1}, "steps must hold batch, rows and seconds"),
        (
            {"format": "gamaneh.advice", "version": 1, "steps": [{"batch": 1, "rows": 0, "seconds": [0]}]},
            "steps must hold batch, rows and seconds above 0",
        ),
        ({"format": "gamaneh.advice", "version": 1, "steps": []}, "steps must hold"),
    ],
)
def test_costs_from_other_files_are_refused(traffic: Path, tmp_path: Path, document: object, message: str) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(document))
    result = run("what-if", traffic, *TINY, "--no-chat", "--costs", path)
    assert result.exit_code == 2
    assert message in result.stderr
