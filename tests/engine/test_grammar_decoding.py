"""CASES kind 21: structured output with speculation is that of plain decoding, and always parses."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import pytest
import torch
from conftest import Answer, assert_idle, drain
from jsonschema import validate
from test_equivalence import engine_for
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, Draft, FinishReason, MaskSource, Needs, Request, StepReport
from gamaneh.engine.engine import Engine
from gamaneh.errors import BadLogits, InvalidRequest
from gamaneh.options import SamplingParams, SpeculationOptions
from gamaneh.sampling.grammar_mask import Frame, Grammar
from gamaneh.testing import BYTE_VOCAB, EOS_ID, ByteTokenizer, ScriptedProposer, ScriptedRunner, hashed, scripted_engine

SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 8}},
    "required": ["a", "b"],
    "additionalProperties": False,
}
NEAR_JSON = b'{"a": 12, "b": ["x", "y"]}, {"a": 7, "b": ["x", "z"], "c": 1} {"a": "b"} {"a": 1, "b": []} '
TO_THE_END = {
    **{ord(blank): -8.0 for blank in " \n\r\t"},
    ord(","): 3.0,
    ord("]"): -5.0,
    ord("}"): 6.0,
    EOS_ID: 12.0,
}
"""Random weights have no idea how to come to an end."""

PROPOSERS = [("lookup", "self"), ("draft_model", "self"), ("draft_model", "hostile")]


@cache
def grammar() -> Grammar:
    return Grammar.from_json_schema(SCHEMA, ByteTokenizer())


def params_for(seed: int, **changes) -> SamplingParams:
    """Every fourth request is greedy, the others sample with a seed."""
    options = {"temperature": 1.0 if seed % 4 else 0.0, "seed": seed, "max_tokens": 160, "logit_bias": TO_THE_END}
    return SamplingParams(**{**options, **changes})


Asked = tuple[Sequence[int], SamplingParams, MaskSource | None]


def answers(engine: Engine, requests: Mapping[str, Request]) -> dict[str, Answer]:
    for name, (prompt, params, mask) in requests.items():
        engine.add(Request(prompt, params, id=name, mask=mask))
    results = drain(engine)
    assert_idle(engine)
    return results


def requests_for(seeds: Sequence[int]) -> dict[str, Request]:
    return {f"r{seed}": (list(NEAR_JSON[seed % 9 :]), params_for(seed), grammar()) for seed in seeds}


@cache
def plain(seed: int) -> Answer:
    engine = engine_for("llama", "none", torch.float32)
    return answers(engine, requests_for([seed]))[f"r{seed}"]


def assert_valid(answer: Answer) -> None:
    assert answer.error is None
    assert answer.finish_reason is FinishReason.STOP
    validate(json.loads(answer.text), SCHEMA)


@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize(("proposer", "draft"), PROPOSERS)
def test_eight_at_once_are_those_of_plain_decoding(proposer: str, draft: str, k: int) -> None:
    seeds = range(8 * k, 8 * k + 8)
    results = answers(engine_for("llama", proposer, torch.float32, draft=draft, k=k), requests_for(seeds))
    for seed in seeds:
        assert results[f"r{seed}"].outcome == plain(seed).outcome
        assert_valid(results[f"r{seed}"])


@pytest.mark.parametrize(("proposer", "draft"), PROPOSERS)
def test_an_adapting_draft_length_changes_nothing(proposer: str, draft: str) -> None:
    results = answers(engine_for("llama", proposer, torch.float32, draft=draft, k=None), requests_for(range(8)))
    assert {name: result.outcome for name, result in results.items()} == {
        f"r{seed}": plain(seed).outcome for seed in range(8)
    }


@pytest.mark.parametrize("rule", ["rejection", "block"])
@pytest.mark.parametrize(("proposer", "draft"), PROPOSERS)
def test_every_exact_rule_gives_valid_output(rule: str, proposer: str, draft: str) -> None:
    engine = engine_for("llama", proposer, torch.float32, draft=draft, k=5, rule=rule)
    for result in answers(engine, requests_for(range(8))).values():
        assert_valid(result)


def test_a_draft_that_is_the_target_is_always_accepted() -> None:
    """The draft model samples under the same grammar, and nothing is verified past the end."""
    engine = engine_for("llama", "draft_model", torch.float32, k=6)
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    answers(engine, requests_for(range(8)))
    assert sum(report.drafted for report in reports) > 100
    assert all(report.accepted == report.drafted for report in reports)


def test_preempted_requests_go_on_in_the_right_state() -> None:
    engine = engine_for("llama", "draft_model", torch.float32, draft="hostile", num_blocks=13)
    preempted = []
    original = engine.scheduler._preempt
    engine.scheduler._preempt = lambda sequence: (preempted.append(sequence), original(sequence))
    results = answers(engine, requests_for(range(8)))
    assert preempted
    for seed in range(8):
        assert results[f"r{seed}"].outcome == plain(seed).outcome


SCRIPT = hashed(BYTE_VOCAB)
PROMPT = list(b"json: ")


@dataclass
class Suggesting:
    """Proposes the same draft at every turn where there is room for it, whatever was emitted."""

    draft: Draft
    name: str = "scripted"
    needs: Needs = field(default_factory=Needs)

    def propose(self, rows):
        return [self.draft if self.draft.depth <= row.max_depth else EMPTY_DRAFT for row in rows]

    def end(self, request_id) -> None: ...

    def forget(self, request_id) -> None: ...

    def memory_bytes(self) -> int:
        return 0


def scripted(proposer=None, k: int = 12) -> Engine:
    runner = ScriptedRunner(SCRIPT, BYTE_VOCAB, num_blocks=256)
    speculation = None if proposer is None else SpeculationOptions(proposer="scripted", draft_length=k)
    return scripted_engine(runner, ByteTokenizer(), proposer=proposer, speculation=speculation)


def answer(engine: Engine, mask: MaskSource | None = None, **changes) -> Answer:
    params = params_for(1, **changes)
    return answers(engine, {"r": (PROMPT, params, grammar() if mask is None else mask)})["r"]


END = [EOS_ID]
DRAFTS = {
    "past the end": Draft.chain([*b"}", EOS_ID, EOS_ID, *b"{}"]),
    "not of the grammar": Draft.chain(b"Sure! Here"),
    "special tokens": Draft.chain([256, 258, 259]),
    "a whole answer": Draft.chain([*b'{"a":1,"b":[]', *b"}", EOS_ID]),
    "a tree": Draft((*b'{-1"]}', EOS_ID, *b'aa",'), (-1, -1, -1, -1, -1, -1, 5, 0, 0, 8, 1)),
}


@pytest.mark.parametrize("draft", DRAFTS.values(), ids=list(DRAFTS))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_draft_can_break_the_grammar(draft: Draft, temperature: float) -> None:
    result = answer(scripted(Suggesting(draft), k=15), temperature=temperature)
    assert_valid(result)
    assert result.outcome == answer(scripted(), temperature=temperature).outcome


def test_the_target_computes_no_row_that_the_grammar_refuses() -> None:
    proposer = Suggesting(Draft.chain(b"Sure! Here"))
    engine = scripted(proposer)
    answer(engine)
    assert engine.backend.model.forwards
    assert all(len(feed.parents) == 0 for feeds in engine.backend.model.forwards for feed in feeds)


def test_rows_with_different_grammars_and_none_share_a_batch() -> None:
    requests: dict[str, Request] = {
        "free": (PROMPT, params_for(1, max_tokens=40), None),
        "record": (PROMPT, params_for(1), grammar()),
        "object": (PROMPT, params_for(1), Grammar.any_json(ByteTokenizer())),
        "framed": (PROMPT, params_for(1), Grammar.any_json(ByteTokenizer(), frame=Frame("<<", ">>"))),
    }
    together = answers(scripted(ScriptedProposer(SCRIPT, BYTE_VOCAB, accuracy=0.7)), requests)
    for name, request in requests.items():
        assert together[name].outcome == answers(scripted(), {name: request})[name].outcome
    assert together["framed"].text.startswith("<<{")
    assert together["framed"].text.endswith("}>>")


def test_reported_log_probabilities_are_the_targets_own() -> None:
    result = answer(scripted(ScriptedProposer(SCRIPT, BYTE_VOCAB, accuracy=0.7)), logprobs=2)
    entries = [entry for output in result.outputs for entry in output.logprobs]
    assert [entry.token for entry in entries] == result.tokens
    for at, entry in enumerate(entries):
        own = SCRIPT([*PROMPT, *result.tokens[:at]]).log_softmax(0)
        assert entry.logprob == pytest.approx(float(own[entry.token]))
        assert entry.top[0][0] == int(own.argmax())


class TestWhereTheOutputEnds:
    @pytest.mark.parametrize("max_tokens", [1, 5, 9])
    def test_the_length_may_cut_it(self, max_tokens: int) -> None:
        whole = answer(scripted())
        cut = answer(scripted(ScriptedProposer(SCRIPT, BYTE_VOCAB)), max_tokens=max_tokens)
        assert cut.outcome == (whole.tokens[:max_tokens], whole.text[:max_tokens], FinishReason.LENGTH)

    def test_a_stop_text_may_cut_it(self) -> None:
        whole = answer(scripted())
        assert answer(scripted(), stop=("[",)).text == whole.text.split("[")[0]

    def test_nothing_but_end_tokens_follows_when_they_do_not_end_it(self) -> None:
        result = answer(scripted(ScriptedProposer(SCRIPT, BYTE_VOCAB)), ignore_eos=True)
        validate(json.loads(result.text), SCHEMA)
        assert set(result.tokens[len(result.text) :]) == {EOS_ID}
        assert result.finish_reason is FinishReason.LENGTH

    def test_a_shortest_length_is_refused(self) -> None:
        with pytest.raises(InvalidRequest, match="min_tokens must be 0 with a grammar"):
            scripted().add(Request(PROMPT, SamplingParams(min_tokens=3), mask=grammar()))


@dataclass
class GivesUp:
    """A mask whose parser reaches a limit after some tokens."""

    after: int

    def new_mask(self, tokens: Sequence[int], prompt_len: int) -> GivesUp:
        self.tokens, self.limit = tokens, prompt_len + self.after
        return self

    def mask(self, path: Sequence[int]) -> Tensor | None:
        if len(self.tokens) + len(path) > self.limit:
            raise BadLogits("the grammar allows no token: too complex")
        return None

    def forced(self, length: int) -> tuple[bytes, ...]:
        self.mask(())
        return (b"text",)


def test_a_parser_that_gives_up_ends_its_own_request_only() -> None:
    engine = scripted(ScriptedProposer(SCRIPT, BYTE_VOCAB, accuracy=0.7))
    free = params_for(2, ignore_eos=True, max_tokens=30)
    results = answers(engine, {"broken": (PROMPT, free, GivesUp(10)), "other": (PROMPT, free, None)})
    assert results["broken"].finish_reason is FinishReason.ERROR
    assert "too complex" in (results["broken"].error or "")
    assert len(results["broken"].tokens) <= 11
    assert results["other"].outcome == answers(scripted(), {"other": (PROMPT, free, None)})["other"].outcome
    assert "complex" not in engine.quarantine.reason("scripted")
