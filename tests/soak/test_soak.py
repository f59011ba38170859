"""The soak finds what it is for: wrong tokens, hanging requests, leaks. And a sound engine passes."""

from __future__ import annotations

import asyncio
import json
import random
from dataclasses import replace

import pytest

from gamaneh.core import EMPTY_DRAFT
from gamaneh.options import EngineOptions, SpeculationOptions
from gamaneh.testing import ByteTokenizer, ScriptedProposer, ScriptedRunner, hashed, scripted_engine
from soak import __main__ as soak_command
from soak import faults
from soak.faults import FaultyProposer
from soak.findings import FLAT_BYTES, Effort, Findings, describe
from soak.in_process import Soak

VOCAB = 260
EFFORT = Effort(requests=60, shapes=5, concurrency=4, tokens=8, abort_share=0.2, error_share=0.1, fault_share=0.3)


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "SLOW_SECONDS", 0.0)


def engine_for(**options):
    script = hashed(VOCAB)
    return scripted_engine(
        ScriptedRunner(script, VOCAB, num_blocks=80),
        ByteTokenizer(),
        proposer=ScriptedProposer(script, VOCAB, 0.8),
        speculation=SpeculationOptions(proposer="scripted"),
        options=EngineOptions(max_batch=4, step_tokens=64),
        **options,
    )


def soak(engine, effort: Effort = EFFORT) -> Findings:
    return asyncio.run(Soak(engine, [[1, 2, 3], [4, 5, 6, 7]], effort).run())


def test_a_sound_engine_passes_although_its_proposer_fails() -> None:
    findings = soak(engine_for())
    assert (findings.wrong, findings.hung, findings.failed, findings.leaked_blocks) == ([], [], [], 0)
    assert findings.outcomes.total() == EFFORT.requests
    assert min(findings.outcomes[name] for name in ("finished", "aborted", "refused")) > 0
    assert sum(findings.caught.values()) > 0
    assert findings.passed


def test_wrong_tokens_are_found() -> None:
    engine = engine_for()
    plain = engine.backend.model.script
    effort = replace(EFFORT, fault_share=0.0)
    under_test = Soak(engine, [[1, 2, 3]], effort)
    answered = under_test._answered

    def answered_by_another_model(shape):
        engine.backend.model.script = hashed(VOCAB, sharpness=1.0)
        right = answered(shape)
        engine.backend.model.script = plain
        return right

    under_test._answered = answered_by_another_model
    findings = asyncio.run(under_test.run())
    assert findings.wrong
    assert not findings.passed


def test_leaked_blocks_are_found() -> None:
    engine = engine_for()
    free = engine.backend.kv.free
    engine.backend.kv.free = lambda request_id: None if request_id == "soak-2" else free(request_id)
    findings = soak(engine, replace(EFFORT, requests=5, fault_share=0.0, error_share=0.0))
    assert findings.leaked_blocks > 0
    assert not findings.passed


def test_a_request_that_never_ends_is_found() -> None:
    engine = engine_for()
    under_test = Soak(engine, [[1, 2, 3]], replace(EFFORT, requests=2, patience=0.05, error_share=0.0))
    step = engine.step

    def lazy_step():
        return step() if "soak-0" not in engine._sequences else []

    engine.step = lazy_step
    findings = asyncio.run(under_test.run())
    assert "soak-0" in findings.hung
    assert not findings.passed


def test_growing_memory_is_found() -> None:
    flat = Findings(memory=[10**9] * 100)
    growing = Findings(memory=[10**9 + at * FLAT_BYTES // 20 for at in range(100)])
    assert flat.passed
    assert not growing.passed
    assert "NOT flat" in describe(growing)


def test_growth_during_the_warm_up_does_not_count() -> None:
    assert Findings(memory=[10**8 * at for at in range(10)] + [10**9] * 90).passed


def test_every_fault_is_injected() -> None:
    proposer = FaultyProposer(ScriptedProposer(hashed(VOCAB), VOCAB), 1.0, random.Random(1), VOCAB)
    proposer.inner.propose = lambda rows: [EMPTY_DRAFT for _ in rows]
    for _ in range(200):
        try:
            proposer.propose([])
        except (RuntimeError, MemoryError):
            continue
    assert set(proposer.injected) == set(proposer._faults())


def test_blocks_that_nobody_looked_at_are_not_called_free() -> None:
    assert "blocks      not looked at" in describe(Findings(leaked_blocks=None))


@pytest.mark.parametrize("found", [{"wrong": ["a"]}, {"hung": ["a"]}, {"failed": ["a"]}, {"leaked_blocks": 1}])
def test_any_finding_fails(found) -> None:
    assert Findings().passed
    assert not Findings(**found).passed
    assert describe(Findings(**found)).endswith("FAILED")


@pytest.mark.parametrize(("found", "code"), [(Findings(), 0), (Findings(wrong=["soak-1"]), soak_command.EXIT_FAILED)])
def test_findings_come_as_text_and_as_one_line_of_json(found, code, monkeypatch, capsys) -> None:
    async def find(options, effort) -> Findings:
        found.outcomes["finished"] += 1
        return found

    monkeypatch.setattr(soak_command, "_soak_engine", find)
    assert soak_command.main(["--quick"]) == code
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["passed"] is (code == 0)
    assert document["wrong"] == found.wrong
