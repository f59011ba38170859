import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gamaneh.cli import session
from gamaneh.cli.main import app
from gamaneh.cli.option_groups import ModelChoice, ProposerChoice
from gamaneh.engine.llm import LLM
from gamaneh.models.loading import LoadedModel
from gamaneh.testing import ByteTokenizer, tiny_model

TINY = ("audit", "--model", "tiny", "--samples", "24", "--sample-tokens", "6", "--limit", "2", "-n", "12")


class ChatBytes(ByteTokenizer):
    """A byte tokenizer with the simplest of chat templates."""

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode(f"Q: {messages[0]['content']} A:")


def with_chat(model: LoadedModel) -> LoadedModel:
    return replace(model, tokenizer=ChatBytes())  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def tiny_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is a tiny decoder, and a draft model is another with other weights."""

    def open_tiny(model: ModelChoice, proposer: ProposerChoice, *, max_batch: int = 1) -> LLM:
        draft = None if proposer.draft_model is None else with_chat(tiny_model("llama", seed=1))
        return LLM(
            with_chat(tiny_model("llama")),
            draft_model=draft,
            speculation=proposer.speculation(),
            options=model.engine(max_batch=max_batch),
        )

    monkeypatch.setattr(session, "open_llm", open_tiny)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "set.jsonl"
    rows = [
        {"id": f"{number}", "category": "any", "language": "en", "prompt": f"abc{number}" * 3} for number in range(6)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def run(prompts: Path, *arguments: str) -> Result:
    options = ["--prompts", str(prompts), "--chat", "--draft-model", "other", "--min-confidence", "0", "--invariant"]
    return CliRunner().invoke(app, [*TINY, *options, *arguments], catch_exceptions=False)


def last_json(result: Result) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return values


def test_an_exact_system_passes_with_exit_code_zero(prompts: Path) -> None:
    result = run(prompts, "--json")
    assert result.exit_code == 0, result.stdout
    assert "verdict: pass" in result.stdout
    assert [check["outcome"] for check in last_json(result)["checks"]] == ["pass"] * 3


def test_an_approximate_rule_fails_with_exit_code_one(prompts: Path) -> None:
    result = run(prompts, "--rule", "typical", "--delta", "9", "--epsilon", "0.0001")
    assert result.exit_code == 1
    assert "verdict: fail" in result.stdout


def test_too_little_evidence_has_an_exit_code_of_its_own(prompts: Path) -> None:
    result = run(prompts, "--samples", "2", "--sample-tokens", "2")
    assert result.exit_code == 3
    assert "verdict: inconclusive" in result.stdout


def test_temperature_zero_is_audited_greedily_only(prompts: Path) -> None:
    result = run(prompts, "-t", "0", "--json")
    assert [check["outcome"] for check in last_json(result)["checks"]] == ["pass", "skipped", "skipped"]


def test_prompts_are_taken_from_all_over_the_set(prompts: Path) -> None:
    setup = last_json(run(prompts, "-t", "0", "--json", "--limit", "6"))
    assert setup["checks"][0]["exposure"]["outputs"] == 12


def test_drafts_have_a_fixed_length_unless_told(prompts: Path) -> None:
    assert last_json(run(prompts, "-t", "0", "--json"))["setup"]["k"] == 4
    assert last_json(run(prompts, "-t", "0", "--json", "-k", "2"))["setup"]["k"] == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plain"], "--plain leaves nothing to audit, got True"),
        (["-t", "-1"], "temperature must be a number at least 0 and at most 100, got -1.0"),
        (["--prompts", "absent.jsonl"], "prompts must be a readable UTF-8 file, got 'absent.jsonl'"),
    ],
)
def test_bad_options_are_refused_before_a_model_is_loaded(options: list[str], message: str) -> None:
    result = CliRunner().invoke(app, [*TINY, *options])
    assert (result.exit_code, result.stderr) == (2, f"gamaneh: {message}\n")
