"""Settings from a file, checked one by one: an error names the file, the key, the rule and the value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from gamaneh.errors import CorruptModel


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of a `config.json`, or those of GGUF metadata that begin with `prefix`.

    Args:
        source: what holds them, as errors call it.
        prefix: what stands before each key in the file.
    """

    values: Mapping[str, Any]
    source: str
    prefix: str = ""

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value as it stands; null counts as not given."""
        value = self.values.get(self.prefix + key)
        return default if value is None else value

    def need(self, key: str) -> Any:
        """Return the value.

        Raises:
            CorruptModel: it is not given.
        """
        if self.get(key) is None:
            raise CorruptModel(f"{self.source} must have {self.prefix}{key}, got none")
        return self.get(key)

    def whole(self, key: str, default: int | None = None, *, least: int = 1) -> int:
        """Return a whole number; without a default it must be given.

        Raises:
            CorruptModel: it is missing, not a whole number, or below `least`.
        """
        value = self.need(key) if default is None else self.get(key, default)
        if not is_number(value) or value != int(value) or value < least:
            self.refuse(key, f"must be a whole number of at least {least}")
        return int(value)

    def number(self, key: str, default: float | None = None) -> float:
        """Return a finite number above zero; without a default it must be given.

        Raises:
            CorruptModel: it is missing, not a number, or not above zero.
        """
        value = self.need(key) if default is None else self.get(key, default)
        if not is_number(value) or value <= 0:
            self.refuse(key, "must be a number above 0")
        return float(value)

    def flag(self, key: str, default: bool) -> bool:
        """Return true or false.

        Raises:
            CorruptModel: it is something else.
        """
        value = self.get(key, default)
        if not isinstance(value, bool):
            self.refuse(key, "must be true or false")
        return value

    def token(self, key: str, rows: int) -> int | None:
        """Return the id of a token; None where there is none.

        Args:
            rows: tokens that the model has.

        Raises:
            CorruptModel: it is no id, or outside the rows.
        """
        ids = self.tokens(key, rows)
        if len(ids) > 1:
            self.refuse(key, "must be one token id")
        return ids[0] if ids else None

    def tokens(self, key: str, rows: int) -> tuple[int, ...]:
        """Return the ids of tokens, which the file writes as one id, a list of ids, or null.

        Args:
            rows: tokens that the model has.

        Raises:
            CorruptModel: one is no id, or outside the rows.
        """
        value = self.get(key, [])
        ids = value if isinstance(value, list | tuple) else [value]
        for token in ids:
            if not isinstance(token, int) or isinstance(token, bool) or not 0 <= token < rows:
                self.refuse(key, f"must hold token ids from 0 to {rows - 1}")
        return tuple(ids)

    def refuse(self, key: str, rule: str) -> NoReturn:
        """Raise a `CorruptModel` that names file, key, rule and value."""
        raise CorruptModel(f"{self.source}: {self.prefix}{key} {rule}, got {self.get(key)!r:.200}")


def is_number(value: object) -> bool:
    """Whether it is a finite number, and neither a flag nor text."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
