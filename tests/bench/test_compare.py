import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from gamaneh.bench.compare import Case, compare
from gamaneh.bench.comparison import Setup
from gamaneh.core import ReasonCode, StepReport, TokenLogprob
from gamaneh.engine.llm import LLM
from gamaneh.errors import InvalidRequest
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.testing import tiny_model

GREEDY = SamplingParams(max_tokens=8)
SETUP = Setup(
    model="tiny",
    dtype="float32",
    device="cpu",
    proposer="lookup",
    k=3,
    rule="match",
    exact=True,
    invariant=True,
    threads=1,
)
CASES = [Case("a", "code", "A"), Case("b", "chat", "B"), Case("c", "chat", "C")]


@dataclass
class Answer:
    """As much of a generation as the comparison reads."""

    tokens: list[int]
    seconds: float
    first_token_seconds: float = 1.0
    reports: list[StepReport] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    error: str | None = None


class StubModel:
    """Answers each prompt from a table and notes what it was asked."""

    def __init__(
        self, answers: Mapping[str, Answer], name: str = "", asked: list[tuple[str, str]] | None = None
    ) -> None:
        self.answers = answers
        self.name = name
        self.asked: list[tuple[str, str]] = [] if asked is None else asked
        self.references: list[object] = []
        self.salts: list[str] = []
        self.batches: list[int] = []

    def generate(self, prompts: Sequence[Any], params: Any, *, references: Any = None, salt: str = "") -> list[Any]:
        self.salts += [salt] * len(prompts)
        self.asked += [(self.name, prompt) for prompt in prompts]
        self.references += references
        self.batches.append(len(prompts))
        return [self._answer(self.answers[prompt], params) for prompt in prompts]

    def _answer(self, answer: Answer, params: SamplingParams) -> Answer:
        if params.logprobs is None:
            return answer
        top = TokenLogprob(0, -0.5, top=((7, -0.53), (0, -0.5)))
        return replace(answer, logprobs=[top] * len(answer.tokens[: params.max_tokens]))


def answers(seconds: float, tokens: Sequence[int] = (1, 2, 3, 4, 5), **options: Any) -> dict[str, Answer]:
    return {case.id.upper(): Answer(list(tokens), seconds, **options) for case in CASES}


def report(drafted: int, accepted: int) -> StepReport:
    return StepReport(
        request_id="r",
        proposer="lookup",
        rule="match",
        drafted=drafted,
        depth=drafted,
        accepted=accepted,
        emitted=accepted + 1,
        batch_size=1,
        context_len=10,
        draft_seconds=0.0,
        verify_seconds=0.1,
        decision=drafted,
        reason="",
        reason_code=ReasonCode.FIXED,
    )


def test_equal_outputs_are_identical() -> None:
    outcome = compare(StubModel(answers(9.0)), StubModel(answers(5.0)), CASES, GREEDY, SETUP)

    assert (outcome.identical, outcome.mismatches, outcome.prompts) == (True, 0, 3)


def test_the_speedup_is_of_decoding_alone() -> None:
    plain, speculative = answers(9.0, first_token_seconds=1.0), answers(5.0, first_token_seconds=3.0)

    outcome = compare(StubModel(plain), StubModel(speculative), CASES, GREEDY, SETUP)

    assert outcome.speedup == pytest.approx(8.0 / 2.0)


def test_the_speedup_is_the_geometric_mean_over_prompts() -> None:
    speculative = answers(5.0) | {"A": Answer([1, 2, 3, 4, 5], 1.0 + 8.0 * 4)}

    outcome = compare(StubModel(answers(9.0)), StubModel(speculative), CASES, GREEDY, SETUP)

    assert outcome.speedup == pytest.approx((2.0 * 2.0 * 0.25) ** (1 / 3))


def test_the_speedup_lies_in_its_interval() -> None:
    speculative = answers(5.0) | {"A": Answer([1, 2, 3, 4, 5], 8.0)}
    outcome = compare(StubModel(answers(9.0)), StubModel(speculative), CASES, GREEDY, SETUP)

    assert outcome.speedup_low < outcome.speedup < outcome.speedup_high  # type: ignore[operator]


