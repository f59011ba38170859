"""The audit passes what is exact, fails what is not, and says when it cannot tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest

from gamaneh.backends.paged import PagedBackend
from gamaneh.bench.audit.findings import Audit, AuditCheck, AuditOutcome
from gamaneh.bench.audit.law import check_law
from gamaneh.bench.audit.lossless import GREEDY, LAW, SEEDED, AuditEffort, audit
from gamaneh.bench.audit.parity import check_parity
from gamaneh.bench.audit.subject import Case, Subject
from gamaneh.bench.result import Setup
from gamaneh.bench.time_limit import TimeLimit
from gamaneh.core import EMPTY_DRAFT, Draft, Proposer, StepOutput
from gamaneh.engine.assembly import assemble
from gamaneh.engine.engine import Engine
from gamaneh.errors import InvalidOption, InvalidRequest
from gamaneh.kv import BlockPool, KVManager
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.testing import ByteTokenizer, Script, ScriptedRunner, hashed

VOCAB = 12
TARGET, NOISE = hashed(VOCAB, 1.0), hashed(VOCAB, 0.8)
CASES = [Case("one", [1, 2, 3]), Case("two", [4]), Case("three", [5, 6])]
SAMPLING = SamplingParams(temperature=1.0, max_tokens=24)
GREEDY_SAMPLING = replace(SAMPLING, temperature=0.0)
EFFORT = AuditEffort(draws=60, length=5)
SETUP = Setup("scripted", "float32", "cpu", "draft_model", 3, "auto", True, True, 1)


def DRAFT(history):  # noqa: N802
    """The target with other noise on top: often right."""
    return TARGET(history) + NOISE([0, *history])


def engine(target: Script = TARGET, draft: Script | None = None, **speculation) -> Engine:
    runner = ScriptedRunner(target, VOCAB, num_blocks=400)
    proposers = {}
    if draft is not None:
        draft_runner = ScriptedRunner(draft, VOCAB, num_blocks=400)
        proposer = DraftModelProposer(backend(draft_runner), vocab_size=VOCAB)
        proposers = {proposer.name: proposer}
        speculation = {"proposer": "draft_model", "draft_length": 3, **speculation}
    return assemble(
        backend(runner),
        ByteTokenizer(),
        proposers=proposers,
        speculation=SpeculationOptions(**speculation),
        options=EngineOptions(max_batch=32, step_tokens=512),
    )


def backend(runner: ScriptedRunner) -> PagedBackend:
    return PagedBackend(runner, KVManager(BlockPool(400, 4, prefix_cache=False), runner.cache))


def subject(speculative: Engine | None = None, plain: Engine | None = None, **options) -> Subject:
    return Subject(plain or engine(), speculative or engine(draft=DRAFT, **options), CASES, seed=7)


def audited(one: Subject, sampling: SamplingParams = SAMPLING, effort: AuditEffort = EFFORT) -> Audit:
    return audit(one, sampling, SETUP, effort)


def greedy(one: Subject) -> AuditCheck:
    return check_parity(GREEDY, one, GREEDY_SAMPLING)


def law(one: Subject, sampling: SamplingParams = SAMPLING) -> AuditCheck:
    return check_law(LAW, one, sampling, EFFORT.draws, EFFORT.length)


def named(outcome: Audit, name: str) -> AuditCheck:
    return next(check for check in outcome.checks if check.name == name)


@pytest.fixture(scope="module")
def exact() -> Subject:
    return subject()


@pytest.fixture(scope="module")
def honest(exact: Subject) -> Audit:
    return audited(exact)


def test_an_exact_system_passes_every_check(honest: Audit) -> None:
    assert [check.outcome for check in honest.checks] == [AuditOutcome.PASS] * 3
    assert honest.verdict is AuditOutcome.PASS


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
    assert (law.outputs, law.tokens) == (len(CASES) * 60, len(CASES) * 60 * 5)
    assert parity.drafted > parity.accepted > 0


def test_nothing_is_left_in_the_engines(exact: Subject, honest: Audit) -> None:
    for one in (exact.plain, exact.speculative):
        assert not one.has_work and not one.observers and one.backend.kv.pool.in_use == 0


def test_the_same_seed_gives_the_same_audit(honest: Audit) -> None:
    assert audited(subject()) == honest


@pytest.mark.parametrize("rule", ["match", "rejection"])
def test_the_law_holds_under_other_exact_rules(rule: str) -> None:
    check = law(subject(rule=rule))
    assert (check.rule, check.outcome) == (rule, AuditOutcome.PASS)


def test_a_rule_that_does_not_promise_equal_tokens_is_not_asked_for_them() -> None:
    outcome = named(audited(subject(rule="rejection"), effort=AuditEffort(2, 2)), SEEDED)
    assert outcome.outcome is AuditOutcome.SKIPPED
    assert outcome.reason == "rule rejection does not promise the tokens of plain decoding"


@pytest.mark.parametrize("sampling", [{"top_k": 5}, {"top_p": 0.8, "repetition_penalty": 1.5}])
def test_the_law_holds_under_other_sampling(sampling: dict[str, float]) -> None:
    check = law(subject(), replace(SAMPLING, **sampling))
    assert not [test for test in check.tests if test.failed]
    assert check.impossible == 0


def test_an_approximate_rule_fails_by_its_output() -> None:
    assert law(subject(rule="typical", draft_sampling="greedy", epsilon=0.01)).outcome is AuditOutcome.FAIL


def test_an_approximate_rule_never_passes() -> None:
    check = law(subject(rule="typical"))
    assert check.outcome is not AuditOutcome.PASS


def test_a_draft_that_lies_about_its_probabilities_fails() -> None:
    """It takes its best token, but says that it sampled."""
    speculative = engine(draft=DRAFT, rule="rejection")
    speculative.register(Liar(speculative.proposers["draft_model"]))
    check = law(subject(speculative))
    assert check.outcome is AuditOutcome.FAIL
    assert any(test.failed for test in check.tests)


class Liar:
    """Replaces the tokens of another proposer's drafts and keeps their probabilities."""

    def __init__(self, proposer: Proposer) -> None:
        self.name, self.needs, self._proposer = proposer.name, proposer.needs, proposer

    def propose(self, rows):
        return [self._changed(draft) for draft in self._proposer.propose(rows)]

    def _changed(self, draft: Draft) -> Draft:
        if draft.probs is None:
            return draft
        return Draft.chain(draft.probs.argmax(1).tolist(), draft.probs)

    def __getattr__(self, name: str):
        return getattr(self._proposer, name)


