"""Rules with real keyed noise over several rounds: laws by chi-square, and what `match` promises."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
import whole_number_noise
from request_loop import (
    constant_model,
    greedy_drafter,
    judge,
    make_sampler,
    plain,
    sampled_drafter,
    speculative,
    table_model,
)
from scipy import stats
from torch import Tensor

from gamaneh.core import ROOT, Draft, Rule, Use
from gamaneh.errors import BadLogits
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.sampling import noise
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.sampling.rules import RULES, Block, Match, Rejection, Typical

P_LIMIT = 0.001
TARGET, DRAFT = (0.4, 0.3, 0.2, 0.1), (0.7, 0.1, 0.1, 0.1)
TOY = (TARGET, DRAFT)
UNEVEN = ((0.1, 0.4, 0.4, 0.1), (0.6, 0.05, 0.3, 0.05))
"""Refused often, and with replacements of unlike draft probability: correlations show in few runs."""
SECOND_CHANCE = ((0.66, 0.34), (0.98, 0.02))
"""Refused often as a whole block, so that most positions are drafted twice."""
Toy = tuple[tuple[float, ...], tuple[float, ...]]
SAMPLED = SamplingParams(temperature=1.0)


def fits(tokens: list[int], law: tuple[float, ...]) -> bool:
    """Chi-square of the tokens against a law; a token outside its support refutes it."""
    counts = torch.bincount(torch.tensor(tokens), minlength=len(law)).double()
    expected = torch.tensor(law, dtype=torch.float64) * len(tokens)
    if counts[expected == 0].any():
        return False
    support = expected > 0
    return bool(stats.chisquare(counts[support], expected[support], sum_check=False).pvalue > P_LIMIT)


@cache
def runs(
    rule: Rule, toy: Toy, count: int, kind: type[RequestSampler] = RequestSampler
) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]]:
    """Kind 19: three tokens each of many seeds, k = 2; and the first token of those refused at once."""
    model, drafter = constant_model(toy[0]), sampled_drafter(constant_model(toy[1]))
    outputs, refused = [], []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(noise, "gumbel", whole_number_noise.gumbel)
        for seed in range(count):
            tokens = [0]
            sampler = make_sampler(SAMPLED, tokens, 4, kind, seed)
            output, verdicts = speculative(rule, model, sampler, tokens, 3, drafter, 2, 4)
            outputs.append(tuple(output))
            if verdicts[0].accepted == 0:
                refused.append(output[0])
    return tuple(outputs), tuple(refused)


def outputs_fit(rule: Rule, toy: Toy, count: int, kind: type[RequestSampler] = RequestSampler) -> bool:
    """Each of three positions follows the target, and so do pairs that may span two rounds."""
    target, (outputs, _) = toy[0], runs(rule, toy, count, kind)
    pairs = tuple(first * second for first in target for second in target)
    return (
        all(fits([output[position] for output in outputs], target) for position in range(3))
        and fits([output[0] * len(target) + output[1] for output in outputs], pairs)
        and fits([output[1] * len(target) + output[2] for output in outputs], pairs)
    )


def replacements_fit(rule: Rule, toy: Toy, count: int, kind: type[RequestSampler] = RequestSampler) -> bool:
    """Given that the first candidate was refused, the replacement follows the positive difference."""
    difference = [max(0.0, target - draft) for target, draft in zip(*toy, strict=True)]
    return fits(list(runs(rule, toy, count, kind)[1]), tuple(weight / sum(difference) for weight in difference))


REJECTION, BLOCK = Rejection(), Block()
RANDOM_RULES = pytest.mark.parametrize("rule", [REJECTION, BLOCK], ids=lambda rule: rule.name)
PLANTED_RUNS = 2500
SIZES = pytest.mark.parametrize(
    ("toy", "count"),
    [(TOY, 20_000), (UNEVEN, PLANTED_RUNS), (SECOND_CHANCE, PLANTED_RUNS)],
    ids=["toy", "uneven", "second chance"],
)


@RANDOM_RULES
@SIZES
def test_kind_19_every_position_follows_the_target_over_seeds(rule: Rule, toy: Toy, count: int) -> None:
    assert outputs_fit(rule, toy, count)


@RANDOM_RULES
@pytest.mark.parametrize(("toy", "count"), [(TOY, 20_000), (UNEVEN, PLANTED_RUNS)], ids=["toy", "uneven"])
def test_kind_19_replacements_fit_the_positive_difference(rule: Rule, toy: Toy, count: int) -> None:
    assert replacements_fit(rule, toy, count)


class SharedStream(RequestSampler):
    """Planted: the replacement is drawn with the draft's own noise."""

    def pick_from(self, probs: Tensor, position: int, use: Use) -> int:
        return super().pick_from(probs, position, Use.DRAFT)


@RANDOM_RULES
def test_a_replacement_that_shares_the_drafts_noise_is_found_out(rule: Rule) -> None:
    assert not replacements_fit(rule, UNEVEN, PLANTED_RUNS, SharedStream)
    assert not outputs_fit(rule, UNEVEN, PLANTED_RUNS, SharedStream)


