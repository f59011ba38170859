"""Prompts from files in public formats, told apart by the keys of their first entry.

    format          file            keys
    ours            JSON Lines      id, category, language, prompt, reference
    Spec-Bench      JSON Lines      question_id, category, turns
    MT-Bench        JSON Lines      question_id, category, turns, reference
    ShareGPT        one JSON list   id, conversations: [{from, value}, ...]
    plain           JSON Lines      prompt (or text); id, category, language may be there
    trace           JSON Lines      prompt, at: seconds at which the request came

Of a conversation with several turns the first question is taken.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gamaneh.bench.lines import Line, json_lines, read_text
from gamaneh.bench.prompt_set import SETS, Prompt, load_set, parse_prompt, refuse_duplicates
from gamaneh.errors import InvalidOption

_ASKING = ("human", "user")
_PERSIAN = ("\u0600", "\u06ff")


@dataclass(frozen=True, slots=True)
class PromptFile:
    """What a source held.

    Args:
        source: name of a set, or the file.
        recorded: seconds at which each request came; empty unless it is a trace.
    """

    source: str
    prompts: Sequence[Prompt]
    recorded: Sequence[float] = ()


def read_prompts(source: str) -> PromptFile:
    """The prompts of a set that comes along, or of a file in any of the formats above.

    Raises:
        InvalidOption: there is no such set or file, the file is empty, or an entry breaks a rule; the
            message names the file, the line, the rule and the value.
    """
    if source in SETS:
        return PromptFile(source, load_set(source))
    lines = _entries(Path(source))
    if not lines:
        raise InvalidOption(source, "must hold at least one prompt", 0)
    prompts = _reader(lines[0])(lines)
    if not prompts:
        raise InvalidOption(source, "must hold a conversation that a person begins", len(lines))
    refuse_duplicates(Path(source), prompts)
    return PromptFile(source, prompts, _times(lines))


def guess_language(text: str) -> str:
    """`fa` where most letters are Arabic script, else `en`: where a format does not say, for grouping only."""
    letters = [letter for letter in text if letter.isalpha()]
    arabic = sum(_PERSIAN[0] <= letter <= _PERSIAN[1] for letter in letters)
    return "fa" if 2 * arabic > len(letters) else "en"


def _entries(path: Path) -> list[Line]:
    if not path.is_file():
        raise InvalidOption("prompts", f"must be {', '.join(SETS)} or a file that is there", str(path))
    if not read_text(path).lstrip().startswith("["):
        return list(json_lines(path))
    return list(_listed(path))


def _listed(path: Path) -> Iterator[Line]:
    try:
        entries = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InvalidOption(str(path), f"must be JSON ({error.msg})", f"line {error.lineno}") from error
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise InvalidOption(f"{path} entry {number}", "must be a JSON object", entry)
        yield Line(f"{path} entry {number}", entry)


Reader = Callable[[Sequence[Line]], list[Prompt]]


def _reader(first: Line) -> Reader:
    for key, reader in _READERS.items():
        if key in first.values:
            return reader
    raise InvalidOption(first.where, f"must have one of the keys {', '.join(_READERS)}", sorted(first.values))


def _ours(lines: Sequence[Line]) -> list[Prompt]:
    return [parse_prompt(line) for line in lines]


def _questions(lines: Sequence[Line]) -> list[Prompt]:
    """Spec-Bench and MT-Bench."""
    return [_question(line) for line in lines]


def _question(line: Line) -> Prompt:
    turns = line.values.get("turns")
    if not isinstance(turns, list) or not turns:
        raise InvalidOption(f"{line.where} turns", "must be a list of at least one question", turns)
    text = _text(line, "turns", turns[0])
    identity = str(line.values.get("question_id", line.where))
    return Prompt(identity, str(line.values.get("category", "all")), guess_language(text), text)


def _conversations(lines: Sequence[Line]) -> list[Prompt]:
    """ShareGPT: those that a person begins; others are passed over, as they are in its own readers."""
    prompts = []
    for line in lines:
        turns: Sequence[Mapping[str, Any]] = line.values.get("conversations") or ({},)
        text = str(turns[0].get("value", ""))
        if turns[0].get("from") in _ASKING and text.strip():
            identity = str(line.values.get("id", line.where))
            prompts.append(Prompt(identity, "conversation", guess_language(text), text))
    return prompts


def _plain(lines: Sequence[Line]) -> list[Prompt]:
    return [_plain_one(line) for line in lines]


def _plain_one(line: Line) -> Prompt:
    key = "prompt" if "prompt" in line.values else "text"
    text = _text(line, key, line.values.get(key))
    identity, category = (
        str(line.values.get(name, usual)) for name, usual in (("id", line.where), ("category", "all"))
    )
    return Prompt(identity, category, str(line.values.get("language", guess_language(text))), text)


_READERS: Mapping[str, Reader] = {
    "turns": _questions,
    "conversations": _conversations,
    "prompt": lambda lines: _ours(lines) if _is_ours(lines[0]) else _plain(lines),
    "text": _plain,
}
"""Key of the first entry -> how to read them all."""


def _is_ours(line: Line) -> bool:
    return {"id", "category", "language"} <= line.values.keys() and "at" not in line.values


def _text(line: Line, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidOption(f"{line.where} {key}", "must be a text that is not empty", value)
    return value


def _times(lines: Sequence[Line]) -> list[float]:
    if "at" not in lines[0].values:
        return []
    return [_time(line) for line in lines]


def _time(line: Line) -> float:
    value = line.values.get("at")
    if not isinstance(value, int | float) or isinstance(value, bool) or value < 0:
        raise InvalidOption(f"{line.where} at", "must be seconds, at least 0", value)
    return float(value)


def select(file: PromptFile, categories: Sequence[str], languages: Sequence[str], limit: int | None) -> PromptFile:
    """A part of the prompts; a limit takes them evenly from the whole, so that every category stays in.

    Args:
        categories, languages: those to keep; none keeps all.

    Raises:
        InvalidOption: a category or language does not occur, or no prompt is left.
    """
    _refuse_unknown("category", categories, {prompt.category for prompt in file.prompts})
    _refuse_unknown("language", languages, {prompt.language for prompt in file.prompts})
    kept = [
        at
        for at, prompt in enumerate(file.prompts)
        if (not categories or prompt.category in categories) and (not languages or prompt.language in languages)
    ]
    if not kept:
        raise InvalidOption("prompts", "must be at least one of the categories and languages that are asked for", 0)
    if limit is not None and limit < len(kept):
        kept = [kept[at * len(kept) // limit] for at in range(limit)]
    recorded = [file.recorded[at] for at in kept] if file.recorded else ()
    return PromptFile(file.source, [file.prompts[at] for at in kept], recorded)


def _refuse_unknown(name: str, wanted: Sequence[str], known: set[str]) -> None:
    for value in wanted:
        if value not in known:
            raise InvalidOption(name, f"must be one of {', '.join(sorted(known))}", value)
