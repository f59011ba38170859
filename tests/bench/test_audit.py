"""The audit passes what is exact, fails what is not, and says when it cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from gamaneh.bench.audit.findings import Audit, Check, Outcome
from gamaneh.bench.audit.run import GREEDY, LAW, SEEDED, Effort, audit
from gamaneh.bench.audit.subject import Case, Subject
from gamaneh.bench.comparison import Setup
from gamaneh.core import EMPTY_DRAFT
from gamaneh.engine.engine import Engine
from gamaneh.errors import InvalidOption, InvalidRequest
from gamaneh.kv import BlockPool, KVManager
from gamaneh.models.runner import Runner
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.testing import ByteTokenizer, Script, ScriptedRunner, hashed

VOCAB = 12
TARGET, DRAFT = hashed(VOCAB, 1.0), hashed(VOCAB, 0.7)
CASES = [Case("one", [1, 2, 3]), Case("two", [4]), Case("three", [5, 6])]
SAMPLING = SamplingParams(temperature=1.0, max_tokens=24)
EFFORT = Effort(draws=120, length=6)
SETUP = Setup("scripted", "float32", "cpu", "draft_model", 3, "auto", True, True, 1)


def engine(target: Script = TARGET, draft: Script | None = None, **speculation) -> Engine:
    runner = ScriptedRunner(target, VOCAB, num_blocks=400)
    proposers = {}
    if draft is not None:
        draft_runner = ScriptedRunner(draft, VOCAB, num_blocks=400)
        proposer = DraftModelProposer(draft_runner, manager(draft_runner), vocab_size=VOCAB, min_confidence=0.0)
        proposers = {proposer.name: proposer}
        speculation = {"proposer": "draft_model", "draft_length": 3, **speculation}
    return Engine(
        runner,
        manager(runner),
        ByteTokenizer(),
        proposers=proposers,
        speculation=SpeculationOptions(**speculation),
        options=EngineOptions(max_batch=32, step_tokens=512),
    )


def manager(runner: ScriptedRunner) -> KVManager:
    return KVManager(BlockPool(400, 4, prefix_cache=False), runner.cache)


def audited(
    speculative: Engine | None = None,
    plain: Engine | None = None,
    sampling: SamplingParams = SAMPLING,
    cases: list[Case] | None = None,
    **options,
) -> Audit:
    speculative = speculative or engine(draft=DRAFT, **options)
    subject = Subject(plain or engine(), speculative, CASES if cases is None else cases, seed=7)
    return audit(subject, sampling, SETUP, EFFORT)


def named(outcome: Audit, name: str) -> Check:
    return next(check for check in outcome.checks if check.name == name)


@pytest.fixture(scope="module")
def honest() -> Audit:
    return audited()


def test_an_exact_system_passes_every_check(honest: Audit) -> None:
    assert [check.outcome for check in honest.checks] == [Outcome.PASS] * 3
    assert honest.verdict is Outcome.PASS


def test_each_check_names_the_rule_that_judged(honest: Audit) -> None:
    assert [check.rule for check in honest.checks] == ["match", "match", "block"]


def test_the_planted_faults_are_found_and_counted(honest: Audit) -> None:
    for check in honest.checks:
        assert check.planted is not None and check.planted.found
        assert check.planted.kept > 0
    planted = named(honest, LAW).planted
    assert planted is not None and planted.smallest_share is not None and planted.smallest_share <= 0.5


def test_the_evidence_tells_how_much_was_put_to_the_test(honest: Audit) -> None:
    parity, law = named(honest, GREEDY).exposure, named(honest, LAW).exposure
    assert (parity.outputs, parity.tokens) == (2 * len(CASES), 2 * len(CASES) * 24)
    assert (law.outputs, law.tokens) == (len(CASES) * 120, len(CASES) * 120 * 6)
    assert parity.drafted > parity.accepted > 0


def test_nothing_is_left_in_the_engines() -> None:
    plain, speculative = engine(), engine(draft=DRAFT)
    audited(speculative, plain)
    for one in (plain, speculative):
        assert not one.has_work and not one.observers and one.kv.pool.in_use == 0


def test_the_same_seed_gives_the_same_audit(honest: Audit) -> None:
    assert audited() == replace(honest, machine=audited().machine)


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_other_exact_rules_pass(rule: str) -> None:
    outcome = audited(rule=rule)
    assert outcome.verdict is Outcome.PASS
    assert named(outcome, SEEDED).outcome is (Outcome.PASS if rule == "match" else Outcome.SKIPPED)


@pytest.mark.parametrize(
    "sampling", [{"temperature": 0.6}, {"top_k": 3}, {"top_p": 0.7}, {"repetition_penalty": 1.5, "seed": 3}]
)
def test_exact_systems_pass_under_other_sampling(sampling: dict[str, float]) -> None:
    assert audited(sampling=replace(SAMPLING, **sampling)).verdict is Outcome.PASS


def test_an_approximate_rule_fails_by_its_output() -> None:
    outcome = audited(rule="typical")
    assert named(outcome, LAW).outcome is Outcome.FAIL
    assert outcome.verdict is Outcome.FAIL


def test_a_draft_that_lies_about_its_probabilities_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes its best token, but says that it sampled."""
    speculative = engine(draft=DRAFT, rule="rejection")
    proposer = speculative.proposers["draft_model"]
    original = proposer._grow

    def grow(path, logits):
        original(path, logits)
        path.tokens[-1] = int(logits.argmax())

    monkeypatch.setattr(proposer, "_grow", grow)
    law = named(audited(speculative), LAW)
    assert law.outcome is Outcome.FAIL
    assert any(test.failed for test in law.tests)


