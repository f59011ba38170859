"""`gamaneh bench` from its options to its files, over a tiny decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gamaneh import testing
from gamaneh.bench import measure
from gamaneh.bench.answer import went_wrong
from gamaneh.bench.result import Equality, Run, read_run
from gamaneh.cli import session
from gamaneh.cli.bench import EXIT_PARTIAL
from gamaneh.cli.bench_options import CorePrompts, PromptChoice, ShortSampling
from gamaneh.cli.command import EXIT_ERROR, EXIT_INTERRUPTED
from gamaneh.cli.main import app
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.engine import Engine
from gamaneh.models.loading import LoadedModel
from gamaneh.testing import ByteTokenizer

LINES = [
    {"id": "a", "category": "repeat", "language": "en", "prompt": "abcabcabcabc"},
    {"id": "b", "category": "repeat", "language": "fa", "prompt": "سلام سلام"},
    {"id": "c", "category": "other", "language": "en", "prompt": "xyzxyzxyz"},
]


class ChatBytes(ByteTokenizer):
    """A byte tokenizer with the simplest of chat templates."""

    backend = SimpleNamespace(chat_template="yes")

    def chat(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        return self.encode(f"Q: {messages[0]['content']} A:")


@pytest.fixture(autouse=True)
def tiny_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every model that the command opens is the same tiny decoder."""
    loaded = testing.tiny_model(tokenizer=ChatBytes())

    def open_tiny(model: Any, proposer: Any, **limits: Any) -> tuple[LoadedModel, Engine]:
        return loaded, build_engine(loaded, None, proposer.speculation(), model.engine(kv_blocks=128, **limits))

    monkeypatch.setattr(session, "open_engine", open_tiny)


@pytest.fixture
def bench(tmp_path: Path):
    """Runs the command over three prompts."""
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in LINES), encoding="utf-8")

    def run(*arguments: str, model: str | None = "tiny") -> Result:
        given = [*(["--model", model] if model else []), "--prompts", str(prompts), "--rounds", "1", "-n", "8"]
        return CliRunner().invoke(app, ["bench", *given, *arguments], catch_exceptions=False)

    return run


