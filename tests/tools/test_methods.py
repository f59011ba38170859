"""The table of methods on tiny models. What is measured is checked, never how much."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from gamaneh.bench.machine import describe_machine
from gamaneh.bench.prompt_set import Prompt, load_set
from gamaneh.bench.result import Interval
from gamaneh.engine.llm import LLM
from gamaneh.errors import InvalidOption
from gamaneh.heads.artifact import Artifact, mark_target, save_artifact
from gamaneh.models.loading import LoadedModel
from gamaneh.testing import ByteTokenizer, tiny_model
from tools.methods import __main__ as program
from tools.methods import entry, instant
from tools.methods.entry import Entry, parse_entry
from tools.methods.figures import ALL, Row, TargetFigures
from tools.methods.measure import MethodsBench
from tools.methods.plan import CATEGORIES, Effort, Method, Parts, choose, choose_cases, group_of, methods_of
from tools.methods.table import BEGIN, END, put_into, tables

EFFORT = Effort(prompts=1, tokens=12, fixed_tokens=8, draft_length=3, categories=("chat", "persian"))
PROMPTS = [
    Prompt("chat-1", "chat", "en", "tick tock tick tock"),
    Prompt("chat-2", "chat", "en", "Hello"),
    Prompt("chat-3", "chat", "fa", "سلام"),
    Prompt("code-1", "code", "en", "def add(a, b):"),
]


class PlainBytes(ByteTokenizer):
    """A byte tokenizer that has no chat template."""

    backend = SimpleNamespace(chat_template=None)


def tiny(seed: int = 0) -> LoadedModel:
    return replace(tiny_model(seed=seed), tokenizer=PlainBytes())  # type: ignore[arg-type]


SHIPPED_FOR = "smollm2-135m-instruct"
PARTS = Parts(tiny(), {"small": tiny(seed=1)})


@pytest.fixture(scope="module")
def figures() -> TargetFigures:
    names = ["lookup", "draft_model", "medusa", "portfolio"]
    return MethodsBench(PARTS, PROMPTS, EFFORT, lambda what: None).run(names)


def test_every_method_is_measured_on_every_category_at_every_temperature(figures: TargetFigures) -> None:
    cells = [(row.method, row.category, row.temperature) for row in figures.rows]
    methods = ("lookup", "draft model small", "draft model small, trees", "portfolio")
    expected = {(m, c, t) for m in methods for c in ("chat", "persian", ALL) for t in (0.0, 1.0)}
    assert (len(cells), set(cells)) == (len(expected), expected)


def test_no_method_changes_an_answer(figures: TargetFigures) -> None:
    assert [row.differing for row in figures.rows] == [0] * len(figures.rows)


def test_what_a_draft_and_its_verify_cost_is_told_where_there_was_one(figures: TargetFigures) -> None:
    rows = [row for row in figures.rows if row.method == "draft model small"]
    assert all(row.draft_cost and row.verify_cost and row.speedup for row in rows)
    assert all(len(row.survival) == EFFORT.draft_length for row in rows)
    assert all(1.0 >= one >= other >= 0.0 for row in rows for one, other in pairwise(row.survival))


def test_the_memory_that_each_method_adds_is_told(figures: TargetFigures) -> None:
    assert figures.memory_bytes["draft model small"] > PARTS.drafts["small"].weight_bytes
    assert figures.memory_bytes["lookup"] < figures.memory_bytes["draft model small"]


def test_a_method_that_lacks_something_is_left_out_with_the_reason(figures: TargetFigures) -> None:
    assert list(figures.left_out) == ["medusa"]
    assert "heads" in figures.left_out["medusa"]


def test_no_engine_answers_a_prompt_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store of earlier answers must not know the answer."""
    asked: list[tuple[int, tuple[int, ...]]] = []
    generate = LLM.generate

    def noted(self: LLM, prompts: Any, *more: Any, **named: Any) -> Any:
        if self.speculation.proposer != "none":
            asked.append((id(self), tuple(prompts[0])))
        return generate(self, prompts, *more, **named)

    monkeypatch.setattr(LLM, "generate", noted)
    MethodsBench(PARTS, PROMPTS, replace(EFFORT, temperatures=(0.0,)), lambda what: None).run(["suffix"])
    assert asked
    assert len(asked) == len(set(asked))


