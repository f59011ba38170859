from __future__ import annotations

import json
import re
from collections import Counter
from importlib.resources import files

import pytest

from gamaneh.bench.prompt_set import load_prompts
from gamaneh.errors import InvalidOption
from gamaneh.train.recipes.prompts import SHARES, make_prompts
from gamaneh.train.recipes.shipped import SHIPPED

pytestmark = pytest.mark.usefixtures("one_thread")

SLOT = re.compile(r"\{([a-z_]+)(?:#\d)?\}")
FOLDER = files("gamaneh.train.recipes") / "prompts"
NAMES = sorted({name for name, _ in SHARES.values()})
WINDOW = 9
"""Words in a row that no prompt has in common with the prompts of the benchmark."""


@pytest.mark.parametrize("name", NAMES)
def test_every_slot_is_filled_and_every_entry_is_used(name: str) -> None:
    entries = json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8"), object_pairs_hook=list)
    grammar = dict(entries)
    used = set(SLOT.findall(json.dumps(list(grammar.values()))))

    assert len(grammar) == len(entries), "a name comes twice"
    assert used | {category for category, (home, _) in SHARES.items() if home == name} == set(grammar)


def test_the_shipped_prompts_are_all_different_and_in_their_shares() -> None:
    prompts = make_prompts(SHIPPED.prompts, seed=SHIPPED.seed)
    counts = Counter(example.category for example in prompts)
    whole = sum(share for _, share in SHARES.values())

    assert len({example.prompt for example in prompts}) == SHIPPED.prompts
    for category, (_, share) in SHARES.items():
        assert abs(counts[category] - SHIPPED.prompts * share / whole) <= 2
    assert not any(SLOT.search(example.prompt) for example in prompts)


def test_the_same_seed_makes_the_same_prompts_and_a_longer_list_begins_with_them() -> None:
    assert make_prompts(40, seed=1) == make_prompts(60, seed=1)[:40]
    assert make_prompts(40, seed=1) != make_prompts(40, seed=2)


def test_prompts_that_are_to_be_unlike_others_do_not_come_again() -> None:
    first = make_prompts(30, seed=1)

    assert not {example.prompt for example in first} & {e.prompt for e in make_prompts(30, seed=1, unlike=first)}


def test_labelled_slots_of_one_name_are_the_same_or_different_as_they_say() -> None:
    reasoning = [e.prompt for e in make_prompts(200, seed=3, shares={"reasoning": SHARES["reasoning"]})]
    ages = [re.match(r"(\w+) is \d+ years older than (\w+)", prompt) for prompt in reasoning]
    change = [re.match(r"(\w+) buys .* change does (\w+) get", prompt) for prompt in reasoning]

    assert all(match[1] != match[2] for match in ages if match) and any(ages)
    assert all(match[1] == match[2] for match in change if match) and any(change)


def test_a_grammar_that_is_used_up_says_so() -> None:
    with pytest.raises(InvalidOption, match="count must leave prompts of virtue to be found, 10 are, got 11"):
        make_prompts(11, seed=0, shares={"virtue": ("english", 1)})


def test_the_benchmarks_prompts_are_not_trained_on() -> None:
    def windows(text: str) -> set[tuple[str, ...]]:
        words = re.findall(r"\w+", text.lower())
        return {tuple(words[at : at + WINDOW]) for at in range(len(words) - WINDOW + 1)}

    benched = {window for prompt in load_prompts() for window in windows(prompt.prompt)}
    trained = make_prompts(SHIPPED.prompts, seed=SHIPPED.seed)

    assert not [e.prompt for e in trained if windows(e.prompt) & benched]