def test_tokens_per_second_count_the_tokens_after_the_first() -> None:
    outcome = compare(StubModel(answers(9.0)), StubModel(answers(5.0)), CASES, GREEDY, SETUP)

    assert (outcome.plain_tokens_per_second, outcome.speculative_tokens_per_second) == (0.5, 1.0)


def test_a_pair_is_swapped_from_one_prompt_to_the_next_after_a_warm_up() -> None:
    asked: list[tuple[str, str]] = []
    compare(StubModel(answers(9.0), "plain", asked), StubModel(answers(5.0), "fast", asked), CASES, GREEDY, SETUP)

    assert asked == [
        ("plain", "A"),
        ("fast", "A"),
        ("fast", "A"),
        ("plain", "A"),
        ("plain", "B"),
        ("fast", "B"),
        ("fast", "C"),
        ("plain", "C"),
    ]


def test_the_warm_up_and_a_case_that_comes_again_have_salts_of_their_own() -> None:
    plain, speculative = StubModel(answers(9.0)), StubModel(answers(5.0))
    compare(plain, speculative, [*CASES, CASES[1]], GREEDY, SETUP)

    assert plain.salts == speculative.salts == ["warm-up", "0", "0", "0", "1"]


def test_a_store_of_answers_does_not_know_the_first_prompt_from_the_warm_up() -> None:
    remembering = SpeculationOptions(proposer="suffix", draft_length=4)
    llm = LLM(tiny_model(), speculation=remembering)
    params = SamplingParams(max_tokens=12, ignore_eos=True)
    (alone,) = llm.generate("a prompt", params)

    fresh, plain = (llm.with_speculation(options) for options in (remembering, SpeculationOptions()))
    outcome = compare(plain, fresh, [Case("a", "chat", "a prompt")], params, SETUP)

    assert outcome.identical
    assert outcome.tokens_per_round == sum(each.emitted for each in alone.reports) / len(alone.reports)


def test_a_different_token_is_reported_with_its_position() -> None:
    speculative = answers(5.0) | {"B": Answer([1, 2, 9, 4, 5], 5.0)}

    outcome = compare(StubModel(answers(9.0)), StubModel(speculative), CASES, GREEDY, SETUP)

    (detail,) = outcome.mismatch_details
    assert (detail.prompt, detail.position, detail.plain_token, detail.speculative_token) == ("b", 2, 3, 9)


def test_an_output_that_ends_early_is_a_mismatch_at_its_end() -> None:
    speculative = answers(5.0) | {"B": Answer([1, 2], 2.0)}

    outcome = compare(StubModel(answers(9.0)), StubModel(speculative), CASES, GREEDY, SETUP)

    (detail,) = outcome.mismatch_details
    assert (detail.position, detail.plain_token, detail.speculative_token) == (2, 3, None)


def test_a_mismatch_carries_the_gap_between_the_two_largest_logits() -> None:
    speculative = answers(5.0) | {"B": Answer([1, 9, 3, 4, 5], 5.0)}

    outcome = compare(StubModel(answers(9.0)), StubModel(speculative), CASES, GREEDY, SETUP)

    assert outcome.mismatch_details[0].logit_gap == pytest.approx(0.03)


def test_one_mismatch_makes_the_outcome_not_identical() -> None:
    speculative = answers(5.0) | {"B": Answer([1, 9], 5.0)}

    outcome = compare(StubModel(answers(9.0)), StubModel(speculative), CASES, GREEDY, SETUP)

    assert (outcome.identical, outcome.mismatches) == (False, 1)


def test_acceptance_is_pooled_over_rounds() -> None:
    speculative = answers(5.0, reports=[report(4, 1), report(2, 2), report(0, 0)])

    outcome = compare(StubModel(answers(9.0)), StubModel(speculative), CASES, GREEDY, SETUP)

    assert (outcome.acceptance_rate, outcome.tokens_per_round) == (0.5, 2.0)


def test_categories_are_told_apart() -> None:
    speculative = answers(5.0) | {"A": Answer([1, 2, 3, 4, 5], 3.0)}

    outcome = compare(StubModel(answers(9.0)), StubModel(speculative), CASES, GREEDY, SETUP)

    assert [(row.category, row.prompts, row.speedup) for row in outcome.categories] == [
        ("code", 1, pytest.approx(4.0)),
        ("chat", 2, pytest.approx(2.0)),
    ]


