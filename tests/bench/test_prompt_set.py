import json
from collections import Counter
from pathlib import Path

import pytest

from gamaneh.bench.prompt_set import Prompt, hash_prompts, load_prompts, load_set
from gamaneh.errors import InvalidOption

ROW = {"id": "a", "category": "chat", "language": "en", "prompt": "Hello?"}


def write(folder: Path, *lines: object) -> Path:
    path = folder / "set.jsonl"
    path.write_text("".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines))
    return path


def test_the_core_set_has_five_prompts_of_each_category() -> None:
    assert Counter(prompt.category for prompt in load_prompts()) == {"code": 5, "chat": 5, "editing": 5, "persian": 5}


def test_persian_prompts_are_written_in_arabic_script() -> None:
    persian = [prompt.prompt for prompt in load_prompts() if prompt.language == "fa"]

    assert all(sum("\u0600" <= letter <= "\u06ff" for letter in text) > len(text) / 2 for text in persian)


def test_a_line_becomes_a_prompt(tmp_path: Path) -> None:
    path = write(tmp_path, {**ROW, "reference": "Hello."})

    assert load_prompts(path) == [Prompt("a", "chat", "en", "Hello?", "Hello.")]


def test_blank_lines_are_skipped(tmp_path: Path) -> None:
    assert len(load_prompts(write(tmp_path, ROW, "", {**ROW, "id": "b"}))) == 2


def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps({**ROW, "prompt": "one\u2028two"}, ensure_ascii=False))

    assert load_prompts(path)[0].prompt == "one\u2028two"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{not json", r"set.jsonl line 2 must be JSON .*\{not json"),
        ("[1, 2]", r"set.jsonl line 2 must be a JSON object, got '\[1, 2\]'"),
        ({**ROW, "id": "b", "promt": "x"}, r"line 2 may have the keys id, .*, got 'promt'"),
        ({"id": "b"}, r"line 2 must have the key category, got \['id'\]"),
        ({**ROW, "id": "b", "prompt": " "}, r"line 2 prompt must be a text that is not empty, got ' '"),
        ({**ROW, "id": 7}, r"line 2 id must be a text that is not empty, got 7"),
        (ROW, r"set.jsonl id must be unique in the file, got 'a'"),
    ],
)
def test_a_broken_line_is_refused_with_file_line_rule_and_value(tmp_path: Path, line: object, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        load_prompts(write(tmp_path, ROW, line))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"set.jsonl must hold at least one prompt"):
        load_prompts(write(tmp_path))


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"prompts must be a readable UTF-8 file, got '.*absent.jsonl'"):
        load_prompts(tmp_path / "absent.jsonl")


def test_a_file_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latin.jsonl"
    path.write_bytes(b"\xff\xfe")

    with pytest.raises(InvalidOption, match="readable UTF-8 file"):
        load_prompts(path)


CATEGORIES = {"chat", "code", "editing", "summarising", "extraction", "maths", "translation", "creative"}


@pytest.mark.parametrize("language", ["en", "fa"])
def test_the_full_set_has_every_category_in_both_languages_short_and_long(language: str) -> None:
    chosen = [prompt for prompt in load_set("full") if prompt.language == language]

    assert {(prompt.category, prompt.length) for prompt in chosen} == {
        (category, length) for category in CATEGORIES for length in ("short", "long")
    }
    assert len(chosen) >= 24


def test_persian_prompts_of_the_full_set_are_persian() -> None:
    for prompt in load_set("full"):
        assert ("ی" in prompt.prompt) == (prompt.language == "fa"), prompt.id


def test_ids_are_unique_in_the_whole_set() -> None:
    ids = [prompt.id for prompt in load_set("full")]

    assert len(set(ids)) == len(ids)


def test_the_hash_tells_order_and_text() -> None:
    one, other = hash_prompts(["a", "b"]), hash_prompts(["b", "a"])

    assert one != other != hash_prompts(["ba"])
    assert one == hash_prompts(["a", "b"])