class OtherWhileVerifying(ScriptedRunner):
    """A target that answers differently in the rows of a draft, as one with wrong positions there would."""

    def __init__(self, invariant: bool, other: Script) -> None:
        super().__init__(TARGET, VOCAB, num_blocks=400)
        self.caps = replace(self.caps, invariant=invariant)
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
    runner = OtherWhileVerifying(invariant, other)
    return assemble(
        backend(runner),
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
    outcome = audited(subject(damaged(True, shifted(1.5))))
    assert [check.outcome for check in outcome.checks] == [AuditOutcome.FAIL] * 3
    assert outcome.verdict is AuditOutcome.FAIL
    first = named(outcome, GREEDY).differences[0]
    assert first.plain_token != first.speculative_token
    assert first.margin is not None and not first.tie


def test_without_invariance_large_margins_are_no_ties() -> None:
    assert greedy(subject(damaged(False, shifted(1.5)))).outcome is AuditOutcome.FAIL


class Wavering(ScriptedRunner):
    """A target whose logits move a little with the size of the batch, as free shapes do."""

    def __init__(self) -> None:
        super().__init__(TARGET, VOCAB, num_blocks=400)
        self.caps = replace(self.caps, invariant=False)

    def forward(self, feeds, **options):
        forward = super().forward(feeds, **options)
        rows = sum(feed.logit_rows for feed in feeds)
        for logits in forward.logits:
            logits[:, rows % VOCAB] += 0.2
        return forward


def wavering(draft: Script | None = None) -> Engine:
    whole, runner = engine(draft=draft), Wavering()
    return assemble(
        backend(runner),
        ByteTokenizer(),
        proposers=whole.proposers,
        speculation=whole.speculation,
        options=whole.options,
    )


def test_differences_within_what_a_batch_changes_are_ties() -> None:
    check = greedy(subject(wavering(DRAFT), wavering()))
    assert check.differences and check.rounding is not None
    assert all(difference.tie for difference in check.differences)
    assert check.outcome is AuditOutcome.PASS
    assert "ties" in check.reason


class Silent(Liar):
    """Never drafts."""

    def propose(self, rows):
        return [EMPTY_DRAFT] * len(rows)


def test_a_proposer_that_never_drafts_proves_nothing() -> None:
    speculative = engine(draft=DRAFT)
    speculative.register(Silent(speculative.proposers["draft_model"]))
    outcome = audited(subject(speculative))
    assert outcome.verdict is AuditOutcome.INCONCLUSIVE
    assert all("no draft" in check.reason for check in outcome.checks)


def test_drafts_that_are_never_refused_prove_nothing() -> None:
    check = greedy(subject(engine(draft=TARGET)))
    assert check.outcome is AuditOutcome.INCONCLUSIVE
    assert check.planted is not None and check.planted.kept == 0


def test_a_slow_proposer_is_audited_all_the_same() -> None:
    """The fallback would leave it out; the audit's clock does not tell."""
    check = greedy(subject())
    assert check.exposure.drafted > check.exposure.rounds


def test_too_few_samples_do_not_pass() -> None:
    assert check_law(LAW, subject(), SAMPLING, 2, 2).outcome is AuditOutcome.INCONCLUSIVE


def test_temperature_zero_leaves_greedy_parity() -> None:
    outcome = audited(subject(), GREEDY_SAMPLING)
    assert [check.outcome for check in outcome.checks] == [
        AuditOutcome.PASS,
        AuditOutcome.SKIPPED,
        AuditOutcome.SKIPPED,
    ]
    assert outcome.verdict is AuditOutcome.PASS


def broken(history):
    return TARGET(history) * float("nan")


def test_a_request_that_fails_only_speculatively_fails_the_audit() -> None:
    outcome = audited(subject(damaged(True, broken)))
    assert [check.outcome for check in outcome.checks] == [AuditOutcome.FAIL] * 3
    assert named(outcome, GREEDY).differences[0].error is not None
    assert "requests failed" in named(outcome, LAW).reason


def test_prompts_that_plain_decoding_cannot_answer_are_refused() -> None:
    with pytest.raises(InvalidRequest, match="prompt one must be one the model can answer"):
        greedy(subject(plain=engine(broken)))


def test_no_prompt_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="prompts must be at least one"):
        audited(replace(subject(), cases=[]))


