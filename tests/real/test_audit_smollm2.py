"""The audit of a real model: few tokens, so only parity is asked to settle anything."""

from __future__ import annotations

from pathlib import Path

from gamaneh.bench.audit.findings import AuditOutcome
from gamaneh.bench.audit.parity import check_parity
from gamaneh.bench.audit.subject import Case, Subject
from gamaneh.engine.llm import LLM
from gamaneh.models.loading import load
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions

TEXT = "One two three four, one two three four, one two three five, one two"


def test_lookup_changes_no_token_and_a_careless_rule_does(model_file: Path) -> None:
    smollm2 = load(model_file)
    options = EngineOptions(max_batch=2, max_context=256)
    plain = LLM(smollm2, options=options)
    speculation = SpeculationOptions(proposer="lookup", draft_length=4, proposer_options={"min_ngram": 1})
    speculative = LLM(smollm2, speculation=speculation, options=options)
    tokens = smollm2.tokenizer.encode(TEXT)
    subject = Subject(plain.engine, speculative.engine, [Case("whole", tokens), Case("part", tokens[4:])])
    check = check_parity("greedy parity", subject, SamplingParams(max_tokens=12))
    assert check.outcome is AuditOutcome.PASS, check.reason
    assert check.planted is not None and check.planted.found