def document(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.stderr
    values: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return values


def test_a_table_for_people_and_one_line_of_json(bench) -> None:
    result = bench("--invariant", "--ignore-eos", "--json")
    values = document(result)
    assert values["format"] == "gamaneh.bench"
    assert values["name"] == "tiny, lookup"
    for shown in ("speed-up", "TTFT", "outputs: 3 of 3 the same", "warning: ", "formulas", "tpot: (last delivery"):
        assert shown in result.stdout


def test_files_are_written(bench, tmp_path: Path) -> None:
    out, table = tmp_path / "run.json", tmp_path / "run.csv"
    assert bench("--out", str(out), "--csv", str(table), "--name", "mine", "--ignore-eos").exit_code == 0
    assert read_run(out).name == "mine"
    assert table.read_text(encoding="utf-8").startswith("run,load,level,group,")


def test_each_concurrency_is_a_load(bench) -> None:
    values = document(bench("--concurrency", "1", "--concurrency", "3", "--ignore-eos", "--json"))
    assert [point["load"]["level"] for point in values["points"]] == [1, 3]
    assert values["plain"]["batch"] == 3


def test_options_reach_both_sides(bench) -> None:
    values = document(bench("-t", "1", "--seed", "4", "-k", "2", "--language", "en", "--max-batch", "2", "--json"))
    assert values["plain"]["sampling"] == values["speculative"]["sampling"] == {"temperature": 1.0, "seed": 4}
    assert (values["plain"]["proposer"], values["speculative"]["k"], values["plain"]["batch"]) == ("none", 2, 2)
    assert values["provenance"]["prompts"]["languages"] == ["en"]


def test_objectives_and_price_reach_the_figures(bench) -> None:
    price = ("--price", "2", "--price-date", "2026-11-29")
    values = document(bench("--slo-e2e", "100", *price, "--ignore-eos", "--json"))
    whole = values["points"][0]["groups"][0]["plain"]
    assert whole["goodput"]["share"] == 1.0
    assert whole["cost_per_million"] == pytest.approx(2 / 3600 * 1e6 / whole["tokens_per_second"], rel=1e-4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--plain"], "--plain leaves nothing to compare"),
        (["--url", "http://x"], "--model cannot be used together with --url"),
        (["--plain-url", "http://x"], "--plain-url needs --url"),
        (["--price", "0", "--price-date", "2026-11-29"], "price must be a number above 0, got 0.0"),
        (["--price", "3"], "price_date must be the day of the price"),
        (["--price-date", "2026-11-29"], "--price-date needs --price"),
        (["--slo-ttft", "0"], "--slo-ttft must be seconds above 0, got 0.0"),
        (["--rate", "1", "--concurrency", "2"], "--rate cannot be used together with --concurrency"),
        (["--sweep"], "--sweep needs --rate"),
        (["--burstiness", "2"], "--burstiness needs --arrivals gamma"),
        (["--rate", "1", "--arrivals", "monthly"], "--arrivals must be one of constant, poisson, gamma, got 'monthly'"),
        (["--replay"], "trace must have prompts with the key at"),
        (["--concurrency", "0"], "concurrency must be a number above 0, got 0.0"),
        (["--requests", "0"], "--requests must be at least 1, got 0"),
        (["--rounds", "0"], "rounds must be at least 1, got 0"),
        (["--category", "law"], "category must be one of other, repeat, got 'law'"),
        (["--prompts", "nowhere.jsonl"], "must be core, full or a file that is there, got 'nowhere.jsonl'"),
        (["-t", "-1"], "temperature must be a number at least 0"),
        (["--out", "/nowhere/run.json"], "run.json cannot be written"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(bench, arguments: list[str], message: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == EXIT_ERROR
    assert message in result.stderr
    assert result.stderr.count("gamaneh: ") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--model must be given, or --url"),
        (["--url", "http://x", "--draft-length", "3"], "--draft-length cannot be used together with --url"),
        (["--url", "http://x", "--weights", "float32"], "--weights cannot be used together with --url"),
        (["--url", "http://x", "--bad-word", "no"], "--bad-word cannot be used together with --url"),
        (["--url", "http://x", "--plain-fields", "[1]"], "--plain-fields must be a JSON object, got '[1]'"),
        (["--url", "http://x", "--plain-fields", "{"], "--plain-fields must be a JSON object, got '{'"),
        (["--url", "http://x", "--plain-fields", '{"model": 1}'], "plain_fields must not change what is asked"),
    ],
)
def test_servers_and_models_do_not_mix(bench, arguments: list[str], message: str) -> None:
    result = bench(*arguments, model=None)
    assert result.exit_code == EXIT_ERROR
    assert message in result.stderr


def test_a_broken_prompt_file_is_named_with_its_line(bench, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    path.write_text('{"prompt": "a"}\n{"prompt": 7}\n')
    result = bench("--prompts", str(path))
    assert result.exit_code == EXIT_ERROR
    assert "broken.jsonl line 2 prompt must be a text that is not empty, got 7" in result.stderr


def test_an_empty_prompt_file_is_named(bench, tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    result = bench("--prompts", str(path))
    assert (result.exit_code, "empty.jsonl must hold at least one prompt" in result.stderr) == (EXIT_ERROR, True)


def test_requests_that_fail_are_told_by_the_exit_code(bench) -> None:
    result = bench("--max-context", "20")
    assert result.exit_code == EXIT_PARTIAL
    assert "failed: " in result.stdout


def test_a_difference_that_must_not_be_is_told_by_the_exit_code(bench, tmp_path: Path) -> None:
    out = tmp_path / "run.json"
    bench("--out", str(out), "--ignore-eos", "--invariant")
    run: Run = read_run(out)
    same = Equality(expected=True, compared=3, equal=3, ties=0, differences=())
    assert not went_wrong(replace(run, equality=same))
    assert not went_wrong(replace(run, equality=replace(same, equal=2, ties=1)))
    assert went_wrong(replace(run, equality=replace(same, equal=2)))
    assert not went_wrong(replace(run, equality=replace(same, equal=2, expected=False)))


def interrupt_after(answers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Press Ctrl-C in the place of an answer."""
    read, left = measure._read, [answers]

    async def read_or_stop(*arguments: Any) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        await read(*arguments)

    monkeypatch.setattr(measure, "_read", read_or_stop)


def test_an_interrupt_gives_the_answer_so_far(bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(2 + 4, monkeypatch)
    out = tmp_path / "run.json"
    result = bench("--ignore-eos", "--out", str(out))
    assert result.exit_code == EXIT_INTERRUPTED == 130
    run = read_run(out)
    assert (run.stopped, run.complete, run.points[0].whole.prompts) == ("interrupted", False, 2)
    assert "partial: stopped early (interrupted); rests on" in result.stdout
    assert "speed-up" in result.stdout


def test_an_interrupt_before_anything_was_measured_says_so(bench, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_after(1, monkeypatch)
    result = bench("--ignore-eos")
    assert (result.exit_code, result.stdout) == (EXIT_INTERRUPTED, "")
    assert "interrupted before anything was measured" in result.stderr


def test_every_figure_of_an_approximate_rule_says_so(bench) -> None:
    result = bench("--rule", "typical", "-t", "1", "--ignore-eos", "--json")
    (point,) = document(result)["points"]
    assert {group["speculative"]["approximate"] for group in point["groups"]} == {True}
    assert {group["plain"]["approximate"] for group in point["groups"]} == {False}
    told = ("throughput", "acceptance rate", "speculative")
    assert all(f"{name} (approximate)" in result.stdout for name in told)
    assert {"~speed-up", "~spec."} <= set(result.stdout.split())
    assert "warning: The rule typical is approximate" in result.stdout


def test_a_first_look_takes_few_prompts_and_short_answers() -> None:
    assert (len(PromptChoice().read().prompts), len(CorePrompts().read().prompts)) == (16, 16)
    assert ShortSampling().params().max_tokens == 64
    assert len({(prompt.category, prompt.language) for prompt in PromptChoice().read().prompts}) == 16


def test_a_file_of_ones_own_is_taken_whole(tmp_path: Path) -> None:
    path = tmp_path / "many.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"number {at}"}) for at in range(40)))
    assert len(PromptChoice(prompts=str(path)).read().prompts) == 40