class AcceptSharesDraft(RequestSampler):
    """Planted: the acceptance number is made of the draft's own noise for a token."""

    def uniform(self, position: int, use: Use) -> float:
        own = noise.gumbel(self.seed_for(Use.DRAFT), position, Use.DRAFT, torch.tensor([0]))
        return math.exp(-math.exp(-float(own)))


@RANDOM_RULES
def test_an_acceptance_number_that_shares_the_drafts_noise_is_found_out(rule: Rule) -> None:
    assert not outputs_fit(rule, UNEVEN, PLANTED_RUNS, AcceptSharesDraft)


class StaleRounds(RequestSampler):
    """Planted: a position that is drafted again meets the very draws that refused it."""

    def seed_for(self, use: Use) -> int:
        return self.seed


def test_block_with_the_draws_of_the_round_before_is_found_out() -> None:
    assert not outputs_fit(BLOCK, SECOND_CHANCE, PLANTED_RUNS, StaleRounds)


CELLS = [
    (SamplingParams(temperature=1.0), TARGET),
    (SamplingParams(temperature=0.7), tuple(prob ** (1 / 0.7) for prob in TARGET)),
    (SamplingParams(temperature=1.0, top_p=0.8), (4.0, 3.0, 2.0, 0.0)),
    (SamplingParams(temperature=1.0, top_k=2), (4.0, 3.0, 0.0, 0.0)),
    (SamplingParams(temperature=1.0, min_p=0.3), (4.0, 3.0, 2.0, 0.0)),
]
EXACT = [REJECTION, BLOCK, Match()]


@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
@pytest.mark.parametrize("greedy", [False, True], ids=["sampled", "greedy"])
@pytest.mark.parametrize(("params", "weights"), CELLS)
def test_kind_05_one_long_request_follows_the_filtered_target(
    rule: Rule, greedy: bool, params: SamplingParams, weights: tuple[float, ...]
) -> None:
    draft_model = constant_model(DRAFT)
    drafter = greedy_drafter(draft_model) if greedy else sampled_drafter(draft_model)
    tokens = [0]
    sampler = make_sampler(params, tokens, 4, seed=11)
    output, _ = speculative(rule, constant_model(TARGET), sampler, tokens, 600, drafter, 3, 4)
    assert fits(output, tuple(weight / sum(weights) for weight in weights))


def random_tree(sampler: RequestSampler, tokens: list[int], length: int) -> Draft:
    generator = torch.Generator().manual_seed(len(tokens))
    nodes = int(torch.randint(0, 9, (), generator=generator))
    parents = [int(torch.randint(-1, node, (), generator=generator)) if node else ROOT for node in range(nodes)]
    return Draft(tuple(torch.randint(0, 6, (nodes,), generator=generator).tolist()), tuple(parents))


DRAFTERS = {
    "same model": sampled_drafter(table_model(6, 0), Use.TARGET),
    "other model": sampled_drafter(table_model(6, 1), Use.TARGET),
    "independent noise": sampled_drafter(table_model(6, 0), Use.DRAFT),
    "greedy": greedy_drafter(table_model(6, 0)),
    "tree": random_tree,
    "absurd": lambda sampler, tokens, length: Draft.chain((-1, 99)[: max(length, 1)]),
}
REQUESTS = {
    "greedy": SamplingParams(),
    "sampled": SAMPLED,
    "filtered": SamplingParams(temperature=0.8, top_k=4, top_p=0.9, min_p=0.05),
    "penalised": SamplingParams(temperature=0.9, repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=0.7),
    "masked": SamplingParams(temperature=1.2, min_tokens=20, bad_words=((2,), (3, 4), (1, 5, 1)), logit_bias={5: 1.5}),
}


def safe(model_seed: int) -> object:
    """A model that answers for tokens that do not exist, as an engine would after clamping them."""
    model = table_model(6, model_seed)
    return lambda tokens: model(tuple(min(max(token, 0), 5) for token in tokens))


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("request_kind", REQUESTS)
def test_match_emits_the_tokens_of_plain_decoding(drafter: str, request_kind: str) -> None:
    params, model = REQUESTS[request_kind], safe(0)
    tokens, plain_tokens = [3, 1], [3, 1]
    output, _ = speculative(Match(), model, make_sampler(params, tokens, 6), tokens, 40, DRAFTERS[drafter], 4, 6)
    expected = plain(model, make_sampler(params, plain_tokens, 6), plain_tokens, len(output))
    assert output == expected


def test_match_accepts_everything_from_the_same_model_with_the_same_noise() -> None:
    tokens = [3, 1]
    sampler = make_sampler(SAMPLED, tokens, 6)
    _, verdicts = speculative(Match(), table_model(6, 0), sampler, tokens, 40, DRAFTERS["same model"], 4, 6)
    assert all(verdict.bonus for verdict in verdicts)


def coupled_agreement(target: Tensor, draft: Tensor) -> float:
    """Sum over x of 1 / sum over y of max(target(y) / target(x), draft(y) / draft(x))."""
    both = [x for x in range(len(target)) if target[x] > 0 and draft[x] > 0]
    return sum(1 / float(torch.maximum(target / target[x], draft / draft[x]).sum()) for x in both)


