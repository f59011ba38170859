import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gamaneh.cli import pull as pull_command
from gamaneh.cli.main import app
from gamaneh.models.catalogue import lookup, names
from gamaneh.models.sources import Progress

SMOLLM2 = "smollm2-135m-instruct"


def last_json(text: str) -> dict[str, object]:
    values: dict[str, object] = json.loads(text.splitlines()[-1])
    return values


@pytest.fixture
def delivered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A pull that succeeds at once, half by half."""
    path = tmp_path / "model.gguf"

    def pull(name: str, *, source: str, cache: Path | None, progress: Progress) -> Path:
        total = lookup(name).size
        progress(total // 2, total)
        progress(total, total)
        return path

    monkeypatch.setattr(pull_command, "pull", pull)
    return path


def test_models_lists_the_catalogue_with_where_each_lies(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["models", "--cache", str(tmp_path), "--json"])

    models = last_json(result.stdout)["models"]
    assert isinstance(models, list)
    assert [(model["name"], model["path"]) for model in models] == [(name, None) for name in names()]


def test_models_shows_every_name_to_a_person(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["models", "--cache", str(tmp_path)])

    assert all(name in result.stdout for name in names())


def test_models_marks_what_was_pulled(tmp_path: Path) -> None:
    entry = lookup(SMOLLM2)
    with (tmp_path / entry.file).open("wb") as file:
        file.truncate(entry.size)

    result = CliRunner().invoke(app, ["models", "--cache", str(tmp_path)])

    assert [word for word in result.stdout.split() if word in ("yes", "no")] == ["yes", "no", "no"]


def test_pull_prints_the_path_alone_on_standard_output(delivered: Path) -> None:
    result = CliRunner().invoke(app, ["pull", SMOLLM2])

    assert result.stdout == f"{delivered}\n"


def test_pull_shows_its_progress_on_standard_error(delivered: Path) -> None:
    result = CliRunner().invoke(app, ["pull", SMOLLM2])

    assert f"fetching {SMOLLM2}" in result.stderr


def test_pull_puts_one_json_object_on_the_last_line(delivered: Path) -> None:
    result = CliRunner().invoke(app, ["pull", SMOLLM2, "--json"])

    assert last_json(result.stdout) == {
        "name": SMOLLM2,
        "path": str(delivered),
        "size": lookup(SMOLLM2).size,
        "sha256": lookup(SMOLLM2).sha256,
    }
