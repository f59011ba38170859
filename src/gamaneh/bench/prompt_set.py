"""Prompts: the sets that come along, files of one's own, and files in public formats.

Formats are told apart by the keys of the first entry:

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

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from gamaneh.errors import InvalidOption

SETS = {"core": ("core.jsonl",), "full": ("en.jsonl", "fa.jsonl")}
"""Sets that come along. `core`: 20 short prompts. `full`: eight categories in two languages, short and long."""

LONG = 1500
"""Characters from which on a prompt counts as long."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt of a set.

    Args:
        id: unique within its file.
        category: what the results are grouped by.
        language: its language code.
        prompt: what the user would write, without a chat template.
        reference: text that is likely to come back in the answer; proposers may look there.
    """

    id: str
    category: str
    language: str
    prompt: str
    reference: str | None = None

    @property
    def length(self) -> str:
        """`long` from 1500 characters on, else `short`."""
        return "long" if len(self.prompt) >= LONG else "short"


_KEYS = tuple(field.name for field in fields(Prompt))
_REQUIRED = tuple(field.name for field in fields(Prompt) if field.default is MISSING)


def load_prompts(path: Path | None = None) -> list[Prompt]:
    """The prompts of `path`, a JSON Lines file of `Prompt` fields; None loads the set `core`.

    Raises:
        InvalidOption: the file cannot be read, is empty, or a line breaks a rule; the message
            names file, line, rule and value.
    """
    return load_set("core") if path is None else _load(path)


def load_set(name: str) -> list[Prompt]:
    """The prompts of a set that comes along.

    Raises:
        InvalidOption: there is no such set.
    """
    if name not in SETS:
        raise InvalidOption("prompts", f"must be {', '.join(SETS)} or a file", name)
    folder = files("gamaneh.bench") / "prompts"
    return [prompt for file in SETS[name] for prompt in _load(folder / file)]


def hash_prompts(texts: Iterable[str]) -> str:
    """SHA-256 of texts in their order."""
    return hashlib.sha256(json.dumps(list(texts), ensure_ascii=False).encode()).hexdigest()


def _load(source: Path | Traversable) -> list[Prompt]:
    prompts = [parse_prompt(line) for line in json_lines(source)]
    if not prompts:
        raise InvalidOption(str(source), "must hold at least one prompt", 0)
    refuse_duplicates(source, prompts)
    return prompts


def parse_prompt(line: JsonLine) -> Prompt:
    """
    Raises:
        InvalidOption: a key is missing or unknown, or a value is no text.
    """
    _check_keys(line.where, line.values)
    return Prompt(**line.values)


def _check_keys(where: str, row: dict[str, Any]) -> None:
    for key in row:
        if key not in _KEYS:
            raise InvalidOption(where, f"may have the keys {', '.join(_KEYS)}", key)
    for key in _REQUIRED:
        if key not in row:
            raise InvalidOption(where, f"must have the key {key}", sorted(row))
    for key, value in row.items():
        if not isinstance(value, str) or not value.strip():
            raise InvalidOption(f"{where} {key}", "must be a text that is not empty", value)


def refuse_duplicates(source: Path | Traversable, prompts: Sequence[Prompt]) -> None:
    """
    Raises:
        InvalidOption: two prompts have the same id.
    """
    seen: set[str] = set()
    for prompt in prompts:
        if prompt.id in seen:
            raise InvalidOption(f"{source} id", "must be unique in the file", prompt.id)
        seen.add(prompt.id)


@dataclass(frozen=True, slots=True)
class JsonLine:
    """One object of a file, and where it stands in words."""

    where: str
    values: dict[str, Any]


def json_lines(source: Path | Traversable) -> Iterator[JsonLine]:
    """The objects of a JSON Lines file; blank lines are passed over.

    Raises:
        InvalidOption: the file cannot be read, or a line is no JSON object.
    """
    # Not splitlines(): a JSON text may hold U+2028 and the like, which are no ends of lines in JSON Lines.
    for number, line in enumerate(read_text(source).split("\n"), start=1):
        if line.strip():
            yield _parse_line(f"{source} line {number}", line)


def read_text(source: Path | Traversable) -> str:
    """
    Raises:
        InvalidOption: the file is not there, or is not UTF-8.
    """
    try:
        return source.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption("prompts", "must be a readable UTF-8 file", str(source)) from error


def _parse_line(where: str, line: str) -> JsonLine:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidOption(where, f"must be JSON ({error.msg})", shortened(line)) from error
    if not isinstance(row, dict):
        raise InvalidOption(where, "must be a JSON object", shortened(line))
    return JsonLine(where, row)


def shortened(line: str) -> str:
    """The beginning of a line, to show it."""
    return line if len(line) <= 60 else f"{line[:57]}..."


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
    """Return the prompts of a set that comes along, or of a file in any of the formats above.

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