@pytest.mark.parametrize("effort", [{"draws": 1}, {"length": 1}])
def test_efforts_that_cannot_tell_anything_are_refused(effort: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match="must be at least 2"):
        AuditEffort(**effort)


def test_the_outcome_is_plain_data(honest: Audit) -> None:
    values = json.loads(json.dumps(honest.to_json(), allow_nan=False))
    assert values["verdict"] == "pass"
    assert values["checks"][2]["tests"][0]["p_value"] > 0.0


def stopping_after(answers: int, limit: TimeLimit | None, press: Callable[[], None]) -> Audit:
    """An audit in which something happens after so many answers."""
    seen = [0]

    def tick() -> None:
        seen[0] += 1
        if seen[0] == answers:
            press()

    return audit(Subject(engine(), engine(draft=DRAFT), CASES, 0, tick), SAMPLING, SETUP, EFFORT, limit)


def interrupt() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_keeps_the_checks_that_ended() -> None:
    outcome = stopping_after(4 * len(CASES) + 2, None, interrupt)
    assert outcome.stopped == "interrupted"
    assert [check.outcome for check in outcome.checks] == ["pass", "inconclusive", "inconclusive"]
    assert outcome.verdict is AuditOutcome.INCONCLUSIVE
    assert outcome.checks[1].reason == "not finished: interrupted"


def test_an_interrupt_before_the_first_check_ended_gives_nothing() -> None:
    with pytest.raises(KeyboardInterrupt):
        stopping_after(2, None, interrupt)


def test_the_end_of_the_time_keeps_the_checks_that_ended() -> None:
    now = [0.0]
    outcome = stopping_after(4 * len(CASES) + 2, TimeLimit(1.0, lambda: now[0]), lambda: now.__setitem__(0, 61.0))
    assert outcome.stopped == "out of time"
    assert [check.outcome for check in outcome.checks] == ["pass", "inconclusive", "inconclusive"]


def test_as_many_samples_are_drawn_as_the_time_suffices_for() -> None:
    now = [0.0]
    target = engine()
    step = target.step

    def slow_step() -> list[StepOutput]:
        now[0] += 1.0
        return step()

    target.step = slow_step  # type: ignore[method-assign]
    effort = replace(EFFORT, draws=600)
    limit = TimeLimit(5.0, lambda: now[0])
    outcome = audit(Subject(target, engine(draft=DRAFT), CASES), SAMPLING, SETUP, effort, limit)
    law = outcome.checks[2]
    assert outcome.stopped is None
    assert 2 * len(CASES) <= law.exposure.outputs < 600 * len(CASES)
