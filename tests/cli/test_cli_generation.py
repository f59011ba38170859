import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gamaneh import testing
from gamaneh.cli import session
from gamaneh.cli.main import app
from gamaneh.cli.option_groups import ModelChoice, ProposerChoice
from gamaneh.core import StepOutput
from gamaneh.engine.llm import LLM
from gamaneh.testing import ByteTokenizer, tiny_heads

TINY = ("--model", "tiny")
COMMON = ("-n", "12", "--ignore-eos")


class ChatBytes(ByteTokenizer):
    """A byte tokenizer with the simplest of chat templates."""

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode(f"Q: {messages[0]['content']} A:")


@pytest.fixture(autouse=True)
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model that a command opens is the same tiny decoder."""
    loaded = testing.tiny_model(tokenizer=ChatBytes())

    def open_tiny(model: ModelChoice, proposer: ProposerChoice, *, max_batch: int = 1) -> LLM:
        heads = [tiny_heads(loaded, name.rpartition("/")[2]) for name in proposer.heads or ()]
        return LLM(loaded, heads=heads, speculation=proposer.speculation(), options=model.engine(max_batch=max_batch))

    monkeypatch.setattr(session, "open_llm", open_tiny)


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "set.jsonl"
    rows = [
        {"id": f"{number}", "category": "repeat", "language": "en", "prompt": "abcabcabc" * number}
        for number in (1, 2, 3)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def run(*arguments: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, list(arguments), input=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.stderr
    return result


def last_json(result: Result) -> dict[str, Any]:
    values: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return values


def test_generate_writes_the_text_alone_on_standard_output() -> None:
    streamed = run("generate", *TINY, *COMMON, "Hello").stdout

    assert streamed == last_json(run("generate", *TINY, *COMMON, "--json", "Hello"))["text"] + "\n"


def test_generate_sums_up_on_standard_error() -> None:
    assert "12 tokens" in run("generate", *TINY, *COMMON, "Hello").stderr


def test_guessing_changes_no_token() -> None:
    plain = last_json(run("generate", *TINY, *COMMON, "--plain", "--json", "abcabcabc"))
    guessed = last_json(run("generate", *TINY, *COMMON, "-k", "4", "--json", "abcabcabc"))

    assert plain["tokens"] == guessed["tokens"]


def test_a_dash_reads_standard_input() -> None:
    from_input = last_json(run("generate", *TINY, *COMMON, "--json", "-", stdin="Hello"))

    assert from_input["tokens"] == last_json(run("generate", *TINY, *COMMON, "--json", "Hello"))["tokens"]


def test_the_chat_template_is_applied_when_asked_for() -> None:
    plain, chat = (
        last_json(run("generate", *TINY, *COMMON, *flags, "--json", "Hello"))["prompt_tokens"]
        for flags in ([], ["--chat"])
    )

    assert chat - plain == len("Q:  A:")


def test_logprobs_come_with_the_json() -> None:
    answer = last_json(run("generate", *TINY, *COMMON, "--json", "--logprobs", "2", "--prompt-logprobs", "0", "Hi"))

    assert (len(answer["logprobs"]), len(answer["logprobs"][0]["top"])) == (12, 2)
    assert answer["prompt_logprobs"][0] is None


def test_an_approximate_rule_is_named() -> None:
    ways = ("--lookup", "--temperature", "1", *COMMON, "abcabcabcabc")
    told = run("generate", *TINY, "--rule", "typical", *ways)
    assert "The rule typical is approximate" in told.stderr
    assert "approximate" not in run("generate", *TINY, *ways).stderr
    values = last_json(run("generate", *TINY, "--rule", "typical", "--json", *ways))
    assert (values["exact"], values["rules"]) == (False, ["typical"])


def test_colours_are_written_when_forced() -> None:
    assert "\x1b[" in run("generate", *TINY, *COMMON, "--color", "Hello").stdout


def test_a_prompt_longer_than_the_context_is_one_line(prompts: Path) -> None:
    result = CliRunner().invoke(app, ["generate", *TINY, "--max-context", "8", "a prompt that is too long"])

    assert (result.exit_code, result.stderr.count("\n"), "prompt" in result.stderr) == (2, 1, True)


@pytest.mark.parametrize("flags", [[], ["--json"]])
@pytest.mark.parametrize("rule", ["rejection", "block", "typical"])
def test_a_seed_that_would_not_be_kept_is_one_line(rule: str, flags: list[str]) -> None:
    seeded = ("--rule", rule, "-t", "1", "--seed", "3", *flags)
    result = CliRunner().invoke(app, ["generate", *TINY, *COMMON, *seeded, "Hello"])

    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert result.stderr.startswith(f"gamaneh: seed must be left out with the rule {rule}")
    assert run("generate", *TINY, *COMMON, *seeded, "-k", "2", "Hello").stdout


@pytest.mark.parametrize("sampling", [[], ["--temperature", "1"]])
def test_compare_finds_equal_tokens(prompts: Path, sampling: list[str]) -> None:
    outcome = last_json(
        run("compare", *TINY, *COMMON, "--no-chat", "--prompts", str(prompts), *sampling, "--batch", "3", "--json")
    )

    assert (outcome["identical"], outcome["prompts"], outcome["batch_mismatches"]) == (True, 3, 0)


def test_compare_says_what_it_compared(prompts: Path) -> None:
    outcome = last_json(run("compare", *TINY, *COMMON, "--no-chat", "--prompts", str(prompts), "-k", "3", "--json"))

    assert {key: outcome[key] for key in ("model", "dtype", "proposer", "k", "rule", "exact")} == {
        "model": "tiny",
        "dtype": "float32",
        "proposer": "lookup",
        "k": 3,
        "rule": "match",
        "exact": True,
    }


def test_compare_takes_no_more_prompts_than_asked_for(prompts: Path) -> None:
    outcome = last_json(
        run("compare", *TINY, *COMMON, "--no-chat", "--prompts", str(prompts), "--limit", "2", "--json")
    )

    assert outcome["prompts"] == 2


def test_compare_marks_an_approximate_rule(prompts: Path) -> None:
    result = run("compare", *TINY, *COMMON, "--no-chat", "--prompts", str(prompts), "--rule", "typical", "-t", "1")

    assert "rule typical (approximate)" in result.stdout


def test_the_demo_shows_every_scene_and_a_closing_sentence() -> None:
    result = run("demo", "--max-tokens", "8", "--json")

    assert result.stdout.count("identical: yes") == 3
    assert "The tokens were the same with and without guessing." in result.stdout
    assert list(last_json(result)) == ["quoting", "open", "heads"]


def test_interrupted_answer_keeps_what_came_and_ends_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = LLM.stream

    def broken_off(llm: LLM, *arguments: Any, **more: Any) -> Iterator[StepOutput]:
        yield from islice(whole(llm, *arguments, **more), 3)
        raise KeyboardInterrupt

    monkeypatch.setattr(LLM, "stream", broken_off)
    result = CliRunner().invoke(app, ["generate", *TINY, *COMMON, "--plain", "Hello"])
    assert result.exit_code == 130
    assert "3 tokens" in result.stderr
    assert result.stderr.endswith("gamaneh: interrupted\n")
    assert result.stdout.strip()
