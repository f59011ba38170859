from __future__ import annotations

import json
import logging
import os
import stat
from pathlib import Path

import pytest

from gamaneh.errors import InvalidOption
from gamaneh.proposers import suffix_journal as journal_module
from gamaneh.proposers.suffix_journal import Journal

ANSWERS = [("a", [1, 2, 3]), ("b", [7]), ("a", [0, 99])]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "answers.jsonl"


def make_journal(path: Path, tokenizer: str = "t", vocab_size: int = 100) -> Journal:
    return Journal(path, tokenizer, vocab_size)


def written(path: Path) -> Journal:
    journal = make_journal(path)
    list(journal.read())
    for owner, tokens in ANSWERS:
        journal.append(owner, tokens)
    return journal


def read(path: Path) -> list[tuple[str, list[int]]]:
    return [(owner, list(tokens)) for owner, tokens in make_journal(path).read()]


def test_what_was_written_is_read_again(path: Path) -> None:
    written(path)
    assert read(path) == ANSWERS


def test_a_file_that_is_not_there_is_made_at_once(path: Path) -> None:
    assert read(path) == []
    assert path.exists()


def test_the_file_is_its_owners_alone(path: Path) -> None:
    written(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_two_processes_may_append(path: Path) -> None:
    first, second = written(path), make_journal(path)
    second.append("c", [5])
    first.append("d", [6])
    assert read(path) == [*ANSWERS, ("c", [5]), ("d", [6])]


def test_a_line_that_was_not_finished_is_cut_off(path: Path) -> None:
    written(path)
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"owner":"a","check')
    assert read(path) == ANSWERS
    assert path.read_bytes() == whole


def test_rewriting_replaces_the_file(path: Path) -> None:
    written(path).rewrite([("z", [4])])
    assert read(path) == [("z", [4])]
    assert list(path.parent.iterdir()) == [path]


def test_a_rewrite_that_fails_leaves_the_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = written(path)

    def full(self: Path, target: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(InvalidOption, match=r"suffix_store must be a file that can be written .*No space left"):
        journal.rewrite([("z", [4])])
    assert read(path) == ANSWERS
    assert list(path.parent.iterdir()) == [path]


def test_a_full_disk_ends_the_writing_and_leaves_whole_lines(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    journal = written(path)
    write = os.write
    monkeypatch.setattr(journal_module.os, "write", lambda file, data: write(file, data[: len(data) // 2]))
    with caplog.at_level(logging.WARNING):
        journal.append("d", [6, 7, 8])
        journal.append("e", [6, 7, 8])
    monkeypatch.undo()
    assert read(path) == ANSWERS
    assert [str(path) in record.getMessage() for record in caplog.records] == [True]


def damage(path: Path, number: int, **values: object) -> None:
    """Change keys of one line; None leaves one out."""
    lines = path.read_text().splitlines()
    row = json.loads(lines[number - 1]) | values
    lines[number - 1] = json.dumps({key: value for key, value in row.items() if value is not None})
    path.write_text("".join(f"{line}\n" for line in lines))


@pytest.mark.parametrize(
    ("number", "values", "message"),
    [
        (1, {"format": "else"}, "must have the format 'gamaneh suffix store' in the first line of .*, got 'else'"),
        (1, {"version": 2}, "must have the version 1 in the first line of .*, got 2"),
        (1, {"tokenizer": "u"}, "must have the tokenizer 't' in the first line of .*, got 'u'"),
        (1, {"vocab_size": 9}, "must have the vocab_size 100 in the first line of .*, got 9"),
        (1, {"version": None}, "must have the version 1 in the first line of .*, got None"),
        (3, {"tokens": [8]}, "must hold answers with their checksums, line 3"),
        (3, {"checksum": 5}, "must hold answers with their checksums, line 3"),
        (3, {"tokens": [100]}, "must hold answers with their checksums, line 3"),
        (3, {"tokens": [-1]}, "must hold answers with their checksums, line 3"),
        (3, {"tokens": ["8"]}, "must hold answers with their checksums, line 3"),
        (3, {"tokens": None}, "must hold answers with their checksums, line 3"),
        (3, {"owner": None}, "must hold answers with their checksums, line 3"),
    ],
)
def test_a_damaged_file_is_refused(path: Path, number: int, values: dict[str, object], message: str) -> None:
    written(path)
    damage(path, number, **values)
    with pytest.raises(InvalidOption, match=f"suffix_store {message}"):
        read(path)


@pytest.mark.parametrize(
    ("line", "message"),
    [("no json", "must be JSON in line 5"), ("[1, 2]", "must have an object in line 5")],
)
def test_a_line_that_is_none_of_ours_is_refused(path: Path, line: str, message: str) -> None:
    written(path)
    path.write_text(f"{path.read_text()}{line}\n")
    with pytest.raises(InvalidOption, match=f"suffix_store {message}"):
        read(path)


def test_a_file_that_is_no_text_is_refused(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\n")
    with pytest.raises(InvalidOption, match="suffix_store must be a readable file of a store"):
        read(path)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"suffix_store must be a file that can be written .*No such file"):
        read(tmp_path / "none" / "answers.jsonl")
