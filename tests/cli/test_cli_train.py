from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gamaneh.cli.main import app
from gamaneh.cli.train_options import Fitting, HeadsChoice, StudentChoice, TrainingSet
from gamaneh.errors import InvalidOption
from gamaneh.heads.artifact import load_artifact
from gamaneh.models import loading
from gamaneh.models.loading import LoadedModel
from gamaneh.testing import ByteTokenizer, tiny_model
from gamaneh.train.data import read_examples
from gamaneh.train.settings import DataOptions, LoopOptions, StudentOptions

pytestmark = pytest.mark.usefixtures("one_thread")


class PlainBytes(ByteTokenizer):
    backend = SimpleNamespace(chat_template=None)


@pytest.fixture(autouse=True)
def one_tiny_target(monkeypatch: pytest.MonkeyPatch) -> None:
    def load_tiny(model: str, **options: Any) -> LoadedModel:
        return replace(tiny_model("llama"), tokenizer=PlainBytes())  # type: ignore[arg-type]

    monkeypatch.setattr(loading, "load", load_tiny)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps({"prompt": f"question {at}"}) for at in range(8)))
    return path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["train", *arguments], catch_exceptions=False)


def train(kind: str, data: Path, out: Path, *more: str) -> Result:
    quick = (
        "--held-out",
        "2",
        "--answer-tokens",
        "16",
        "--max-length",
        "64",
        "--epochs",
        "2",
        "--precision",
        "float32",
    )
    return run(kind, "-m", "tiny", "-d", str(data), "-o", str(out), "--weights", "float32", *quick, *more)


@pytest.mark.parametrize("kind", ["medusa", "mtp", "eagle", "early-exit"])
def test_heads_are_trained_and_their_figures_printed(data: Path, tmp_path: Path, kind: str) -> None:
    result = train(kind, data, tmp_path / "out", "--depth", "2", "--json")

    assert result.exit_code == 0, result.stderr
    answer = json.loads(result.stdout.splitlines()[-1])
    artifact = load_artifact(tmp_path / "out")
    assert answer["kind"] == artifact.kind == kind.replace("-", "_")
    assert answer["quality"] == artifact.quality
    assert artifact.shape["depth"] == 2
    assert (tmp_path / "out.work" / "answers.jsonl").is_file()


def test_without_json_the_figures_are_a_line(data: Path, tmp_path: Path) -> None:
    result = train("medusa", data, tmp_path / "out", "--shape", "num_blocks=2", "--work", str(tmp_path / "w"))

    assert result.stdout.startswith(f"{tmp_path / 'out'}: survival ")
    assert load_artifact(tmp_path / "out").shape["num_blocks"] == 2


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--shape", "num_blocks"], "--shape must be NAME=VALUE, such as num_blocks=2, got 'num_blocks'"),
        (["--shape", "wings=2"], "wings is not an option of MedusaShape"),
        (["--epochs", "0"], "epochs must be a whole number from 1"),
        (["--held-out", "8"], "held_out must be below the number of different examples (8), got 8"),
        (["--temperature", "-1"], "temperatures must be numbers from 0 to 100"),
        (["--data", "nowhere.jsonl"], "data must be readable UTF-8 files"),
        (["--draft-vocab", "1000"], "draft_vocab must be from 1 to the target's 260, got 1000"),
    ],
)
def test_wrong_options_end_in_one_line(data: Path, tmp_path: Path, arguments: list[str], complaint: str) -> None:
    result = train("medusa", data, tmp_path / "out", *arguments)

    assert (result.exit_code, result.stdout) == (2, "")
    assert complaint in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--start", "target", "--hidden-size", "64"], "--hidden-size needs --start scratch, got 64"),
        (["--sampled-tokens", "8"], "--sampled-tokens needs --on-policy above 0, got 8"),
    ],
)
def test_options_of_the_draft_model_that_would_be_ignored_are_refused(
    data: Path, tmp_path: Path, arguments: list[str], complaint: str
) -> None:
    result = train("distill", data, tmp_path / "out", *arguments)

    assert (result.exit_code, result.stderr.strip()) == (2, f"gamaneh: {complaint}")


def test_a_folder_with_files_is_refused_before_anything_is_computed(data: Path, tmp_path: Path) -> None:
    result = train("distill", data, tmp_path)

    assert (result.exit_code, "out must be a new or an empty folder" in result.stderr) == (2, True)
    assert not tmp_path.with_name(f"{tmp_path.name}.work").exists()


def test_heads_in_the_place_of_a_file_are_refused_before_anything_is_computed(data: Path, tmp_path: Path) -> None:
    result = train("medusa", data, data)

    assert (result.exit_code, "must be a folder or not be there, got a file" in result.stderr) == (2, True)
    assert not data.with_name(f"{data.name}.work").exists()


def test_prompts_are_written_for_training(tmp_path: Path) -> None:
    out = tmp_path / "fa.jsonl"

    result = run("prompts", "--category", "persian", "-n", "12", "-o", str(out))

    assert result.stdout == f"12 prompts in {out}\n"
    assert {example.category for example in read_examples([out])} == {"persian"}


def test_an_unknown_category_is_refused(tmp_path: Path) -> None:
    result = run("prompts", "--category", "latin", "-o", str(tmp_path / "x.jsonl"))

    assert (result.exit_code, "--category must be one of chat" in result.stderr) == (2, True)


def test_options_that_are_not_given_keep_their_one_default(tmp_path: Path) -> None:
    chosen = TrainingSet(model="m", data=[], out=tmp_path)

    assert (chosen.options(), Fitting().options()) == (DataOptions(), LoopOptions())
    assert (StudentChoice().options(), HeadsChoice().values()) == (StudentOptions(), {})


def test_every_option_reaches_its_place(tmp_path: Path) -> None:
    chosen = TrainingSet(
        model="m",
        data=[],
        out=tmp_path,
        max_length=100,
        held_out=5,
        answer_tokens=20,
        temperature=[0.5],
        answer_batch=4,
        answer_minutes=2.5,
    )
    fitting = Fitting(epochs=2, minutes=1, batch_tokens=99, learning_rate=0.5, warmup=0.5, weight_decay=0.5, patience=3)

    assert chosen.options(seed=7) == DataOptions(
        max_length=100,
        held_out=5,
        answer_tokens=20,
        temperatures=(0.5,),
        answer_batch=4,
        answer_minutes=2.5,
        seed=7,
    )
    assert fitting.options() == LoopOptions(
        epochs=2, minutes=1, batch_tokens=99, learning_rate=0.5, warmup=0.5, weight_decay=0.5, patience=3
    )


@pytest.mark.parametrize(
    ("text", "value"), [("form=chained", "chained"), ("shared=true", True), ("hidden_layers=[1,2]", [1, 2])]
)
def test_parts_of_a_shape_are_read_as_json_or_text(text: str, value: object) -> None:
    assert HeadsChoice(shape=[text]).values() == {text.split("=")[0]: value}


def test_a_part_of_a_shape_without_a_name_is_refused() -> None:
    with pytest.raises(InvalidOption, match="must be NAME=VALUE"):
        HeadsChoice(shape=["=3"])
