import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gamaneh.cli.main import app


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["report", *arguments])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("nonsense", "must be a readable JSON file"),
        ("{}", "must be a result of `gamaneh bench`"),
        (json.dumps({"format": "gamaneh.bench", "version": 99}), "must be of version 1, got 99"),
        (json.dumps({"format": "gamaneh.bench", "version": 1}), "run.json name field required"),
    ],
)
def test_a_file_that_is_no_run_is_refused_by_name(content: str, message: str, tmp_path: Path) -> None:
    file, page = tmp_path / "run.json", tmp_path / "page.html"
    file.write_text(content)
    result = run(str(file), "--html", str(page))
    assert result.exit_code == 2
    assert str(file) in result.stderr and message in result.stderr
    assert not page.exists()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    result = run(str(tmp_path / "absent.json"), "--html", str(tmp_path / "page.html"))
    assert result.exit_code == 2 and "absent.json" in result.stderr


def test_an_unknown_language_is_refused(tmp_path: Path) -> None:
    result = run("absent.json", "--html", str(tmp_path / "page.html"), "--language", "xx")
    assert (result.exit_code, result.stderr) == (2, "gamaneh: language must be one of en, fa, got 'xx'\n")


def test_where_to_write_must_be_said() -> None:
    result = run("absent.json")
    assert result.exit_code == 2 and "--html" in result.stderr
