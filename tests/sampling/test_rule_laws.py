"""The exact law of each rule, by enumeration: the output follows the target, accepted lengths as proven."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from rule_worlds import Drafter, Law, Tape, accepted, distance, greedy, output_law, plain_law, sampled, verdicts
from torch import Tensor

from gamaneh.core import ROOT, Draft, Rule, TargetRows, Use, Verdict
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.sampling import rules
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.sampling.rules import RULES, Block, Match, Rejection

EXACT = [factory(SpeculationOptions()) for factory in RULES.values() if factory(SpeculationOptions()).exact]
CLOSE = 1e-9


def constant(*probs: float) -> Law:
    row = torch.tensor(probs, dtype=torch.float64)
    return lambda tokens: row


def random_law(vocab: int, seed: int) -> Law:
    """Another distribution after every prefix; a third of the tokens has probability 0."""

    def law(tokens: tuple[int, ...]) -> Tensor:
        generator = torch.Generator().manual_seed(hash((seed, *tokens)) % 2**31)
        weights = torch.rand(vocab, generator=generator, dtype=torch.float64)
        weights[torch.rand(vocab, generator=generator) < 0.3] = 0.0
        weights[int(torch.randint(vocab, (), generator=generator))] += 0.2
        return weights / weights.sum()

    return law


def follows_target(rule: Rule, target: Law, drafter: Drafter, length: int) -> bool:
    return distance(output_law(rule, target, drafter, length), plain_law(target, length)) < CLOSE


@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
@pytest.mark.parametrize("drafts", [sampled, greedy])
@pytest.mark.parametrize("seed", range(4))
def test_output_follows_the_target_after_every_prefix(
    rule: Rule, drafts: Callable[[Law, int], Drafter], seed: int
) -> None:
    target, draft = random_law(3, seed), random_law(3, seed + 100)
    assert follows_target(rule, target, drafts(draft, 3), 4)


def stopping_drafter(law: Law, length: int) -> Drafter:
    """Samples until the next distribution is unsure; looks only at what is drafted already."""

    def draft(tape: Tape) -> Draft:
        whole = sampled(law, length)(tape)
        unsure = [node for node in range(1, length) if float(law(whole.tokens[:node]).max()) < 0.6]
        stop = unsure[0] if unsure else length
        assert whole.probs is not None
        return Draft.chain(whole.tokens[:stop], whole.probs[:stop])

    return draft


@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
@pytest.mark.parametrize("seed", range(3))
def test_output_follows_the_target_when_the_drafter_stops_early(rule: Rule, seed: int) -> None:
    target, draft = random_law(3, seed), random_law(3, seed + 50)
    assert follows_target(rule, target, stopping_drafter(draft, 3), 4)


FILTERS = [(1.0, 1.0, 0, 0.0), (0.7, 1.0, 0, 0.0), (1.0, 0.8, 0, 0.0), (1.0, 1.0, 2, 0.0), (1.0, 1.0, 0, 0.3)]
TARGET, DRAFT = (0.4, 0.3, 0.2, 0.1), (0.7, 0.1, 0.1, 0.1)
SHARPER = [prob ** (1 / 0.7) for prob in TARGET]
FILTERED = [
    TARGET,
    tuple(prob / sum(SHARPER) for prob in SHARPER),
    (4 / 9, 3 / 9, 2 / 9, 0.0),
    (4 / 7, 3 / 7, 0.0, 0.0),
    (4 / 9, 3 / 9, 2 / 9, 0.0),
]


def through_pipeline(probs: tuple[float, ...], filters: tuple[float, float, int, float]) -> Law:
    temperature, top_p, top_k, min_p = filters
    params = SamplingParams(temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    sampler = RequestSampler(params, vocab_size=4, prompt=(0,), tokens=[0], eos_ids=(), seed=0)
    row = sampler.probs(sampler.scores(torch.tensor(probs).log(), ())).double()
    return lambda tokens: row / row.sum()


@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
@pytest.mark.parametrize("drafts", [sampled, greedy])
@pytest.mark.parametrize("length", [1, 3])
@pytest.mark.parametrize(("filters", "expected"), list(zip(FILTERS, FILTERED, strict=True)))
def test_kind_05_law_is_the_filtered_target(
    rule: Rule,
    drafts: Callable[[Law, int], Drafter],
    length: int,
    filters: tuple[float, float, int, float],
    expected: tuple[float, ...],
) -> None:
    target, draft = through_pipeline(TARGET, filters), through_pipeline(DRAFT, filters)
    law = output_law(rule, target, drafts(draft, length), length)
    assert distance(law, plain_law(constant(*expected), length)) < 1e-6


@pytest.mark.parametrize("seed", range(6))
def test_block_accepts_at_least_as_many_as_rejection(seed: int) -> None:
    target, draft = random_law(3, seed), random_law(3, seed + 7)
    drafter = sampled(draft, 3)
    assert accepted(Block(), target, drafter) >= accepted(Rejection(), target, drafter) - CLOSE


def test_block_gains_what_the_paper_says_on_its_example() -> None:
    target, drafter = constant(1 / 3, 2 / 3), sampled(constant(2 / 3, 1 / 3), 2)
    assert accepted(Rejection(), target, drafter) == pytest.approx(10 / 9)
    assert accepted(Block(), target, drafter) == pytest.approx(11 / 9)


def test_rejection_accepts_one_minus_total_variation() -> None:
    drafter = sampled(constant(*DRAFT), 1)
    assert accepted(Rejection(), constant(*TARGET), drafter) == pytest.approx(0.7)


def test_match_accepts_a_point_mass_with_its_target_probability() -> None:
    drafter = greedy(constant(*DRAFT), 1)
    assert accepted(Match(), constant(*TARGET), drafter) == pytest.approx(0.4)


def test_match_accepts_the_sum_over_the_children_of_a_tree() -> None:
    tree = Draft((0, 2, 3, 1), (ROOT, ROOT, 0, 0))
    assert accepted(Match(), constant(*TARGET), lambda tape: tree) == pytest.approx(0.4 + 0.2 + 0.4 * (0.1 + 0.3))


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=lambda rule: rule.name)
def test_correction_after_an_empty_path_fits_the_positive_difference(rule: Rule) -> None:
    weights = [0.0] * 4
    for chance, verdict in verdicts(rule, constant(*TARGET), sampled(constant(*DRAFT), 2)):
        if verdict.accepted == 0:
            weights[verdict.tokens[0]] += chance
    assert [weight / sum(weights) for weight in weights] == pytest.approx([0, 2 / 3, 1 / 3, 0])


class StopsAtFirstFailure(Block):
    """Planted: block verification that does not look past the first prefix that fails."""

    def judge(self, draft: Draft, target: TargetRows) -> Verdict:
        nodes = tuple(range(len(draft)))
        chances, residuals = rules._prefixes(draft, target, nodes)
        kept = 0
        while kept < len(chances) - 1 and target.uniform(kept - 1, Use.ACCEPT) <= chances[kept + 1]:
            kept += 1
        if kept == len(nodes):
            return rules._with_bonus(target, draft, nodes)
        return rules._corrected(target, draft, nodes[:kept], residuals[kept])


def soft_probs_of_a_greedy_drafter(law: Law, length: int) -> Drafter:
    """Planted: takes the most likely token, but claims to have sampled it."""

    def draft(tape: Tape) -> Draft:
        tokens = greedy(law, length)(tape).tokens
        return Draft.chain(tokens, torch.stack([law(tokens[:node]) for node in range(length)]))

    return draft


def test_a_block_rule_that_stops_at_the_first_failure_is_found_out() -> None:
    target, drafter = constant(1 / 3, 2 / 3), sampled(constant(2 / 3, 1 / 3), 2)
    assert not follows_target(StopsAtFirstFailure(), target, drafter, 3)


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=lambda rule: rule.name)
def test_soft_probs_of_a_greedy_draft_are_found_out(rule: Rule) -> None:
    drafter = soft_probs_of_a_greedy_drafter(constant(*DRAFT), 2)
    assert not follows_target(rule, constant(*TARGET), drafter, 2)


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=lambda rule: rule.name)
def test_a_residual_without_subtraction_is_found_out(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "_residual", lambda target_probs, draft_probs: target_probs)
    assert not follows_target(rule, constant(*TARGET), sampled(constant(*DRAFT), 2), 2)


NAN, INF = math.nan, math.inf
GOOD = list(DRAFT)
BAD_DRAFTS = {
    "NaN": Draft.chain((0, 1), torch.tensor([GOOD, [NAN, 0.5, 0.5, 0.0]])),
    "NaN first": Draft.chain((0, 1), torch.tensor([[NAN] * 4, GOOD])),
    "infinite": Draft.chain((0, 1), torch.tensor([[INF, 1.0, 0.0, 0.0], GOOD])),
    "negative": Draft.chain((0, 1), torch.tensor([[1.5, -0.5, 0.0, 0.0], GOOD])),
    "all zero": Draft.chain((0, 1), torch.tensor([[0.0] * 4, GOOD])),
    "not possible": Draft.chain((0, 1), torch.tensor([[0.0, 1.0, 0.0, 0.0], GOOD])),
    "flat": Draft.chain((0, 1), torch.tensor([1.0, 1.0])),
    "token beyond": Draft.chain((0, 9, 1), torch.tensor([GOOD] * 3)),
    "token negative": Draft.chain((-1, 1), torch.tensor([GOOD] * 2)),
    "point token beyond": Draft.chain((4, 1)),
    "point token negative": Draft.chain((1, -4)),
}


@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
@pytest.mark.parametrize("name", ["NaN first", "infinite", "negative", "all zero", "not possible", "flat"])
def test_a_first_candidate_with_bad_probs_leaves_the_target_law(rule: Rule, name: str) -> None:
    law = output_law(rule, constant(*TARGET), lambda tape: BAD_DRAFTS[name], 1)
    assert distance(law, plain_law(constant(*TARGET), 1)) < CLOSE


@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
@pytest.mark.parametrize("name", ["token negative", "point token beyond", "point token negative"])
def test_a_token_that_does_not_exist_leaves_the_target_law(rule: Rule, name: str) -> None:
    assert follows_target(rule, constant(*TARGET), lambda tape: BAD_DRAFTS[name], 2)


@pytest.mark.parametrize("factory", RULES.values(), ids=RULES)
@pytest.mark.parametrize("name", BAD_DRAFTS)
def test_bad_drafts_never_emit_what_the_target_forbids(
    factory: Callable[[SpeculationOptions], Rule], name: str
) -> None:
    rule = factory(SpeculationOptions())
    allowed = constant(0.5, 0.0, 0.5, 0.0)
    for _, verdict in verdicts(rule, allowed, lambda tape: BAD_DRAFTS[name]):
        assert set(verdict.tokens) <= {0, 2}


def nan_in_second_row(law: Law, length: int) -> Drafter:
    def draft(tape: Tape) -> Draft:
        whole = sampled(law, length)(tape)
        assert whole.probs is not None
        whole.probs[1, 0] = NAN
        return whole

    return draft


@pytest.mark.parametrize("rule", [Rejection(), Block()], ids=lambda rule: rule.name)
def test_nan_after_good_candidates_leaves_the_target_law(rule: Rule) -> None:
    assert follows_target(rule, random_law(3, 1), nan_in_second_row(random_law(3, 2), 3), 4)


@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
@pytest.mark.parametrize("draft_vocab", [2, 6])
def test_draft_vocabularies_of_another_size_leave_the_target_law(rule: Rule, draft_vocab: int) -> None:
    target = random_law(4, 3)
    drafter = sampled(lambda tokens: random_law(draft_vocab, 4)(tokens), 2)

    def total(tokens: tuple[int, ...]) -> Tensor:
        # What follows a token that the target does not have is never reached, but may be asked for.
        return target(tokens) if all(token < 4 for token in tokens) else torch.full((4,), 0.25, dtype=torch.float64)

    assert follows_target(rule, total, drafter, 3)


@pytest.mark.parametrize("rule", EXACT, ids=lambda rule: rule.name)
def test_unnormalised_draft_probs_are_read_as_weights(rule: Rule) -> None:
    def scaled(tape: Tape) -> Draft:
        draft = sampled(constant(*DRAFT), 2)(tape)
        assert draft.probs is not None
        return Draft.chain(draft.tokens, draft.probs * 3)

    assert follows_target(rule, constant(*TARGET), scaled, 3)
