"""Prompts by the thousand, made from a small grammar: templates with slots, slots with words or templates.

A slot is `{name}`, one of the entries of that name; `{name#1}`, which is the same wherever it comes
again in one prompt and differs from `{name#2}`; or `{20-90}`, a whole number.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib.resources import files

from gamaneh.errors import InvalidOption
from gamaneh.train.data import Example

SHARES: Mapping[str, tuple[str, int]] = {
    "chat": ("english", 9),
    "reasoning": ("english", 1),
    "editing": ("english", 3),
    "summarising": ("english", 2),
    "code": ("code", 4),
    "persian": ("persian", 2),
}
"""Category -> the grammar that it comes from, and its share among the others."""

LANGUAGES: Mapping[str, str] = {"english": "en", "code": "en", "persian": "fa"}

TRIES = 50
"""Draws of a prompt that was not drawn before, until the grammar counts as used up."""

_SLOT = re.compile(r"\{(?:([a-z_]+)(#\d)?|(\d+)-(\d+))\}")

Grammar = Mapping[str, Sequence[str]]


def make_prompts(
    count: int, *, seed: int, shares: Mapping[str, tuple[str, int]] = SHARES, unlike: Sequence[Example] = ()
) -> list[Example]:
    """Different prompts, categories in turns by their shares; the same seed makes the same ones.

    Args:
        unlike: prompts that must not come again.

    Raises:
        InvalidOption: the grammars do not hold so many.
    """
    chooser = random.Random(seed)
    seen = {example.prompt for example in unlike}
    prompts: list[Example] = []
    for category in _turns(shares, count):
        name = shares[category][0]
        text = next((text for text in _draws(_grammar(name), category, chooser) if text not in seen), None)
        if text is None:
            raise InvalidOption("count", f"must leave prompts of {category} to be found, {len(prompts)} are", count)
        seen.add(text)
        prompts.append(Example.from_prompt(text, category))
    return prompts


def _turns(shares: Mapping[str, tuple[str, int]], count: int) -> Iterator[str]:
    """Categories so that each is as close to its share as can be, at any length."""
    whole = sum(share for _, share in shares.values())
    used = dict.fromkeys(shares, 0)
    for done in range(1, count + 1):
        category = max(shares, key=lambda name: shares[name][1] * done / whole - used[name])
        used[category] += 1
        yield category


def _draws(grammar: Grammar, category: str, chooser: random.Random) -> Iterator[str]:
    for _ in range(TRIES):
        yield _Expansion(grammar, chooser).expand(f"{{{category}}}")


class _Expansion:
    """One prompt while its slots are filled."""

    def __init__(self, grammar: Grammar, chooser: random.Random) -> None:
        self._grammar, self._chooser = grammar, chooser
        self._bound: dict[str, dict[str, str]] = {}

    def expand(self, text: str) -> str:
        return _SLOT.sub(self._fill, text)

    def _fill(self, slot: re.Match[str]) -> str:
        name, label, low, high = slot.groups()
        if name is None:
            return str(self._chooser.randint(int(low), int(high)))
        return self._labelled(name, label) if label else self._choose(name)

    def _labelled(self, name: str, label: str) -> str:
        bound = self._bound.setdefault(name, {})
        if label not in bound:
            value = self._choose(name)
            while value in bound.values():
                value = self._choose(name)
            bound[label] = value
        return bound[label]

    def _choose(self, name: str) -> str:
        return self.expand(self._chooser.choice(self._grammar[name]))


@cache
def _grammar(name: str) -> Grammar:
    source = files("gamaneh.train.recipes") / "prompts" / f"{name}.json"
    grammar: dict[str, list[str]] = json.loads(source.read_text(encoding="utf-8"))
    return grammar
