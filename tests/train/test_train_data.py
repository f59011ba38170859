from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from tiny_training import ChatBytes, PlainBytes

from gamaneh.errors import InvalidOption
from gamaneh.train.data import Example, read_examples
from gamaneh.train.samples import different, finished_samples, questions, split_held_out

pytestmark = pytest.mark.usefixtures("one_thread")


def write(path: Path, *lines: object) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def test_prompts_conversations_and_texts_are_read(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    path = write(
        tmp_path / "a.jsonl",
        {"prompt": "why?", "category": "chat"},
        {"messages": turns, "id": 3},
        {"text": "a text"},
        "",
    )

    assert read_examples([path]) == [
        Example.from_prompt("why?", "chat"),
        Example(messages=tuple(turns)),
        Example(text="a text"),
    ]


def test_a_file_that_is_no_jsonl_is_one_text(tmp_path: Path) -> None:
    path = write(tmp_path / "book.txt", "one line", "another")

    assert read_examples([path]) == [Example(text="one line\nanother")]


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("{", "must be JSON"),
        ("3", "exactly one of prompt, messages, text"),
        ({}, "exactly one of prompt, messages, text"),
        ({"prompt": "a", "text": "b"}, "exactly one of prompt, messages, text"),
        ({"prompt": " "}, "prompt must be a text that is not empty"),
        ({"text": 3}, "text must be a text that is not empty"),
        ({"prompt": "a", "category": 4}, "category must be a text"),
        ({"messages": []}, "must be a list of turns"),
        ({"messages": [{"role": "robot", "content": "a"}]}, "a role among system, user, assistant"),
        ({"messages": [{"role": "user"}]}, "content must be a text that is not empty, got None"),
    ],
)
def test_a_broken_line_is_named_with_its_rule(tmp_path: Path, line: object, complaint: str) -> None:
    path = write(tmp_path / "a.jsonl", {"prompt": "fine"}, line)

    with pytest.raises(InvalidOption, match=complaint) as caught:
        read_examples([path])
    assert "a.jsonl line 2" in str(caught.value)


@pytest.mark.parametrize("name", ["empty.jsonl", "empty.txt"])
def test_data_without_a_usable_line_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidOption, match="at least one usable line"):
        read_examples([write(tmp_path / name, "", " ")])


def test_a_missing_file_and_a_file_of_bytes_are_refused(tmp_path: Path) -> None:
    binary = tmp_path / "b.jsonl"
    binary.write_bytes(b"\xff\xfe")

    for path in (binary, tmp_path / "nowhere.jsonl"):
        with pytest.raises(InvalidOption, match="must be readable UTF-8 files"):
            read_examples([path])


def test_the_same_examples_are_held_out_in_any_order_and_none_is_on_both_sides() -> None:
    given = [Example.from_prompt(f"{number % 10}") for number in range(30)]

    train, held_out = split_held_out(given, 3)
    again = split_held_out(given[::-1], 3)[1]

    assert len(train) + len(held_out) == 30
    assert {example.prompt for example in held_out} == {example.prompt for example in again}
    assert not {example.prompt for example in train} & {example.prompt for example in held_out}


def test_as_many_held_out_examples_as_there_are_is_refused() -> None:
    with pytest.raises(InvalidOption, match=r"held_out must be below the number of different examples \(2\), got 2"):
        split_held_out([Example.from_prompt("a"), Example.from_prompt("b")], 2)


def test_all_answers_of_a_conversation_are_learned_from_and_nothing_else() -> None:
    turns = ("user", "ab"), ("assistant", "cd"), ("user", "e"), ("assistant", "fg")
    example = Example(messages=tuple({"role": role, "content": content} for role, content in turns))
    tokenizer = ChatBytes()

    (sample,) = finished_samples([example], tokenizer, max_length=100)  # type: ignore[arg-type]
    learned = [tokenizer.decode(sample.tokens[start:stop], skip_special=False) for start, stop in sample.spans]

    assert learned == ["cd<257>", "fg<257>"]


def test_an_answer_that_the_template_renders_in_another_way_is_only_read() -> None:
    class Forgetful(ChatBytes):
        def _turn(self, role: str, content: str) -> list[int]:
            return super()._turn(role, "..." if role == "assistant" else content)

    turns = ("user", "ab"), ("assistant", "cd"), ("user", "e"), ("assistant", "fg")
    example = Example(messages=tuple({"role": role, "content": content} for role, content in turns))

    (sample,) = finished_samples([example], Forgetful(), max_length=100)  # type: ignore[arg-type]

    assert len(sample.spans) == 1


def test_an_earlier_answer_is_found_where_a_prompt_ends_in_a_marker_of_thinking() -> None:
    class Thinking(ChatBytes):
        def chat(self, messages: Sequence[Mapping[str, str]]) -> list[int]:
            return [*super().chat(messages), *b"<>"]

    turns = ("user", "ab"), ("assistant", "cd"), ("user", "e"), ("assistant", "fg")
    example = Example(messages=tuple({"role": role, "content": content} for role, content in turns))
    tokenizer = Thinking()

    (sample,) = finished_samples([example], tokenizer, max_length=100)  # type: ignore[arg-type]
    learned = [tokenizer.decode(sample.tokens[start:stop], skip_special=False) for start, stop in sample.spans]

    assert learned == ["cd<257>", "fg<257>"]


def test_examples_that_came_before_are_left_out() -> None:
    given = [Example.from_prompt("a"), Example(text="a"), Example.from_prompt("a"), Example.from_prompt("b")]

    assert different(given) == [given[0], given[1], given[3]]


def test_a_long_text_comes_in_pieces_and_its_first_token_is_not_learned_from() -> None:
    pieces = finished_samples([Example(text="abcdefg")], PlainBytes(), max_length=3)  # type: ignore[arg-type]

    # The seventh letter alone would have nothing before it.
    assert [(len(piece.tokens), piece.spans) for piece in pieces] == [(3, ((1, 3),)), (3, ((1, 3),))]


def test_only_open_examples_are_questions() -> None:
    done = Example(messages=({"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}))

    asked = questions([done, Example(text="t"), Example.from_prompt("hi", "chat")], PlainBytes())  # type: ignore[arg-type]

    assert [(question.tokens, question.category) for question in asked] == [((104, 105), "chat")]
