"""Folders that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from gamaneh.errors import ModelError
from gamaneh.files import whole_folder


def write(folder: Path, text: str) -> None:
    with whole_folder(folder) as fresh:
        (fresh / "text").write_text(text, encoding="utf-8")


def entries(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_new_folder_and_those_above_it_are_made(tmp_path: Path) -> None:
    write(tmp_path / "above" / "made", "new")

    assert (tmp_path / "above" / "made" / "text").read_text(encoding="utf-8") == "new"
    assert entries(tmp_path / "above") == ["made"]


def test_a_folder_that_is_there_is_replaced_whole(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    (made / "more").touch()
    write(made, "new")

    assert (entries(tmp_path), entries(made)) == (["made"], ["text"])


def test_what_fails_on_the_way_leaves_everything_as_it_was(tmp_path: Path) -> None:
    made = tmp_path / "made"
    write(made, "old")
    with pytest.raises(ZeroDivisionError), whole_folder(made) as fresh:
        (fresh / "text").write_text("new", encoding="utf-8")
        raise ZeroDivisionError

    assert (entries(tmp_path), (made / "text").read_text(encoding="utf-8")) == (["made"], "old")


def test_what_is_there_is_not_lost_where_the_new_one_cannot_get_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, rename = tmp_path / "made", Path.rename
    write(made, "old")

    def break_at_the_second(path: Path, to: Path) -> Path:
        if path.name.endswith(".part"):
            raise OSError(28, "No space left on device")
        return rename(path, to)

    monkeypatch.setattr(Path, "rename", break_at_the_second)
    with pytest.raises(ModelError, match=r"made must be writable and its disk have room"):
        write(made, "new")

    assert [(path / "text").read_text(encoding="utf-8") for path in tmp_path.iterdir()] == ["old"]


def test_remains_of_a_write_that_was_cut_off_do_not_get_in(tmp_path: Path) -> None:
    (tmp_path / ".made.part").mkdir()
    (tmp_path / ".made.part" / "half").touch()
    write(tmp_path / "made", "new")

    assert (entries(tmp_path), entries(tmp_path / "made")) == (["made"], ["text"])