def test_a_prompt_that_fails_is_reported_and_left_out_of_the_numbers() -> None:
    speculative = answers(5.0) | {"B": Answer([], 0.0, 0.0, error="too long")}

    outcome = compare(StubModel(answers(9.0)), StubModel(speculative), CASES, GREEDY, SETUP)

    assert (outcome.identical, outcome.prompts, outcome.failures[0].error) == (False, 2, "too long")


def test_when_every_prompt_fails_the_first_error_is_raised() -> None:
    with pytest.raises(InvalidRequest, match="prompt a must be one the model can answer, got 'too long'"):
        compare(StubModel(answers(9.0, error="too long")), StubModel(answers(5.0)), CASES, GREEDY, SETUP)


def test_no_prompts_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="prompts must be at least one"):
        compare(StubModel({}), StubModel({}), [], GREEDY, SETUP)


def test_outputs_of_one_token_have_no_speedup() -> None:
    outcome = compare(StubModel(answers(1.0, [1])), StubModel(answers(1.0, [1])), CASES, GREEDY, SETUP)

    assert (outcome.speedup, outcome.plain_tokens_per_second) == (None, 0.0)


def test_the_batched_check_answers_all_prompts_at_once() -> None:
    speculative = StubModel(answers(5.0))
    compare(StubModel(answers(9.0)), speculative, CASES, GREEDY, SETUP, batch=8)

    assert speculative.batches == [1, 1, 1, 1, 3]


def test_without_a_batched_check_nothing_is_said_about_batches() -> None:
    outcome = compare(StubModel(answers(9.0)), StubModel(answers(5.0)), CASES, GREEDY, SETUP)

    assert (outcome.batch, outcome.batch_mismatches) == (None, None)


def test_a_batched_output_that_differs_makes_the_outcome_not_identical() -> None:
    class Shaky(StubModel):
        def _answer(self, answer: Answer, params: SamplingParams) -> Answer:
            return replace(answer, tokens=[9]) if self.batches[-1] > 1 else answer

    outcome = compare(StubModel(answers(9.0)), Shaky(answers(5.0)), CASES, GREEDY, SETUP, batch=8)

    assert (outcome.identical, outcome.mismatches, outcome.batch_mismatches) == (False, 0, 3)


def test_references_reach_the_model() -> None:
    model = StubModel(answers(5.0))
    compare(model, model, [Case("a", "code", "A", reference="text")], GREEDY, SETUP)

    assert model.references == ["text"] * 4


@pytest.mark.parametrize(
    ("temperature", "rule", "expected"), [(0.0, "block", True), (1.0, "match", True), (1.0, "block", False)]
)
def test_identical_tokens_are_promised_by_match_and_by_exact_rules_when_greedy(
    temperature: float, rule: str, expected: bool
) -> None:
    params = SamplingParams(temperature=temperature, seed=1)

    outcome = compare(StubModel(answers(9.0)), StubModel(answers(5.0)), CASES, params, replace(SETUP, rule=rule))

    assert outcome.identity_expected is expected


def test_ticks_end_at_their_total() -> None:
    ticks: list[tuple[int, int]] = []
    model = StubModel(answers(5.0))
    compare(model, model, CASES, GREEDY, SETUP, batch=2, tick=lambda done, total: ticks.append((done, total)))

    assert ticks[-1] == (11, 11)


def test_the_outcome_is_one_flat_json_object() -> None:
    outcome = compare(StubModel(answers(9.0)), StubModel(answers(5.0)), CASES, GREEDY, SETUP)

    values = json.loads(json.dumps(outcome.to_json()))

    assert {
        "identical", "mismatches", "prompts", "speedup", "speedup_low", "speedup_high", "acceptance_rate",
        "tokens_per_round", "plain_tokens_per_second", "speculative_tokens_per_second", "rule", "exact", "k", "model",
        "proposer", "dtype", "threads", "peak_memory_bytes",
    } <= set(values)  # fmt: skip
