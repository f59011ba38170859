"""The file of a store: a line that says whose tokens these are, then one line for each answer.

Answers are appended as they end, so that nothing is lost when the process dies. Lines are JSON; each
carries a checksum of its tokens.
"""

from __future__ import annotations

import json
import logging
import os
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeGuard

from gamaneh.errors import InvalidOption

FORMAT, VERSION = "gamaneh suffix store", 1
OPTION = "suffix_store"

_PRIVATE = 0o600
"""The file holds what was answered: its owner alone may read it."""

Answer = tuple[str, Sequence[int]]
"""Owner and tokens."""

_log = logging.getLogger(__name__)


class Journal:
    """Reads and writes the file of a store.

    Args:
        path: the file.
        tokenizer: fingerprint of the tokenizer that gives the token ids their meaning.
        vocab_size: token ids are below this.
    """

    def __init__(self, path: Path, tokenizer: str, vocab_size: int) -> None:
        self.path, self.tokenizer, self.vocab_size = path, tokenizer, vocab_size
        self._writable = True

    def read(self) -> Iterator[Answer]:
        """All answers in the order in which they came. A file that is not there is made.

        A last line that was not written to its end, as its process died, is left out and cut off.

        Raises:
            InvalidOption: the file cannot be made or read, is of another format or tokenizer, or damaged.
        """
        if not self.path.exists():
            self.rewrite([])
        lines = self._whole_lines()
        if lines:
            self._check_header(_parsed(lines[0], self.path, 1))
        for number, line in enumerate(lines[1:], start=2):
            yield self._answer(_parsed(line, self.path, number), number)

    def append(self, owner: str, tokens: Sequence[int]) -> None:
        """Write one more answer.

        Where that fails, as on a full disk, the file keeps its whole lines, a warning is logged, and nothing more
        is written: an answer must not fail for it.
        """
        if not self._writable:
            return
        try:
            self._append_line(_line(owner, tokens))
        except OSError as error:
            self._writable = False
            _log.warning("the suffix store %s cannot be written and is not kept any more: %s", self.path, error)

    def rewrite(self, answers: Iterable[Answer]) -> None:
        """Replace the file by these answers, at once.

        Raises:
            InvalidOption: it cannot be written; the old file stays.
        """
        new = self.path.with_name(f"{self.path.name}.new")
        try:
            new.touch(_PRIVATE)
            new.write_text(self._header() + "".join(_line(*answer) for answer in answers), encoding="utf-8")
            new.replace(self.path)
        except OSError as error:
            new.unlink(missing_ok=True)
            raise InvalidOption(OPTION, f"must be a file that can be written ({error})", str(self.path)) from error

    def _append_line(self, line: str) -> None:
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, _PRIVATE)
        try:
            size = os.fstat(file).st_size
            data = (line if size else self._header() + line).encode()
            if os.write(file, data) < len(data):
                os.ftruncate(file, size)
                raise OSError("the disk is full")
        finally:
            os.close(file)

    def _whole_lines(self) -> list[str]:
        try:
            data = self.path.read_bytes()
            end = data.rfind(b"\n") + 1
            if end < len(data):
                os.truncate(self.path, end)
            return data[:end].decode("utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidOption(OPTION, f"must be a readable file of a store ({error})", str(self.path)) from error

    def _header(self) -> str:
        head = {"format": FORMAT, "version": VERSION, "tokenizer": self.tokenizer, "vocab_size": self.vocab_size}
        return json.dumps(head) + "\n"

    def _check_header(self, head: dict[str, Any]) -> None:
        expected = json.loads(self._header())
        for name, value in expected.items():
            if head.get(name) != value:
                rule = f"must have the {name} {value!r} in the first line of {self.path}"
                raise InvalidOption(OPTION, rule, head.get(name))

    def _answer(self, row: dict[str, Any], number: int) -> Answer:
        owner, tokens = row.get("owner"), row.get("tokens")
        if isinstance(owner, str) and self._are_tokens(tokens) and row.get("checksum") == _checksum(tokens):
            return owner, tokens
        raise InvalidOption(OPTION, f"must hold answers with their checksums, line {number}", str(self.path))

    def _are_tokens(self, value: object) -> TypeGuard[list[int]]:
        return isinstance(value, list) and all(type(token) is int and 0 <= token < self.vocab_size for token in value)


def _line(owner: str, tokens: Sequence[int]) -> str:
    ids = list(tokens)
    return json.dumps({"owner": owner, "checksum": _checksum(ids), "tokens": ids}, separators=(",", ":")) + "\n"


def _checksum(tokens: Sequence[int]) -> int:
    return zlib.crc32(array("q", tokens).tobytes())


def _parsed(line: str, path: Path, number: int) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise InvalidOption(OPTION, f"must be JSON in line {number} ({error.msg})", str(path)) from error
    if not isinstance(row, dict):
        raise InvalidOption(OPTION, f"must have an object in line {number}", str(path))
    return row