class OtherWhileVerifying(ScriptedRunner):
    """A target that answers differently in the rows of a draft, as one with wrong positions there would."""

    def __init__(self, invariant: bool, other: Script) -> None:
        super().__init__(TARGET, VOCAB, num_blocks=400)
        self.invariant = invariant
        self.other = other

    def forward(self, feeds, **options):
        if not any(feed.parents for feed in feeds):
            return super().forward(feeds, **options)
        self.script, own = self.other, self.script
        try:
            return super().forward(feeds, **options)
        finally:
            self.script = own


def damaged(invariant: bool, other: Script) -> Engine:
    whole = engine(draft=DRAFT)
    runner: Runner = OtherWhileVerifying(invariant, other)
    return Engine(
        runner,
        manager(runner),
        ByteTokenizer(),
        proposers=whole.proposers,
        speculation=whole.speculation,
        options=whole.options,
    )


def shifted(amount: float) -> Script:
    """The target, with every second logit moved."""

    def script(history):
        logits = TARGET(history).clone()
        logits[::2] += amount
        return logits

    return script


def test_a_target_that_verifies_wrongly_fails_everywhere() -> None:
    outcome = audited(damaged(True, shifted(1.5)))
    assert [check.outcome for check in outcome.checks] == [Outcome.FAIL] * 3
    first = named(outcome, GREEDY).differences[0]
    assert first.plain_token != first.speculative_token
    assert first.margin is not None and not first.tie


def test_without_invariance_large_margins_are_no_ties() -> None:
    assert named(audited(damaged(False, shifted(1.5))), GREEDY).outcome is Outcome.FAIL


class Wavering(ScriptedRunner):
    """A target whose logits move a little with the size of the batch, as free shapes do."""

    invariant = False

    def __init__(self) -> None:
        super().__init__(TARGET, VOCAB, num_blocks=400)

    def forward(self, feeds, **options):
        forward = super().forward(feeds, **options)
        rows = sum(feed.logit_rows for feed in feeds)
        for logits in forward.logits:
            logits[:, rows % VOCAB] += 0.2
        return forward


def wavering(draft: Script | None = None) -> Engine:
    whole, runner = engine(draft=draft), Wavering()
    return Engine(
        runner,
        manager(runner),
        ByteTokenizer(),
        proposers=whole.proposers,
        speculation=whole.speculation,
        options=whole.options,
    )


def test_differences_within_what_a_batch_changes_are_ties() -> None:
    check = named(audited(wavering(DRAFT), wavering()), GREEDY)
    assert check.differences and check.rounding is not None
    assert all(difference.tie for difference in check.differences)
    assert check.outcome is Outcome.PASS
    assert "ties" in check.reason


def without_drafts(speculative: Engine) -> Engine:
    proposer = speculative.proposers["draft_model"]
    proposer.propose = lambda rows: [EMPTY_DRAFT] * len(rows)  # type: ignore[method-assign]
    return speculative


def test_a_proposer_that_never_drafts_proves_nothing() -> None:
    outcome = audited(without_drafts(engine(draft=DRAFT)))
    assert outcome.verdict is Outcome.INCONCLUSIVE
    assert all("no draft" in check.reason for check in outcome.checks)


def test_drafts_that_are_never_refused_prove_nothing() -> None:
    parity = named(audited(engine(draft=TARGET)), GREEDY)
    assert parity.outcome is Outcome.INCONCLUSIVE
    assert parity.planted is not None and parity.planted.kept == 0


def test_too_few_samples_do_not_pass() -> None:
    subject = Subject(engine(), engine(draft=DRAFT), CASES[:1])
    law = named(audit(subject, SAMPLING, SETUP, Effort(draws=2, length=2)), LAW)
    assert law.outcome is Outcome.INCONCLUSIVE


def test_temperature_zero_leaves_greedy_parity() -> None:
    outcome = audited(sampling=replace(SAMPLING, temperature=0.0))
    assert [check.outcome for check in outcome.checks] == [Outcome.PASS, Outcome.SKIPPED, Outcome.SKIPPED]
    assert outcome.verdict is Outcome.PASS


def test_a_request_that_fails_only_speculatively_is_a_difference() -> None:
    outcome = audited(damaged(True, lambda history: TARGET(history) * float("nan")))
    first = named(outcome, GREEDY).differences[0]
    assert first.error is not None
    assert outcome.verdict is Outcome.FAIL


def test_prompts_that_plain_decoding_cannot_answer_are_refused() -> None:
    nothing: Callable[..., object] = lambda history: TARGET(history) * float("nan")  # noqa: E731
    with pytest.raises(InvalidRequest, match="prompt one must be one the model can answer"):
        audited(plain=engine(nothing))  # type: ignore[arg-type]


def test_no_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="prompts"):
        audited(cases=[])


@pytest.mark.parametrize("effort", [{"draws": 1}, {"length": 1}])
def test_efforts_that_cannot_tell_anything_are_refused(effort: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match="must be at least 2"):
        Effort(**effort)


def test_the_outcome_is_plain_data(honest: Audit) -> None:
    values = honest.to_json()
    assert values["verdict"] == "pass"
    assert values["checks"][2]["tests"][0]["p_value"] > 0.0
