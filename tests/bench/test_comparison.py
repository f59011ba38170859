"""`gamaneh compare` is a bench of one request at a time, told as one flat object."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from fake_sides import GREEDY, make_plan, make_ways, measured, prompts, run_of, stretch

from gamaneh.bench.answer import compare_outputs
from gamaneh.bench.comparison import Comparison, compare, summarise
from gamaneh.bench.record import Counts, Ending, Record
from gamaneh.bench.result import FailedRequest, Load, Run, Setup
from gamaneh.bench.stats import make_point
from gamaneh.engine.llm import LLM
from gamaneh.errors import InvalidRequest
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.testing import tiny_model

TINY = Setup("tiny", "float32", "cpu", "lookup", 3, "match", True, True, 1)
PROMPTS = prompts(3)
"""Of categories chat, code, chat."""

FIVE = (1, 2, 3, 4, 5)


def record(seconds: float, ids: Sequence[int] = FIVE, first: float = 1.0, counts: Counts | None = None) -> Record:
    """An answer whose first token comes after `first` and the last after `seconds`."""
    times = [first, seconds] if len(ids) > 1 else [first]
    return Record(0.0, times, len(ids), "x" * len(ids), Ending(counts=counts), ids=list(ids))


def failed(error: str) -> Record:
    return Record(0.0, error=error, reason="error")


def run_with(plain: Sequence[Record], speculative: Sequence[Record], **changes: object) -> Run:
    load = measured([stretch(plain, 10.0)], [stretch(speculative, 10.0)])
    failures = [
        FailedRequest(side, PROMPTS[at].id, str(each.error), str(each.reason))
        for side, own in (("plain", plain), ("speculative", speculative))
        for at, each in enumerate(own)
        if each.error is not None
    ]
    return replace(
        run_of(make_ways(), make_plan(loads=[Load("closed", 1.0, 1, 1)])),
        points=(make_point(load, None, None),),
        equality=compare_outputs([load], make_plan(), expected=True),
        failures=tuple(failures),
        **changes,
    )


def outcome(plain: Sequence[Record], speculative: Sequence[Record]) -> Comparison:
    return summarise(run_with(plain, speculative), TINY, PROMPTS)


def same(seconds: float, **more: object) -> list[Record]:
    return [record(seconds, **more) for _ in PROMPTS]


def test_equal_outputs_are_identical() -> None:
    found = outcome(same(9.0), same(5.0))
    assert (found.identical, found.mismatches, found.prompts) == (True, 0, 3)


def test_the_speedup_is_of_decoding_alone() -> None:
    assert outcome(same(9.0, first=1.0), same(5.0, first=3.0)).speedup == pytest.approx(8.0 / 2.0)


def test_the_speedup_is_the_geometric_mean_over_prompts_and_lies_in_its_interval() -> None:
    found = outcome(same(9.0), [record(1.0 + 8.0 * 4), record(5.0), record(5.0)])
    assert found.speedup == pytest.approx((2.0 * 2.0 * 0.25) ** (1 / 3))
    assert found.speedup_low is not None and found.speedup_high is not None
    assert found.speedup_low < found.speedup < found.speedup_high


def test_tokens_per_second_count_the_tokens_after_the_first() -> None:
    found = outcome(same(9.0), same(5.0))
    assert (found.plain_tokens_per_second, found.speculative_tokens_per_second) == (0.5, 1.0)


def test_a_different_token_is_reported_with_its_position() -> None:
    found = outcome(same(9.0), [record(5.0), record(5.0, ids=(1, 2, 9, 4, 5)), record(5.0)])
    (detail,) = found.mismatch_details
    assert (detail.prompt, detail.position, detail.plain_token, detail.speculative_token) == ("p1", 2, 3, 9)
    assert (found.identical, found.mismatches) == (False, 1)
    assert [(row.category, row.mismatches) for row in found.categories] == [("chat", 0), ("code", 1)]


def test_an_output_that_ends_early_is_a_mismatch_at_its_end() -> None:
    (detail,) = outcome(same(9.0), [record(5.0), record(2.0, ids=(1, 2)), record(5.0)]).mismatch_details
    assert (detail.position, detail.plain_token, detail.speculative_token) == (2, 3, None)


def test_acceptance_is_pooled_over_requests() -> None:
    counts = [Counts(3, rounds=3, drafted=6, emitted=6), Counts(3, rounds=3, drafted=6, emitted=6)]
    found = outcome(same(9.0), [record(5.0, counts=each) for each in (*counts, Counts(0, 3, 0, 0, 3))])
    assert (found.acceptance_rate, found.tokens_per_round) == (0.5, pytest.approx(15 / 9))


def test_categories_are_told_apart() -> None:
    found = outcome(same(9.0), [record(5.0), record(3.0), record(5.0)])
    assert [(row.category, row.prompts, row.speedup) for row in found.categories] == [
        ("chat", 2, pytest.approx(2.0)),
        ("code", 1, pytest.approx(4.0)),
    ]


def test_prompts_of_one_category_are_one_row_of_its_name() -> None:
    found = summarise(run_with([record(9.0)], [record(5.0)]), TINY, PROMPTS[:1])
    assert [row.category for row in found.categories] == ["chat"]


def test_a_prompt_that_fails_is_reported_and_left_out_of_the_numbers_by_reason() -> None:
    found = outcome(same(9.0), [record(5.0), failed("too long"), record(5.0)])
    assert (found.identical, found.prompts, found.failures[0].error) == (False, 2, "too long")
    assert found.left_out == {"error": 1, "other_side": 1}


def test_when_every_prompt_fails_the_first_error_is_raised() -> None:
    with pytest.raises(InvalidRequest, match="prompt p0 must be one the model can answer, got 'too long'"):
        outcome([failed("too long")] * 3, same(5.0))


def test_outputs_of_one_token_have_no_speedup() -> None:
    found = outcome(same(1.0, ids=(1,)), same(1.0, ids=(1,)))
    assert (found.speedup, found.plain_tokens_per_second) == (None, 0.0)


def test_a_run_that_was_stopped_says_so() -> None:
    found = summarise(run_with(same(9.0), same(5.0), stopped="interrupted"), TINY, PROMPTS)
    assert found.stopped == "interrupted"


def test_a_batched_output_that_differs_makes_the_outcome_not_identical() -> None:
    found = summarise(run_with(same(9.0), same(5.0)), TINY, PROMPTS, 8, 3)
    assert (found.identical, found.mismatches, found.batch, found.batch_mismatches) == (False, 0, 8, 3)


def test_the_outcome_is_one_flat_json_object() -> None:
    values = json.loads(json.dumps(outcome(same(9.0), same(5.0)).to_json()))
    assert {
        "identical", "mismatches", "prompts", "speedup", "speedup_low", "speedup_high", "acceptance_rate",
        "tokens_per_round", "plain_tokens_per_second", "speculative_tokens_per_second", "rule", "exact", "k", "model",
        "proposer", "dtype", "threads", "peak_memory_bytes", "left_out", "stopped",
    } <= set(values)  # fmt: skip


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM(tiny_model(), speculation=SpeculationOptions(proposer="suffix", draft_length=4))


class TestWithModel:
    def test_a_store_of_answers_does_not_know_a_prompt_from_another_round_or_the_warm_up(self, llm: LLM) -> None:
        params = SamplingParams(max_tokens=12, ignore_eos=True)
        (alone,) = llm.generate(PROMPTS[0].prompt, params)
        again = llm.with_speculation(llm.speculation)
        found = compare(again, PROMPTS[:1], params, chat=False, rounds=2)
        assert found.identical
        assert found.tokens_per_round == sum(each.emitted for each in alone.reports) / len(alone.reports)

    def test_the_batched_check_answers_all_prompts_at_once(self, llm: LLM) -> None:
        ticks: list[tuple[int, int]] = []
        found = compare(llm, PROMPTS, GREEDY, chat=False, batch=3, tick=lambda *tick: ticks.append(tick))
        assert (found.batch, found.batch_mismatches, found.prompts) == (3, 0, 3)
        assert ticks[-1] == (8, 8)

    def test_without_a_batched_check_nothing_is_said_about_batches(self, llm: LLM) -> None:
        found = compare(llm, PROMPTS[:1], GREEDY, chat=False)
        assert (found.batch, found.batch_mismatches) == (None, None)

    @pytest.mark.parametrize(
        ("temperature", "rule", "expected"), [(0.0, "block", True), (1.0, "match", True), (1.0, "block", False)]
    )
    def test_identical_tokens_are_promised_by_match_and_by_exact_rules_when_greedy(
        self, temperature: float, rule: str, expected: bool, llm: LLM
    ) -> None:
        ruled = llm.with_speculation(replace(llm.speculation, rule=rule))
        params = SamplingParams(temperature=temperature, seed=1, max_tokens=4)
        assert compare(ruled, PROMPTS[:1], params, chat=False).identity_expected is expected

    def test_no_prompts_are_refused(self, llm: LLM) -> None:
        with pytest.raises(InvalidRequest, match="prompts must be at least one"):
            compare(llm, [], GREEDY)
