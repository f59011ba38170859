import json
from collections import Counter
from pathlib import Path

import pytest

from gamaneh.bench.prompt_set import (
    Prompt,
    PromptFile,
    guess_language,
    hash_prompts,
    load_prompts,
    load_set,
    read_prompts,
    select,
)
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


SPEC_BENCH = [
    {"question_id": 81, "category": "writing", "turns": ["Compose a post.", "Rewrite it."]},
    {"question_id": 82, "category": "math", "turns": ["What is 2 + 2?"], "reference": ["4"]},
]
SHARE_GPT = [
    {"id": "a", "conversations": [{"from": "human", "value": "Hello?"}, {"from": "gpt", "value": "Hi."}]},
    {"id": "b", "conversations": [{"from": "gpt", "value": "I begin."}]},
    {"id": "c", "conversations": []},
]
OURS = {"id": "x", "category": "code", "language": "en", "prompt": "Write it."}


def lines(folder: Path, *rows: object) -> str:
    path = folder / "prompts.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return str(path)


def whole(folder: Path, rows: object) -> str:
    path = folder / "prompts.json"
    path.write_text(rows if isinstance(rows, str) else json.dumps(rows))
    return str(path)


def test_spec_bench_and_mt_bench_give_their_first_turns(tmp_path: Path) -> None:
    assert read_prompts(lines(tmp_path, *SPEC_BENCH)).prompts == [
        Prompt("81", "writing", "en", "Compose a post."),
        Prompt("82", "math", "en", "What is 2 + 2?"),
    ]


def test_of_conversations_those_that_a_person_begins_are_taken(tmp_path: Path) -> None:
    assert read_prompts(whole(tmp_path, SHARE_GPT)).prompts == [Prompt("a", "conversation", "en", "Hello?")]


def test_plain_lines_need_nothing_but_a_text(tmp_path: Path) -> None:
    found = read_prompts(lines(tmp_path, {"prompt": "سلام، چطوری؟"}, {"text": "Hello?", "id": 7, "category": "chat"}))
    assert [(each.category, each.language, each.prompt) for each in found.prompts] == [
        ("all", "fa", "سلام، چطوری؟"),
        ("chat", "en", "Hello?"),
    ]
    assert found.prompts[1].id == "7"


def test_our_own_lines_are_read_strictly(tmp_path: Path) -> None:
    assert read_prompts(lines(tmp_path, OURS)).prompts == [Prompt("x", "code", "en", "Write it.")]
    with pytest.raises(InvalidOption, match="line 1 may have the keys"):
        read_prompts(lines(tmp_path, {**OURS, "promt": "typo"}))


def test_a_trace_has_times(tmp_path: Path) -> None:
    found = read_prompts(lines(tmp_path, {"prompt": "a", "at": 0}, {"prompt": "b", "at": 1.5}))
    assert found.recorded == [0.0, 1.5]


def test_sets_that_come_along_have_names() -> None:
    assert len(read_prompts("core").prompts) == 20
    assert read_prompts("full").source == "full"


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "must hold at least one prompt, got 0"),
        (({"words": "x"},), r"line 1 must have one of the keys turns, conversations, prompt, text, got \['words'\]"),
        (({"turns": [], "question_id": 1},), r"line 1 turns must be a list of at least one question, got \[\]"),
        (({"turns": [7], "question_id": 1},), "line 1 turns must be a text that is not empty, got 7"),
        (({"prompt": "a"}, {"prompt": " "}), "line 2 prompt must be a text that is not empty, got ' '"),
        (({"prompt": "a"}, "{broken"), "line 2 must be JSON"),
        (
            ({"prompt": "a", "at": 1}, {"prompt": "b", "at": "soon"}),
            "line 2 at must be seconds, at least 0, got 'soon'",
        ),
        (({"prompt": "a", "id": 1}, {"prompt": "b", "id": 1}), "id must be unique in the file, got '1'"),
    ],
)
def test_a_broken_file_is_refused_with_line_rule_and_value(tmp_path: Path, rows: tuple, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        read_prompts(lines(tmp_path, *rows))


@pytest.mark.parametrize(
    ("rows", "message"),
    [("[{", "must be JSON"), ([3], "entry 1 must be a JSON object, got 3"), (SHARE_GPT[1:], "that a person begins")],
)
def test_a_broken_list_is_refused(tmp_path: Path, rows: object, message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        read_prompts(whole(tmp_path, rows))


def test_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"must be core, full or a file that is there, got 'nowhere\.jsonl'"):
        read_prompts("nowhere.jsonl")


def test_languages_are_told_by_their_letters() -> None:
    assert (guess_language("Write in Persian: سلام"), guess_language("تابع sort را بنویس")) == ("en", "fa")
    assert guess_language("12 + 3") == "en"


class TestSelect:
    FILE = PromptFile(
        "f", [Prompt(f"{at}", "abcd"[at // 3], "en" if at % 2 else "fa", "?") for at in range(12)], list(range(12))
    )

    def test_a_limit_takes_prompts_of_every_category(self) -> None:
        chosen = select(self.FILE, (), (), 4)
        assert [prompt.category for prompt in chosen.prompts] == ["a", "b", "c", "d"]
        assert chosen.recorded == [0, 3, 6, 9]

    def test_categories_and_languages_are_kept(self) -> None:
        chosen = select(self.FILE, ["b"], ["en"], None)
        assert [prompt.id for prompt in chosen.prompts] == ["3", "5"]

    def test_an_unknown_category_is_refused(self) -> None:
        with pytest.raises(InvalidOption, match="category must be one of a, b, c, d, got 'maths'"):
            select(self.FILE, ["maths"], (), None)
