"""Drafts made under the grammar change no token, alone, within `auto` and within `portfolio`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
import torch
from conftest import Answer
from jsonschema import validate
from test_equivalence import engine_for
from test_grammar_decoding import GivesUp, Request, answers
from under_test import kept

from gamaneh.core import AUTO, FinishReason, ReasonCode, StepReport
from gamaneh.engine.engine import Engine
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.proposers.grammar import GrammarProposer
from gamaneh.sampling.grammar_mask import Frame, Grammar
from gamaneh.testing import BYTE_VOCAB, EOS_ID, ByteTokenizer, ScriptedRunner, hashed, scripted_engine

SCHEMA = {
    "type": "object",
    "properties": {
        "destination_city": {"enum": ["Shiraz", "Shahrekord", "Tabriz"]},
        "number_of_days": {"type": "integer"},
        "window_seat": {"type": "boolean"},
        "remarks": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3},
    },
    "required": ["destination_city", "number_of_days", "window_seat", "remarks"],
    "additionalProperties": False,
}
TO_THE_END = {**{ord(blank): -8.0 for blank in " \n\r\t"}, ord(","): 3.0, ord("]"): 5.0, EOS_ID: 12.0}
PROPOSERS = ("grammar", AUTO, "portfolio")


@kept
def grammar(frame: Frame | None = None) -> Grammar:
    return Grammar.from_json_schema(SCHEMA, ByteTokenizer(), frame=frame)


def params_for(seed: int, temperature: float) -> SamplingParams:
    bias = {**TO_THE_END, ord(" "): -2.0} if seed % 2 else TO_THE_END  # every other request puts some spaces
    return SamplingParams(temperature=temperature, seed=seed, max_tokens=200, logit_bias=bias)


def requests_for(count: int, temperature: float) -> dict[str, Request]:
    """Every fourth request has no grammar."""
    return {
        f"r{seed}": (list(b"Trip:"[seed % 3 :]), params_for(seed, temperature), None if seed % 4 == 3 else grammar())
        for seed in range(count)
    }


@kept
def plain(count: int, temperature: float) -> dict[str, Answer]:
    return answers(engine_for("llama", "none", torch.float32), requests_for(count, temperature))


def noted(engine: Engine) -> list[StepReport]:
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    return reports


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("count", [1, 4])
@pytest.mark.parametrize("k", [None, 5])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_the_output_is_that_of_plain_decoding(proposer: str, k: int | None, count: int, temperature: float) -> None:
    engine = engine_for("llama", proposer, torch.float32, draft="hostile", k=k)
    reports = noted(engine)
    results = answers(engine, requests_for(count, temperature))
    expected = plain(count, temperature)
    assert {name: each.outcome for name, each in results.items()} == {
        name: each.outcome for name, each in expected.items()
    }
    if k is not None and proposer != AUTO:  # which proposer `auto` takes depends on what they cost
        assert "grammar" in {share.proposer for report in reports for share in report.by_source}
    assert results["r0"].finish_reason is FinishReason.STOP
    validate(json.loads(results["r0"].text), SCHEMA)


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize("proposer", PROPOSERS)
def test_every_exact_rule_gives_valid_output(proposer: str, rule: str) -> None:
    engine = engine_for("llama", proposer, torch.float32, draft="hostile", k=6, rule=rule)
    for name, result in answers(engine, requests_for(4, 1.0)).items():
        if name in ("r0", "r2"):
            validate(json.loads(result.text), SCHEMA)


@pytest.mark.parametrize("frame", [Frame("<<", ">>"), Frame(until="{"), Frame("<", ">", between="\n")], ids=repr)
def test_text_around_values_changes_nothing(frame: Frame) -> None:
    requests = {"r": (list(b"Trip:"), params_for(2, 1.0), grammar(frame))}
    alone = answers(engine_for("llama", "none", torch.float32), requests)
    assert answers(engine_for("llama", "grammar", torch.float32, k=9), requests)["r"].outcome == alone["r"].outcome


def test_long_keys_are_emitted_several_tokens_at_a_time() -> None:
    engine = engine_for("llama", "grammar", torch.float32, k=15)
    reports = noted(engine)
    result = answers(engine, requests_for(1, 0.0))["r0"]
    rounds = [report for report in reports if report.request_id == "r0"]
    assert len(result.tokens) > 2.5 * len(rounds)
    assert max(report.emitted for report in rounds) > 10


def test_a_request_without_a_grammar_is_plain_and_told_so() -> None:
    engine = engine_for("llama", "grammar", torch.float32)
    reports = noted(engine)
    answers(engine, {"free": (list(b"Trip:"), params_for(2, 0.0), None)})
    assert {report.reason_code for report in reports} <= {ReasonCode.NO_DRAFT, ReasonCode.SHORT, ReasonCode.PREFILL}
    assert not any(report.drafted for report in reports)


def scripted(proposer: str = "grammar") -> Engine:
    runner = ScriptedRunner(hashed(BYTE_VOCAB), BYTE_VOCAB, num_blocks=256)
    options = SpeculationOptions(proposer=proposer, draft_length=6)
    return scripted_engine(runner, ByteTokenizer(), proposer=GrammarProposer(ByteTokenizer()), speculation=options)


def test_auto_asks_it_for_requests_with_a_grammar_and_no_others() -> None:
    engine = scripted(AUTO)
    reports = noted(engine)
    requests = requests_for(4, 1.0)
    results = answers(engine, requests)
    assert {report.request_id for report in reports if report.drafted} == {"r0", "r1", "r2"}
    assert results["r3"].outcome == answers(scripted("none"), {"r3": requests["r3"]})["r3"].outcome


@pytest.mark.parametrize("after", [0, 3, 10])
def test_a_parser_that_gives_up_ends_its_own_request_only(after: int) -> None:
    free = SamplingParams(temperature=1.0, seed=2, ignore_eos=True, max_tokens=30)
    sound: Sequence[Request] = [(list(b"json: "), params_for(2, 1.0), grammar())]
    engine = scripted()
    results = answers(engine, {"broken": (list(b"json: "), free, GivesUp(after)), "sound": sound[0]})
    assert results["broken"].finish_reason is FinishReason.ERROR
    assert "too complex" in (results["broken"].error or "")
    assert results["sound"].outcome == answers(scripted("none"), {"sound": sound[0]})["sound"].outcome
    assert engine.quarantine.reason("grammar") == ""