def _entries(path: Path) -> list[JsonLine]:
    if not path.is_file():
        raise InvalidOption("prompts", f"must be {', '.join(SETS)} or a file that is there", str(path))
    if not read_text(path).lstrip().startswith("["):
        return list(json_lines(path))
    return list(_listed(path))


def _listed(path: Path) -> Iterator[JsonLine]:
    try:
        entries = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise InvalidOption(str(path), f"must be JSON ({error.msg})", f"line {error.lineno}") from error
    for number, entry in enumerate(entries, start=1):
        if not isinstance(entry, dict):
            raise InvalidOption(f"{path} entry {number}", "must be a JSON object", entry)
        yield JsonLine(f"{path} entry {number}", entry)


Reader = Callable[[Sequence[JsonLine]], list[Prompt]]


def _reader(first: JsonLine) -> Reader:
    for key, reader in _READERS.items():
        if key in first.values:
            return reader
    raise InvalidOption(first.where, f"must have one of the keys {', '.join(_READERS)}", sorted(first.values))


def _ours(lines: Sequence[JsonLine]) -> list[Prompt]:
    return [parse_prompt(line) for line in lines]


def _questions(lines: Sequence[JsonLine]) -> list[Prompt]:
    """Spec-Bench and MT-Bench."""
    return [_question(line) for line in lines]


def _question(line: JsonLine) -> Prompt:
    turns = line.values.get("turns")
    if not isinstance(turns, list) or not turns:
        raise InvalidOption(f"{line.where} turns", "must be a list of at least one question", turns)
    text = _text(line, "turns", turns[0])
    identity = str(line.values.get("question_id", line.where))
    return Prompt(identity, str(line.values.get("category", "all")), guess_language(text), text)


def _conversations(lines: Sequence[JsonLine]) -> list[Prompt]:
    """ShareGPT: those that a person begins; others are passed over, as they are in its own readers."""
    prompts = []
    for line in lines:
        turns: Sequence[Mapping[str, Any]] = line.values.get("conversations") or ({},)
        text = str(turns[0].get("value", ""))
        if turns[0].get("from") in _ASKING and text.strip():
            identity = str(line.values.get("id", line.where))
            prompts.append(Prompt(identity, "conversation", guess_language(text), text))
    return prompts


def _plain(lines: Sequence[JsonLine]) -> list[Prompt]:
    return [_plain_one(line) for line in lines]


def _plain_one(line: JsonLine) -> Prompt:
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


def _is_ours(line: JsonLine) -> bool:
    return {"id", "category", "language"} <= line.values.keys() and "at" not in line.values


def _text(line: JsonLine, key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise InvalidOption(f"{line.where} {key}", "must be a text that is not empty", value)
    return value


def _times(lines: Sequence[JsonLine]) -> list[float]:
    if "at" not in lines[0].values:
        return []
    return [_time(line) for line in lines]


def _time(line: JsonLine) -> float:
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
