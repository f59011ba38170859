"""Equality of outputs, fairness of the comparison, and warnings where a run makes a known mistake."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from fake_sides import SETUP, FakeClient, answer, make_plan, make_sides, measured, stretch

from gamaneh.bench.result import Caution, Check, Equality, Load, Memory, Point, PromptMark
from gamaneh.bench.run.cautions import Evidence, find_cautions
from gamaneh.bench.run.equality import TIE_GAPS, compare_outputs, explain
from gamaneh.bench.run.fairness import CONDITIONS, check_lengths, check_setups, refuse_unequal, unequal
from gamaneh.bench.run.figures import side_figures
from gamaneh.bench.run.groups import make_point
from gamaneh.bench.run.measure import Bench, Measured
from gamaneh.bench.traffic import Ask
from gamaneh.errors import InvalidOption
from gamaneh.options import SamplingParams


def measured_with(say, gaps: float = 1.0, **plan: object) -> tuple[Bench, FakeClient]:
    """Plain says one two three; speculative says what it is told."""
    plain = FakeClient("plain", gaps=gaps)
    bench = Bench(make_sides(plain=plain, speculative=FakeClient("speculative", say)), make_plan(**plan))
    asyncio.run(bench.run())
    return bench, plain


def compared(bench: Bench, expected: bool = True) -> Equality:
    equality = compare_outputs(bench.measured, bench.plan, expected=expected)
    assert equality is not None
    return equality


def explained(bench: Bench) -> Equality:
    return asyncio.run(explain(compared(bench), bench.measured, bench.plan, bench.sides.plain))


def one_differs(ask: Ask) -> str:
    return "one twixt three" if ask.text.endswith("2") else "one two three"


class TestEquality:
    def test_equal_outputs_are_equal(self) -> None:
        equality = compared(measured_with(lambda ask: "one two three")[0])
        assert (equality.compared, equality.equal, equality.differences) == (8, 8, ())

    def test_a_difference_is_told_with_its_place_and_both_texts(self) -> None:
        equality = compared(measured_with(one_differs)[0])
        assert (equality.compared, equality.equal) == (8, 6)
        difference = equality.differences[0]
        assert (difference.prompt, difference.position) == ("p2", 6)
        assert (difference.plain, difference.speculative) == ("o three", "ixt three")

    def test_an_output_that_goes_on_differs_where_the_other_ends(self) -> None:
        equality = compared(measured_with(lambda ask: "one two three four")[0])
        assert (equality.differences[0].position, equality.differences[0].plain) == (13, "")

    @pytest.mark.parametrize(("gap", "tie"), [(TIE_GAPS["bfloat16"], True), (TIE_GAPS["bfloat16"] + 0.1, False)])
    def test_a_difference_between_two_likely_tokens_is_a_tie(self, gap: float, tie: bool) -> None:
        equality = explained(measured_with(one_differs, gaps=gap)[0])
        assert [(difference.gap, difference.tie) for difference in equality.differences] == [(gap, tie)] * 2
        assert equality.ties == (2 if tie else 0)

    def test_the_gap_is_that_of_the_token_at_the_difference(self) -> None:
        bench, plain = measured_with(one_differs)
        asked = len(plain.asked)
        explained(bench)
        assert [text for _, text in plain.asked[asked:]] == ["question number 2"] * 2

    def test_without_a_known_type_no_difference_is_called_a_tie(self) -> None:
        bench, _ = measured_with(one_differs)
        plain = replace(bench.sides.plain, setup=replace(SETUP, precision=None))
        equality = asyncio.run(explain(compared(bench), bench.measured, bench.plan, plain))
        assert [difference.tie for difference in equality.differences] == [None, None]
        assert equality.ties == 0

    def test_a_server_that_does_not_tell_leaves_the_gap_unknown(self) -> None:
        bench, plain = measured_with(one_differs)

        def gone(ask: Ask) -> str:
            raise InvalidOption("logprobs", "are not served", 2)

        plain.say = gone
        assert [difference.gap for difference in explained(bench).differences] == [None, None]

    def test_sampled_outputs_are_not_explained(self) -> None:
        bench, plain = measured_with(one_differs, params=SamplingParams(temperature=1.0, seed=0))
        asked = len(plain.asked)
        assert explained(bench).ties == 0
        assert len(plain.asked) == asked

    def test_without_a_seed_nothing_is_compared(self) -> None:
        bench, _ = measured_with(one_differs, params=SamplingParams(temperature=1.0))
        assert compare_outputs(bench.measured, bench.plan, expected=False) is None


class TestFairness:
    @pytest.mark.parametrize("name", CONDITIONS)
    def test_each_condition_that_differs_is_refused_by_name(self, name: str) -> None:
        other = replace(SETUP, **{name: "another"})
        with pytest.raises(InvalidOption, match=f"^{name} must be the same on both sides"):
            refuse_unequal(check_setups(SETUP, other))

    def test_equal_conditions_pass_whatever_speculates(self) -> None:
        checks = check_setups(SETUP, replace(SETUP, proposer="eagle", k=7, rule="block", fields={"x": 1}))
        refuse_unequal(checks)
        assert all(check.equal for check in checks)

    def test_what_is_not_known_is_neither(self) -> None:
        checks = check_setups(replace(SETUP, precision=None), SETUP)
        assert [check.name for check in checks if check.equal is None] == ["precision"]
        assert not list(unequal(checks))

    @pytest.mark.parametrize(("tokens", "equal"), [(100, True), (99, True), (90, False), (120, False)])
    def test_outputs_of_other_lengths_are_flagged(self, tokens: int, equal: bool) -> None:
        one, other = (
            side_figures(list(stretch([answer(0.0, 1.0, 2.0, tokens=count)], 2.0).records)) for count in (100, tokens)
        )
        assert check_lengths(one, other).equal is equal


def good(count: int = 120, tokens: int = 64, ttft: float = 0.1, gain: float = 2.0) -> Measured:
    """A run without a mistake, but for the number of prompts."""

    def side(gap: float, rounds: int = 1) -> list:
        answers = [
            answer(0.0, *(ttft + gap * (1 + at % 7 / 100) * step for step in range(tokens))) for at in range(count)
        ]
        return [stretch(answers, 100.0)]

    return measured(side(0.1), side(0.1 / gain), Load("closed", 1.0, count, 1))


MARK = PromptMark("full", "ab", 120, ("chat", "code"), ("en", "fa"))
MEMORY = Memory(1, None, 1, 1, {"lookup": 0})


def evidence(point: Point | None = None, **changes: object) -> Evidence:
    usual = Evidence(
        mode="serving",
        prompts=MARK,
        checks=(),
        points=(point or make_point(good(), None, None),),
        speculative_memory=MEMORY,
        reads_anew=True,
        complete=True,
        faults={},
    )
    return replace(usual, **changes)


def codes(found: tuple[Caution, ...]) -> list[str]:
    return [caution.code for caution in found]


class TestCautions:
    def test_a_good_run_has_none(self) -> None:
        assert find_cautions(evidence()) == ()

    @pytest.mark.parametrize(
        ("code", "measured"),
        [
            ("mean_only", good(count=30)),
            ("prefill_dominated", good(ttft=30.0)),
            ("short_outputs", good(tokens=8, ttft=0.01)),
        ],
    )
    def test_what_was_measured_may_show_a_mistake(self, code: str, measured: Measured) -> None:
        assert code in codes(find_cautions(evidence(make_point(measured, None, None))))

    def test_an_effect_within_the_noise_is_told(self) -> None:
        point = make_point(good(), None, None)
        assert point.whole.speedup is not None
        noisy = replace(point.whole, speedup=replace(point.whole.speedup, value=1.02, low=0.9, high=1.2))
        assert codes(find_cautions(evidence(replace(point, groups=(noisy,))))) == ["noise"]

    @pytest.mark.parametrize(
        ("code", "changes"),
        [
            ("one_category", {"prompts": replace(MARK, categories=("code",))}),
            ("one_language", {"prompts": replace(MARK, languages=("en",))}),
            ("different_sampling", {"checks": (Check("sampling", {}, {"top_k": 5}, False),)}),
            ("unequal", {"checks": (Check("precision", "a", "b", False),)}),
            ("unknown_conditions", {"checks": (Check("precision", None, "b", None),)}),
            ("draft_memory", {"speculative_memory": replace(MEMORY, proposers={})}),
            ("prefix_cache", {"reads_anew": False}),
            ("repeated_prompts", {"prompts": replace(MARK, count=119)}),
            ("partial", {"complete": False}),
            ("proposer_failed", {"faults": {"eagle": 3}}),
        ],
    )
    def test_how_it_was_measured_may_be_a_mistake(self, code: str, changes: dict) -> None:
        assert codes(find_cautions(evidence(**changes))) == [code]

    def test_a_few_prompts_that_come_again_and_again_are_told(self) -> None:
        found = find_cautions(evidence(prompts=replace(MARK, count=5)))
        assert codes(found) == ["few_prompts", "repeated_prompts"]

    def test_a_load_that_piles_up_is_told(self) -> None:
        late = [stretch([answer(float(at), 2.0 * at + 1, 2.0 * at + 2, tokens=40) for at in range(120)], 240.0)]
        point = make_point(measured(late, late, Load("poisson", 1.0, 120, 1)), None, None)
        assert "saturated" in codes(find_cautions(evidence(point)))

    def test_texts_name_the_values(self) -> None:
        (caution,) = find_cautions(evidence(prompts=replace(MARK, languages=("fa",))))
        assert "one language (fa)" in caution.text

    def test_nothing_measured_warns_of_nothing(self) -> None:
        assert find_cautions(evidence(points=(), complete=False)) == ()
