"""What the advice is about: prompts, or recorded traffic with its answers, as token ids."""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gamaneh.bench.prompt_set import Prompt, load_prompts
from gamaneh.errors import InvalidOption

Encode = Callable[[str], Sequence[int]]
"""Text to token ids."""

PERSIAN = "fa"
ENGLISH = "en"
UNKNOWN_LANGUAGE = "und"
UNKNOWN_CATEGORY = "recorded"

_REQUIRED = ("prompt", "answer")
_OPTIONAL = ("id", "category", "language", "reference")


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptAnswer:
    """A prompt and, if it was recorded, the answer to it.

    Args:
        category, language: what the results are grouped by.
        reference: text that is likely to come back in the answer.
    """

    id: str
    category: str
    language: str
    prompt: str
    answer: str | None = None
    reference: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRequest:
    """An exchange as the engine sees it.

    Args:
        prompt: token ids.
        answer: token ids of the recorded answer; empty where none was recorded.
        max_tokens: most tokens to emit: the length of the recorded answer, or the usual limit.
    """

    id: str
    category: str
    language: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...] = ()
    reference: str | None = None
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Workload:
    """All requests, and whether they are the user's own or those that come along."""

    requests: tuple[WorkloadRequest, ...]
    own: bool
    recorded: bool

    @property
    def languages(self) -> tuple[str, ...]:
        """In the order of their first request."""
        return tuple(dict.fromkeys(request.language for request in self.requests))


def read_exchanges(prompts: Path | None, traffic: Path | None) -> list[PromptAnswer]:
    """Recorded traffic, prompts from a file, or the prompts that come along.

    Raises:
        InvalidOption: both files are given, or one of them breaks a rule; the message names file, line, rule and value.
    """
    if prompts is not None and traffic is not None:
        raise InvalidOption("--traffic", "cannot be used together with --prompts", str(traffic))
    if traffic is not None:
        return read_traffic(traffic)
    return [_from_prompt(prompt) for prompt in load_prompts(prompts)]


def read_traffic(path: Path) -> list[PromptAnswer]:
    """Recorded requests: JSON Lines with `prompt`, `answer` and perhaps `id`, `category`, `language`, `reference`.

    Where no language is given it is guessed from the script.

    Raises:
        InvalidOption: the file cannot be read, is empty, or a line breaks a rule.
    """
    exchanges = [_from_line(number, where, line) for number, where, line in _lines(path)]
    if not exchanges:
        raise InvalidOption(str(path), "must hold at least one recorded request", 0)
    seen = Counter(one.id for one in exchanges)
    for name, count in seen.items():
        if count > 1:
            raise InvalidOption(f"{path} id", "must be unique in the file", name)
    return exchanges


def write_traffic(path: Path, exchanges: Iterable[PromptAnswer]) -> None:
    """Exchanges with answers as recorded requests; those whose answer is empty are left out."""
    rows = [
        {name: value for name, value in asdict(one).items() if value is not None} for one in exchanges if one.answer
    ]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows if row["answer"].strip()]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def spread(exchanges: Sequence[PromptAnswer], limit: int | None) -> list[PromptAnswer]:
    """At most `limit` exchanges, taken in turns from each category and language, so that none is left out."""
    groups: dict[tuple[str, str], list[PromptAnswer]] = defaultdict(list)
    for exchange in exchanges:
        groups[exchange.category, exchange.language].append(exchange)
    turns = itertools.zip_longest(*groups.values())
    return [one for turn in turns for one in turn if one is not None][:limit]


def as_requests(
    exchanges: Iterable[PromptAnswer],
    encode_prompt: Encode,
    encode_answer: Encode,
    *,
    max_tokens: int,
    max_context: int,
) -> tuple[WorkloadRequest, ...]:
    """Exchanges as token ids.

    Args:
        max_tokens: of answers that were not recorded, and most of those that were.
        max_context: most tokens of prompt and answer together.

    Raises:
        InvalidOption: a prompt leaves no room for an answer of two tokens.
    """
    return tuple(_request(one, encode_prompt, encode_answer, max_tokens, max_context) for one in exchanges)


def guess_language(text: str) -> str:
    """`fa` for text in Arabic letters, `en` for text in Latin ones, else `und`."""
    scripts = [unicodedata.name(letter, "").split(" ")[0] for letter in text if letter.isalpha()]
    for script, language in (("ARABIC", PERSIAN), ("LATIN", ENGLISH)):
        if scripts.count(script) * 2 > len(scripts):
            return language
    return UNKNOWN_LANGUAGE


def _request(
    one: PromptAnswer, encode_prompt: Encode, encode_answer: Encode, limit: int, context: int
) -> WorkloadRequest:
    prompt = tuple(encode_prompt(one.prompt))
    room = context - len(prompt)
    if room < 2:
        raise InvalidOption(f"prompt {one.id}", f"must leave room for an answer in {context} tokens", len(prompt))
    answer = tuple(encode_answer(one.answer))[: min(limit, room)] if one.answer else ()
    return WorkloadRequest(
        id=one.id,
        category=one.category,
        language=one.language,
        prompt=prompt,
        answer=answer,
        reference=one.reference,
        max_tokens=len(answer) or min(limit, room),
    )


def _from_prompt(prompt: Prompt) -> PromptAnswer:
    return PromptAnswer(
        id=prompt.id,
        category=prompt.category,
        language=prompt.language,
        prompt=prompt.prompt,
        reference=prompt.reference,
    )


def _lines(path: Path) -> Iterator[tuple[int, str, str]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption("traffic", "must be a readable UTF-8 file", str(path)) from error
    for number, line in enumerate(text.split("\n"), start=1):
        if line.strip():
            yield number, f"{path} line {number}", line


def _from_line(number: int, where: str, line: str) -> PromptAnswer:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidOption(where, f"must be JSON ({error.msg})", line[:60]) from error
    if not isinstance(row, dict):
        raise InvalidOption(where, "must be a JSON object", line[:60])
    _check_row(where, row)
    usual = {"id": f"line-{number}", "category": UNKNOWN_CATEGORY, "language": guess_language(row["answer"])}
    return PromptAnswer(**{**usual, **row})


def _check_row(where: str, row: dict[str, Any]) -> None:
    for key, value in row.items():
        if key not in (*_REQUIRED, *_OPTIONAL):
            raise InvalidOption(where, f"may have the keys {', '.join((*_REQUIRED, *_OPTIONAL))}", key)
        if not isinstance(value, str) or not value.strip():
            raise InvalidOption(f"{where} {key}", "must be a text that is not empty", value)
    for key in _REQUIRED:
        if key not in row:
            raise InvalidOption(where, f"must have the key {key}", sorted(row))
