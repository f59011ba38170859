"""Equality of outputs, fairness of the comparison, and warnings where a run makes a known mistake."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest
from fake_sides import SETUP, FakeClient, answer, make_plan, make_ways, measured, prompts, run_of, stretch

from gamaneh.bench.answer import (
    CODES,
    CONDITIONS,
    TIE_GAPS,
    check_lengths,
    check_setups,
    compare_outputs,
    explain,
    find_cautions,
    refuse_unequal,
    unequal,
)
from gamaneh.bench.measure import Bench
from gamaneh.bench.record import Ask, MeasuredLoad, Record, Stretch
from gamaneh.bench.result import Caution, Check, Equality, Load, Memory, PromptMark, Run
from gamaneh.bench.stats import make_point, side_figures
from gamaneh.errors import InvalidOption
from gamaneh.options import SamplingParams


def measured_with(say, gaps: float = 1.0, **plan: object) -> tuple[Bench, FakeClient]:
    """Plain says one two three; speculative says what it is told."""
    plain = FakeClient("plain", gaps=gaps)
    bench = Bench(make_ways(plain=plain, speculative=FakeClient("speculative", say)), make_plan(**plan))
    asyncio.run(bench.run())
    return bench, plain


def compared(bench: Bench, expected: bool = True) -> Equality:
    equality = compare_outputs(bench.measured, bench.plan, expected=expected)
    assert equality is not None
    return equality


def explained(bench: Bench) -> Equality:
    return asyncio.run(explain(compared(bench), bench.measured, bench.plan, bench.ways.plain))


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
        plain = replace(bench.ways.plain, setup=replace(SETUP, precision=None))
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


def good(count: int = 120, tokens: int = 64, ttft: float = 0.1, gain: float = 2.0) -> MeasuredLoad:
    """A run without a mistake, but for the number of prompts."""

    def side(gap: float, rounds: int = 1) -> list:
        answers = [
            answer(0.0, *(ttft + gap * (1 + at % 7 / 100) * step for step in range(tokens))) for at in range(count)
        ]
        return [stretch(answers, 100.0)]

    return measured(side(0.1), side(0.1 / gain), Load("closed", 1.0, count, 1))


MARK = PromptMark("full", "ab", 120, ("chat", "code"), ("en", "fa"))
MEMORY = Memory(1, None, 1, 1, {"lookup": 0})


@pytest.fixture(scope="module")
def usual() -> Run:
    """A run without a mistake."""
    run = run_of()
    return replace(
        run,
        mode="serving",
        provenance=replace(run.provenance, prompts=MARK),
        fairness=(),
        points=(make_point(good(), None, None),),
        speculative_memory=MEMORY,
        complete=True,
    )


def cautions(run: Run, reads_anew: bool = True, faults: Mapping[str, int] | None = None) -> tuple[Caution, ...]:
    return find_cautions(run, reads_anew=reads_anew, faults=faults or {})


def asked(run: Run, **changes: object) -> Run:
    return replace(run, provenance=replace(run.provenance, prompts=replace(MARK, **changes)))


def codes(found: tuple[Caution, ...]) -> list[str]:
    return [caution.code for caution in found]


class TestCautions:
    def test_a_good_run_has_none(self, usual: Run) -> None:
        assert cautions(usual) == ()

    @pytest.mark.parametrize(
        ("code", "measured"),
        [
            ("mean_only", good(count=30)),
            ("prefill_dominated", good(ttft=30.0)),
            ("short_outputs", good(tokens=8, ttft=0.01)),
        ],
    )
    def test_what_was_measured_may_show_a_mistake(self, code: str, measured: MeasuredLoad, usual: Run) -> None:
        assert code in codes(cautions(replace(usual, points=(make_point(measured, None, None),))))

    def test_an_effect_within_the_noise_is_told(self, usual: Run) -> None:
        (point,) = usual.points
        assert point.whole.speedup is not None
        noisy = replace(point.whole, speedup=replace(point.whole.speedup, value=1.02, low=0.9, high=1.2))
        assert codes(cautions(replace(usual, points=(replace(point, groups=(noisy,)),)))) == ["noise"]

    @pytest.mark.parametrize(
        ("code", "changes"),
        [
            ("different_sampling", {"fairness": (Check("sampling", {}, {"top_k": 5}, False),)}),
            ("unequal", {"fairness": (Check("precision", "a", "b", False),)}),
            ("unknown_conditions", {"fairness": (Check("precision", None, "b", None),)}),
            ("draft_memory", {"speculative_memory": replace(MEMORY, proposers={})}),
            ("partial", {"complete": False}),
            ("approximate", {"speculative": replace(SETUP, rule="typical", exact=False)}),
        ],
    )
    def test_how_it_was_measured_may_be_a_mistake(self, code: str, changes: dict, usual: Run) -> None:
        assert codes(cautions(replace(usual, **changes))) == [code]

    @pytest.mark.parametrize(
        ("code", "changes"),
        [
            ("one_category", {"categories": ("code",)}),
            ("one_language", {"languages": ("en",)}),
            ("repeated_prompts", {"count": 119}),
        ],
    )
    def test_what_was_asked_may_be_a_mistake(self, code: str, changes: dict, usual: Run) -> None:
        assert codes(cautions(asked(usual, **changes))) == [code]

    def test_a_server_that_remembers_is_told(self, usual: Run) -> None:
        assert codes(cautions(usual, reads_anew=False)) == ["prefix_cache"]

    def test_a_proposer_that_failed_is_told(self, usual: Run) -> None:
        (caution,) = cautions(usual, faults={"eagle": 3})
        assert (caution.code, "eagle 3 times" in caution.text) == ("proposer_failed", True)

    @pytest.mark.parametrize(
        ("source", "code"), [("deliveries", "tokens_by_delivery"), ("tokenizer", "tokens_by_tokenizer")]
    )
    def test_tokens_that_a_server_did_not_count_are_told(self, source: str, code: str, usual: Run) -> None:
        (point,) = usual.points
        whole = replace(point.whole, plain=replace(point.whole.plain, tokens_from=source))
        assert codes(cautions(replace(usual, points=(replace(point, groups=(whole,)),)))) == [code]

    def test_a_few_prompts_that_come_again_and_again_are_told(self, usual: Run) -> None:
        assert codes(cautions(asked(usual, count=5))) == ["few_prompts", "repeated_prompts"]

    def test_a_load_that_piles_up_is_told(self, usual: Run) -> None:
        late = [stretch([answer(float(at), 2.0 * at + 1, 2.0 * at + 2, tokens=40) for at in range(120)], 240.0)]
        point = make_point(measured(late, late, Load("poisson", 1.0, 120, 1)), None, None)
        assert "saturated" in codes(cautions(replace(usual, points=(point,))))

    def test_texts_name_the_values(self, usual: Run) -> None:
        (caution,) = cautions(asked(usual, languages=("fa",)))
        assert "one language (fa)" in caution.text

    def test_nothing_measured_warns_of_nothing(self, usual: Run) -> None:
        assert cautions(replace(usual, points=(), complete=False)) == ()

    def test_every_code_is_told_once(self) -> None:
        assert len(set(CODES)) == len(CODES)


def test_outputs_are_compared_as_tokens_where_both_sides_tell_them() -> None:
    """Two tokens may have one text."""
    one, other = (Record(0.0, [1.0], 2, "ab", ids=list(ids), prompt=prompts()[0]) for ids in ((1, 2), (3, 2)))
    loads = [measured([Stretch([one], 1.0)], [Stretch([other], 1.0)])]
    equality = compare_outputs(loads, make_plan(), expected=True)
    assert equality is not None
    (difference,) = equality.differences
    assert (difference.token_position, difference.plain_token, difference.speculative_token) == (0, 1, 3)