def test_methods_follow_from_what_a_target_has() -> None:
    alone, pair = methods_of(Parts(tiny())), methods_of(PARTS)
    assert {"lookup", "suffix", "auto"} <= {method.name for method in alone}
    assert not {"draft model small", "portfolio"} & {method.name for method in alone}
    assert {"draft model small", "portfolio"} <= {method.name for method in pair}


def test_drafts_that_can_branch_are_measured_as_trees_too() -> None:
    methods = {method.name: method for method in methods_of(PARTS)}
    trees = methods["draft model small, trees"]
    assert trees.open(PARTS, 3).engine.proposers["draft_model"].needs.branching > 1
    assert methods["draft model small"].open(PARTS, 3).engine.proposers["draft_model"].needs.branching == 1


def test_methods_can_be_chosen_by_name_and_by_proposer() -> None:
    methods = [
        Method("lookup", "lookup"),
        Method("draft model a", "draft_model"),
        Method("draft model b", "draft_model"),
    ]
    assert [method.name for method in choose(methods, ["draft_model"])] == ["draft model a", "draft model b"]
    assert [method.name for method in choose(methods, ["draft model b", "lookup"])] == ["lookup", "draft model b"]
    with pytest.raises(InvalidOption, match="--methods must be among lookup, draft model a, draft model b, got 'luck'"):
        choose(methods, ["luck"])


def test_an_engine_holds_only_what_its_method_needs() -> None:
    assert "draft_model" not in Method("lookup", "lookup").open(PARTS, 3).engine.proposers


def test_persian_prompts_are_a_category_of_their_own() -> None:
    assert [group_of(prompt) for prompt in PROMPTS] == ["chat", "chat", "persian", "code"]


def test_prompts_are_chosen_by_category_in_turns() -> None:
    llm = Method("plain", "none").open(PARTS, None)
    cases = choose_cases(llm, PROMPTS, replace(EFFORT, prompts=2))
    assert [case.id for case in cases] == ["chat-1", "chat-3", "chat-2"]
    with pytest.raises(InvalidOption, match="--categories must be among those of the prompts, got 'editing'"):
        choose_cases(llm, PROMPTS, replace(EFFORT, categories=("editing",)))


def test_the_set_that_comes_along_has_every_category() -> None:
    groups = [group_of(prompt) for prompt in load_set(program.PROMPT_SET)]
    assert all(groups.count(category) >= Effort().prompts for category in CATEGORIES)


ROW = Row("lookup", "chat", 0.0, 3, Interval(1.234, 1.1, 1.4), 1.5, (0.9, 0.8, 0.5), 0.012, None, 1)


def test_the_table_shows_every_figure() -> None:
    rows = [ROW, replace(ROW, temperature=1.0, speedup=None)]
    one = TargetFigures(
        "big", [], "float32", True, 2, rows, {"lookup": 2_500_000}, {"mtp": "no heads"}, {"0": 9, "1": 8}
    )
    text = tables([one], Effort(), describe_machine(), "2026-01-01")
    assert "| lookup | chat | 0.90 | 0.80 | - | - | 1.50 | 0.01 | - | 1.23 [1.10, 1.40] | 1 of 3 |" in text
    assert "| lookup | chat | 0.90 | 0.80 | - | - | 1.50 | 0.01 | - | - | 1 of 3 |" in text
    assert "| lookup | 2.5 |" in text
    assert "- mtp: no heads" in text
    assert "Greedy. Plain decoding makes 9.0 tokens/s." in text


def test_figures_are_put_between_the_two_lines_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# Title\n\n{BEGIN}\nold\n{END}\nend\n")
    for text in ("new", "newer"):
        put_into(page, text)
    assert page.read_text() == f"# Title\n\n{BEGIN}\n\nnewer\n\n{END}\nend\n"


@pytest.mark.parametrize("text", ["no line", f"only {BEGIN}", None])
def test_a_page_without_the_lines_is_refused(tmp_path: Path, text: str | None) -> None:
    page = tmp_path / "page.md"
    if text is not None:
        page.write_text(text)
    with pytest.raises(InvalidOption, match="--markdown must be a page"):
        put_into(page, "new")
    assert not page.exists() or page.read_text() == text


