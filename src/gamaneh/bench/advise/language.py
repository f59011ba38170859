"""Languages that the advisor speaks."""

from __future__ import annotations

from typing import Literal

from gamaneh.errors import InvalidOption

Language = Literal["en", "fa"]
LANGUAGES: tuple[Language, ...] = ("en", "fa")


def as_language(name: str) -> Language:
    """The language called `name`.

    Raises:
        InvalidOption: the advisor does not speak it.
    """
    for language in LANGUAGES:
        if language == name:
            return language
    raise InvalidOption("language", f"must be one of {', '.join(LANGUAGES)}", name)
