import json
from pathlib import Path

import pytest

from gamaneh.bench.advise.workload import (
    PromptAnswer,
    as_requests,
    guess_language,
    read_exchanges,
    read_traffic,
    spread,
    write_traffic,
)
from gamaneh.errors import InvalidOption


def write(path: Path, *rows: object) -> Path:
    path.write_text("\n".join(json.dumps(row) if not isinstance(row, str) else row for row in rows))
    return path


def exchange(name: str, category: str = "chat", language: str = "en", answer: str | None = None) -> PromptAnswer:
    return PromptAnswer(id=name, category=category, language=language, prompt="abc", answer=answer)


def test_recorded_requests_are_read(tmp_path: Path) -> None:
    rows = (
        {"prompt": "Hi", "answer": "Hello"},
        {"prompt": "x", "answer": "سلام به همه", "id": "b", "category": "chat"},
    )
    first, second = read_traffic(write(tmp_path / "t.jsonl", *rows))
    assert (first.id, first.category, first.language, first.answer) == ("line-1", "recorded", "en", "Hello")
    assert (second.id, second.category, second.language) == ("b", "chat", "fa")


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "must hold at least one recorded request"),
        (("{not json",), "line 1 must be JSON"),
        (("[1]",), "line 1 must be a JSON object"),
        (({"prompt": "a"},), "must have the key answer"),
        (({"prompt": "a", "answer": ""},), "answer must be a text that is not empty"),
        (({"prompt": "a", "answer": "b", "answr": "c"},), "may have the keys prompt, answer, id"),
        (({"prompt": "a", "answer": "b", "id": "x"}, {"prompt": "a", "answer": "b", "id": "x"}), "must be unique"),
    ],
)
def test_what_is_wrong_with_a_file_is_named(tmp_path: Path, rows: tuple[object, ...], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        read_traffic(write(tmp_path / "t.jsonl", *rows))


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"traffic must be a readable UTF-8 file, got .*gone\.jsonl"):
        read_traffic(tmp_path / "gone.jsonl")


def test_what_was_answered_can_be_read_as_traffic(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    written = [exchange("a", answer="one\nline more"), exchange("b", "code", "fa", "سلام"), exchange("c", answer=" ")]
    write_traffic(path, written)
    assert read_traffic(path) == written[:2]


def test_prompts_and_traffic_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="--traffic cannot be used together with --prompts"):
        read_exchanges(tmp_path / "p", tmp_path / "t")


def test_without_files_the_prompts_that_come_along_are_taken() -> None:
    assert {"en", "fa"} <= {one.language for one in read_exchanges(None, None)}


def test_a_limit_leaves_no_category_or_language_out() -> None:
    many = [exchange(str(at)) for at in range(10)] + [exchange("c", "code"), exchange("f", "chat", "fa")]
    assert {(one.category, one.language) for one in spread(many, 3)} == {("chat", "en"), ("code", "en"), ("chat", "fa")}
    assert len(spread(many, None)) == 12


def test_recorded_answers_set_the_length() -> None:
    requests = as_requests(
        [exchange("a", answer="wxyz"), exchange("b"), exchange("c", answer="w" * 50)],
        lambda text: list(text.encode()),
        lambda text: list(text.encode()),
        max_tokens=20,
        max_context=100,
    )
    assert [one.max_tokens for one in requests] == [4, 20, 20]
    assert len(requests[2].answer) == 20


def test_a_prompt_that_fills_the_context_is_named() -> None:
    with pytest.raises(InvalidOption, match="prompt a must leave room for an answer in 4 tokens, got 3"):
        as_requests([exchange("a")], lambda text: [1, 2, 3], lambda text: [], max_tokens=8, max_context=4)


@pytest.mark.parametrize(
    ("text", "language"),
    [("سلام hello دنیا و همه", "fa"), ("Hello سلام world", "en"), ("你好世界", "und"), ("12 34", "und")],
)
def test_languages_are_guessed_by_script(text: str, language: str) -> None:
    assert guess_language(text) == language
