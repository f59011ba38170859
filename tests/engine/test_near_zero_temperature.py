"""Greedy rows, rows that are nearly greedy, and sampled rows in one batch do not disturb each other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from conftest import drain

from gamaneh import LLM, Drafting, EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.core import Request, StepReport
from gamaneh.testing import tiny_model

PROMPT = list(b"the cat sat on the mat and the cat")
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
ROWS = {
    "greedy": GREEDY,
    "nearly": replace(GREEDY, temperature=1e-6, seed=7),
    "cold": replace(GREEDY, temperature=1e-3, seed=7),
    "sampled": replace(GREEDY, temperature=1.0, seed=7),
    "narrow": replace(GREEDY, temperature=1.0, seed=7, top_p=1e-9),
    "one": replace(GREEDY, temperature=1.0, seed=7, top_k=1),
    "highest": replace(GREEDY, temperature=1.0, seed=7, min_p=1.0),
}
AS_GREEDY = ("greedy", "nearly", "narrow", "one", "highest")


def answers(
    llm: LLM, names: list[str], drafting: Drafting | None = None
) -> tuple[dict[str, list[int]], list[StepReport]]:
    reports: list[StepReport] = []
    llm.engine.observers.append(reports.append)
    for name in names:
        llm.engine.add(Request(PROMPT, ROWS[name], id=name, drafting=drafting))
    found = drain(llm.engine)
    llm.engine.observers.remove(reports.append)
    assert all(answer.error is None for answer in found.values())
    return {name: answer.tokens for name, answer in found.items()}, reports


@pytest.mark.parametrize("rule", ["match", "rejection", "block"])
@pytest.mark.parametrize("draft_seed", [0, 1], ids=["own draft", "hostile draft"])
def test_each_row_is_as_alone(rule: str, draft_seed: int) -> None:
    speculation = SpeculationOptions(
        proposer="draft_model", rule=rule, draft_length=4, proposer_options={"min_confidence": 0.0}
    )
    options = EngineOptions(invariant=True, kv_blocks=64, max_batch=8)
    llm = LLM(tiny_model(), draft_model=tiny_model(seed=draft_seed), speculation=speculation, options=options)
    llm.engine.quarantine.leaves_out_slow = False
    together, reports = answers(llm, list(ROWS))
    assert any(report.drafted for report in reports)
    assert all(0 <= report.accepted <= report.drafted for report in reports)
    plain, _ = answers(llm, ["greedy"], Drafting())
    assert {name: together[name] for name in AS_GREEDY} == dict.fromkeys(AS_GREEDY, plain["greedy"])
    for name in ("cold", "sampled"):
        assert answers(llm, [name])[0][name] == together[name]
