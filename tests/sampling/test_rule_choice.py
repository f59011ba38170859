from __future__ import annotations

import pytest

from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.sampling.rules import RULES, choose_rule

FREE = SamplingParams(temperature=0.8)


@pytest.mark.parametrize(
    ("params", "draft_has_probs", "expected"),
    [
        (SamplingParams(), True, "match"),
        (SamplingParams(temperature=0.8, seed=1), True, "match"),
        (FREE, False, "match"),
        (FREE, True, "block"),
    ],
    ids=["greedy", "seeded", "point mass", "sampled"],
)
def test_auto_takes_the_exact_rule_that_suits(params: SamplingParams, draft_has_probs: bool, expected: str) -> None:
    assert choose_rule("auto", params, draft_has_probs).name == expected


@pytest.mark.parametrize("name", RULES)
def test_a_rule_that_is_asked_for_by_name_is_taken(name: str) -> None:
    assert choose_rule(name, SamplingParams(), False).name == name


def test_typical_takes_its_thresholds_from_the_options() -> None:
    rule = choose_rule("typical", FREE, False, SpeculationOptions(epsilon=0.2, delta=0.4))
    assert (rule._epsilon, rule._delta) == (0.2, 0.4)
