"""One request's input switches no proposer off for others, and half an answer teaches nobody anything."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from conftest import assert_idle, drain
from test_equivalence_suffix import engine_for

from gamaneh.core import Draft, ProposalRow, ReasonCode, Request, StepReport
from gamaneh.engine.assembly import build_engine
from gamaneh.engine.engine import Engine
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.suffix import SuffixProposer
from gamaneh.testing import (
    ByteTokenizer,
    ScriptedProposer,
    ScriptedRunner,
    hashed,
    scripted_engine,
    tiny_model,
)

VOCAB = 260
HOSTILE = 259
SCRIPT = hashed(VOCAB)
PARAMS = SamplingParams(max_tokens=40, ignore_eos=True)
FIXED = SpeculationOptions(proposer="scripted", draft_length=3)


@dataclass
class Narrow(ScriptedProposer):
    """A draft model that raises where a request holds an id that it lacks."""

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        if any(HOSTILE in row.tokens for row in rows):
            raise IndexError("index out of range in self")
        return super().propose(rows)


def narrow_engine() -> tuple[Engine, list[StepReport]]:
    engine = scripted_engine(
        ScriptedRunner(SCRIPT, VOCAB, num_blocks=128),
        ByteTokenizer(),
        proposer=Narrow(SCRIPT, VOCAB, 0.8),
        speculation=FIXED,
    )
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    return engine, reports


def drafted(reports: Sequence[StepReport], request_id: str) -> list[int]:
    """Candidates of each round but the last, which has no room for any."""
    return [report.drafted for report in reports if report.request_id == request_id][:-1]


def test_a_hostile_request_beside_good_ones_ends_its_own_drafts_alone() -> None:
    engine, reports = narrow_engine()
    for name, prompt in {"a": [1, 2], "hostile": [1, HOSTILE], "b": [3, 4]}.items():
        engine.add(Request(prompt, PARAMS, id=name))
    drain(engine)
    assert set(drafted(reports, "hostile")) == {0}
    assert min(drafted(reports, "a") + drafted(reports, "b")) > 0
    assert engine.quarantine.reason("scripted") == ""
    assert engine.quarantine.failures == 1
    assert_idle(engine)


def test_a_hostile_request_that_comes_alone_leaves_the_proposer_to_the_next() -> None:
    engine, reports = narrow_engine()
    engine.add(Request([1, HOSTILE], PARAMS, id="hostile"))
    drain(engine)
    engine.add(Request([1, 2], PARAMS, id="good"))
    drain(engine)
    assert set(drafted(reports, "hostile")) == {0}
    assert min(drafted(reports, "good")) > 0
    assert ReasonCode.QUARANTINE not in {report.reason_code for report in reports if report.request_id == "good"}


def test_a_proposer_that_fails_for_everybody_is_left_out() -> None:
    engine, _ = narrow_engine()
    for name in ("first", "second"):
        engine.add(Request([1, HOSTILE], PARAMS, id=name))
        drain(engine)
    assert "IndexError" in engine.quarantine.reason("scripted")


def test_an_id_that_a_draft_model_lacks_ends_drafting_for_that_request_alone() -> None:
    """The draft model's rows are fewer than the target's."""
    target, draft = tiny_model(), tiny_model(seed=1)
    asked = SpeculationOptions(proposer="draft_model", draft_length=3, proposer_options={"min_confidence": 0.0})
    engine = build_engine(target, draft, asked, EngineOptions(invariant=True))
    proposer = engine.proposers["draft_model"]
    assert proposer.needs.reads is not None
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    proposer.needs = replace(proposer.needs, reads=255)
    engine.add(Request([5, 255], PARAMS, id="hostile"))
    engine.add(Request([5, 6], PARAMS, id="good"))
    drain(engine)
    assert set(drafted(reports, "hostile")) == {0}
    assert drafted(reports, "good")[0] > 0
    assert engine.quarantine.counts == {}


def stored(engine: Engine) -> list[list[int]]:
    """Answers that the suffix proposer has learned."""
    proposer = engine.proposers["suffix"]
    assert isinstance(proposer, SuffixProposer) and proposer.store is not None
    return sorted(list(answer) for _, answer in proposer.store.texts())


def test_an_answer_is_learned_whole_and_once_whatever_was_preempted(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_for("llama", "suffix", num_blocks=20)
    preempted = []
    original = engine.scheduler._preempt
    monkeypatch.setattr(engine.scheduler, "_preempt", lambda one: (preempted.append(one), original(one)))
    for at in range(4):
        engine.add(Request([at, 7, 9] * 20, SamplingParams(max_tokens=60, ignore_eos=True), id=str(at)))
    outputs = drain(engine)
    assert preempted
    assert stored(engine) == sorted(answer.tokens for answer in outputs.values())


def test_nothing_is_learned_of_an_answer_that_was_aborted() -> None:
    engine = engine_for("llama", "suffix")
    engine.add(Request([1, 2, 3], PARAMS, id="r"))
    for _ in range(8):
        engine.step()
    engine.abort("r")
    assert stored(engine) == []


def test_a_neighbours_exception_teaches_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = engine_for("llama", "suffix", dtype=torch.float32)
    proposer = engine.proposers["suffix"]
    propose, rounds = proposer.propose, iter(range(100))

    def fail_once(rows: Sequence[ProposalRow]) -> list[Draft]:
        if next(rounds) == 3:
            raise RuntimeError("a neighbour's text")
        return propose(rows)

    monkeypatch.setattr(proposer, "propose", fail_once)
    engine.add(Request([1, 2, 3], PARAMS, id="a"))
    engine.add(Request([4, 5, 6], PARAMS, id="b"))
    outputs = drain(engine)
    assert stored(engine) == sorted(answer.tokens for answer in outputs.values())
