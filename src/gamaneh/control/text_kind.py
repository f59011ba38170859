"""The kind of a text, told by its characters: what is learned about drafts of code says little about those of prose."""

from __future__ import annotations

import re

LOOKED_AT = 2000
"""Characters at the end of a text that are looked at."""

CODE_SHARE = 0.06
"""Share of characters that stand in code and seldom in prose, from which on a text counts as code."""

_CODE = re.compile(r"[{}()\[\];=<>_#$\\/|&*+]|^(?: {4}|\t)\S|`", re.MULTILINE)
_CODE_WORDS = re.compile(
    r"\b(?:code|python|javascript|rust|sql|html|class|def|import|return)\b|\bfunction\b", re.IGNORECASE
)


def text_kind(text: str, *, reference: bool = False) -> str:
    """Return `editing`, `code`, `other script` or `prose`.

    Args:
        reference: a text comes along that the answer is likely to repeat.
    """
    if reference:
        return "editing"
    text = text[-LOOKED_AT:]
    letters = [character for character in text if character.isalpha()]
    if sum(character > "\u024f" for character in letters) > len(letters) / 2:
        return "other script"
    if len(_CODE.findall(text)) > CODE_SHARE * len(text) or len(_CODE_WORDS.findall(text)) > 1:
        return "code"
    return "prose"