@pytest.mark.parametrize("seed", range(3))
def test_coupled_acceptance_equals_the_formula_and_its_bound(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    target, draft = torch.rand(2, 5, generator=generator, dtype=torch.float64).square().softmax(1)
    rounds = 1500
    agreed = 0
    for position in range(1, rounds + 1):
        tokens = [0] * position
        sampler = make_sampler(SAMPLED, tokens, 5, seed=seed)
        token = sampler.pick(draft.log(), position, Use.TARGET)
        agreed += judge(Match(), lambda tokens: target.log().float(), sampler, tokens, Draft.chain([token]), 5).accepted
    expected = coupled_agreement(target, draft)
    total_variation = float((target - draft).abs().sum()) / 2
    assert expected >= (1 - total_variation) / (1 + total_variation) - 1e-12
    assert abs(agreed / rounds - expected) < 4 * math.sqrt(expected * (1 - expected) / rounds)


@pytest.mark.parametrize("factory", RULES.values(), ids=RULES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_every_rule_is_plain_decoding_when_greedy(factory: object, drafter: str) -> None:
    rule, model = factory(SpeculationOptions()), safe(0)
    tokens, plain_tokens = [3, 1], [3, 1]
    greedy = SamplingParams()
    output, _ = speculative(rule, model, make_sampler(greedy, tokens, 6), tokens, 30, DRAFTERS[drafter], 4, 6)
    assert output == plain(model, make_sampler(greedy, plain_tokens, 6), plain_tokens, len(output))


@pytest.mark.parametrize("factory", RULES.values(), ids=RULES)
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_kind_27_exact_ties_go_to_the_lowest_id_in_all_paths(factory: object, drafter: str) -> None:
    def tied(tokens: tuple[int, ...]) -> Tensor:
        row = torch.zeros(6, dtype=torch.bfloat16)
        row[[2 + len(tokens) % 2, 5]] = 7.0
        return row

    tokens = [3, 1]
    sampler = make_sampler(SamplingParams(), tokens, 6)
    output, _ = speculative(factory(SpeculationOptions()), tied, sampler, tokens, 20, DRAFTERS[drafter], 3, 6)
    assert output == [2 + position % 2 for position in range(2, 2 + len(output))]


@pytest.mark.parametrize("factory", RULES.values(), ids=RULES)
@pytest.mark.parametrize("params", [SamplingParams(), SAMPLED, SamplingParams(temperature=0.5, top_p=0.9)])
def test_nan_in_the_targets_logits_ends_the_request(factory: object, params: SamplingParams) -> None:
    tokens = [0]
    sampler = make_sampler(params, tokens, 4)
    with pytest.raises(BadLogits):
        judge(
            factory(SpeculationOptions()),
            lambda tokens: torch.tensor([0.0, math.nan, 1.0, 0.0]),
            sampler,
            tokens,
            Draft.chain([2]),
            4,
        )


def test_typical_keeps_the_longest_path_of_likely_enough_tokens() -> None:
    draft = Draft((0, 1, 3, 2), (ROOT, ROOT, 0, 1))
    tokens = [0]
    sampler = make_sampler(SAMPLED, tokens, 4)
    verdict = judge(Typical(0.15, 1.0), constant_model(TARGET), sampler, tokens, draft, 4)
    assert verdict.path == (1, 3)
    assert verdict.tokens[:2] == (1, 2)


def test_typical_prefers_the_likelier_of_equally_long_paths() -> None:
    tokens = [0]
    sampler = make_sampler(SAMPLED, tokens, 4)
    verdict = judge(Typical(0.01, 1.0), constant_model(TARGET), sampler, tokens, Draft((2, 1), (ROOT, ROOT)), 4)
    assert verdict.path == (1,)


def test_typical_threshold_falls_with_the_entropy() -> None:
    flat, peaked = constant_model((0.25,) * 4), constant_model((0.91, 0.03, 0.03, 0.03))
    tokens = [0]
    sampler = make_sampler(SAMPLED, tokens, 4)
    rule = Typical(0.5, 0.3)
    assert judge(rule, flat, sampler, tokens, Draft.chain([1]), 4).accepted == 1
    assert judge(rule, peaked, sampler, tokens, Draft.chain([1]), 4).accepted == 0


@pytest.mark.parametrize("factory", RULES.values(), ids=RULES)
def test_an_empty_draft_emits_one_token_of_the_target(factory: object) -> None:
    tokens, plain_tokens = [0], [0]
    verdict = judge(
        factory(SpeculationOptions()), constant_model(TARGET), make_sampler(SAMPLED, tokens, 4), tokens, Draft(), 4
    )
    assert verdict.path == ()
    expected = plain(constant_model(TARGET), make_sampler(SAMPLED, plain_tokens, 4), plain_tokens, 1)
    assert list(verdict.tokens) == expected


def test_only_typical_is_approximate() -> None:
    assert [name for name, factory in RULES.items() if not factory(SpeculationOptions()).exact] == ["typical"]