@pytest.fixture
def own_heads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Medusa heads in a folder; models are found under any name."""
    monkeypatch.setattr(entry, "resolve", lambda name: Path(name))
    save_artifact(Artifact("medusa", {}, mark_target(tiny()), {"w": torch.zeros(1)}), tmp_path / "own")
    return tmp_path / "own"


def test_what_stands_behind_a_target_is_a_draft_model_or_heads(own_heads: Path) -> None:
    assert parse_entry(f"big,small,{own_heads}") == Entry("big", ("small",), (str(own_heads),))


def test_heads_that_come_along_give_way_to_others_of_their_kind(own_heads: Path) -> None:
    assert parse_entry(SHIPPED_FOR).heads == (f"{SHIPPED_FOR}/eagle", f"{SHIPPED_FOR}/medusa")
    assert parse_entry(f"{SHIPPED_FOR},{own_heads}").heads == (str(own_heads), f"{SHIPPED_FOR}/eagle")


def test_heads_that_others_published_take_the_place_of_their_kind_as_well(own_heads: Path, tmp_path: Path) -> None:
    published = tmp_path / "published"
    published.mkdir()
    (published / "config.json").write_text('{"speculators_model_type": "eagle3"}')
    assert parse_entry(f"{SHIPPED_FOR},{published}").heads == (str(published), f"{SHIPPED_FOR}/medusa")


@pytest.mark.parametrize("text", ["", "big,", "big,,small"])
def test_empty_names_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption, match="--targets must be names separated by single commas"):
        parse_entry(text)


def test_a_model_that_is_nowhere_is_told_before_anything_is_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--targets", "absent.gguf"]) == 2
    assert "absent.gguf" in capsys.readouterr().err


@pytest.fixture
def tiny_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(program, "parse_entry", lambda text: Entry(text, (), ()))
    monkeypatch.setattr(Entry, "open", lambda entry, weights: PARTS)


@pytest.mark.usefixtures("tiny_program")
def test_the_program_writes_page_and_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page, data, prompts = tmp_path / "page.md", tmp_path / "data.json", tmp_path / "prompts.jsonl"
    page.write_text(f"{BEGIN}{END}\n")
    prompts.write_text('{"id": "a", "category": "chat", "language": "en", "prompt": "tick tock"}\n')
    choice = ["--targets", "tiny", "--methods", "lookup", "--categories", "chat", "--prompt-file", str(prompts)]
    assert program.main([*choice, "--quick", "--markdown", str(page), "--json", str(data)]) == 0
    document = json.loads(data.read_text())
    assert [row["method"] for row in document["targets"][0]["rows"]] == ["lookup"] * 4
    assert document["effort"]["tokens"] == program.QUICK.tokens
    assert "| lookup | chat |" in page.read_text()
    assert "| lookup | chat |" in capsys.readouterr().out


@pytest.mark.usefixtures("tiny_program")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "1"], "--tokens must be at least 2, got 1"),
        (["--prompts", "0"], "--prompts must be at least 1, got 0"),
        (["--categories", "verse"], f"--categories must be among {', '.join(CATEGORIES)}, got 'verse'"),
        (["--methods", "luck"], "--methods must be among"),
        (["--prompt-file", "absent.jsonl"], "absent.jsonl"),
    ],
)
def test_a_wrong_option_is_one_line(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_drafts_without_a_model_are_timed_in_a_long_context() -> None:
    text = [at * at % 251 for at in range(400 + instant.EMITTED * (instant.STEPS + 1))]
    built = Method("suffix", "suffix").open(PARTS, 1).engine.proposers
    costs = list(instant.instant_costs(built, text, 400))
    assert {cost.proposer for cost in costs} == {"lookup", "suffix"}
    assert all(cost.read_seconds > 0 and cost.step_seconds > 0 for cost in costs)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--context", "0"], "--context must be at least 1"), (["--model", "absent.gguf"], "absent")],
)
def test_a_wrong_option_of_the_timing_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert instant.main(arguments) == 2
    assert message in capsys.readouterr().err


def test_the_timing_says_what_a_draft_is_to_a_forward(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened = Method("suffix", "suffix").open(PARTS, 1)
    monkeypatch.setattr(instant, "LLM", lambda model, **more: opened)
    assert instant.main(["--context", "60"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == ["60 tokens of context", "lookup", "suffix"]
