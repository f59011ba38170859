"""The engine over the compiled backend: every way of speculating gives the tokens of plain decoding."""

from __future__ import annotations

import pytest
from compiled_models import compiled_model

from gamaneh import LLM, SamplingParams, SpeculationOptions
from gamaneh.backends.compiled import processor
from gamaneh.errors import InvalidOption
from gamaneh.options import EngineOptions

pytestmark = pytest.mark.skipif(not processor.available(), reason="this processor runs no compiled kernels")

PROMPTS = ["hello hello hello world hello", "abc abc abc abc ", "one two three four five six seven eight nine ten " * 3]
PARAMS = [SamplingParams(max_tokens=40), SamplingParams(max_tokens=40, temperature=0.8, seed=3)]


def tokens(proposer, params, *, family="llama", draft=None, options=None, instructions="auto", **more):
    speculation = SpeculationOptions(proposer=proposer, **({} if proposer == "none" else {"draft_length": 4, **more}))
    llm = LLM(
        compiled_model(family, instructions=instructions), draft_model=draft, speculation=speculation, options=options
    )
    answers = llm.generate(PROMPTS, params)
    llm.engine.backend.check_integrity()
    return [answer.tokens for answer in answers]


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", ["llama", "mistral", "gemma2", "gemma3"])
@pytest.mark.parametrize("proposer", ["lookup", "suffix", "draft_model"])
def test_speculation_gives_the_tokens_of_plain_decoding(proposer, family, params):
    draft = compiled_model(family, "int4") if proposer == "draft_model" else None
    assert tokens(proposer, params, family=family, draft=draft) == tokens("none", params, family=family)


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
def test_trees_give_the_tokens_of_plain_decoding(params):
    draft = compiled_model("llama", "int4")
    trees = {"rule": "match", "proposer_options": {"draft_branching": 2}}
    assert tokens("draft_model", params, draft=draft, **trees) == tokens("none", params)


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
def test_an_early_exit_is_measured_and_gives_the_tokens_of_plain_decoding(params):
    assert tokens("early_exit", params) == tokens("none", params)


def test_batches_chunks_and_preemption_change_no_token():
    wide = tokens("lookup", PARAMS[1], options=EngineOptions(max_batch=3))
    alone = tokens("lookup", PARAMS[1], options=EngineOptions(max_batch=1))
    tight = tokens("lookup", PARAMS[1], options=EngineOptions(max_batch=3, kv_blocks=20))
    assert wide == alone == tight


def test_a_prefix_that_was_answered_before_is_reused_with_the_same_tokens():
    llm = LLM(compiled_model(), speculation=SpeculationOptions(proposer="none"))
    first = llm.generate(PROMPTS[2], PARAMS[0])[0].tokens
    again = llm.generate(PROMPTS[2], PARAMS[0])[0].tokens
    assert first == again


def test_blocks_hold_a_multiple_of_16_tokens():
    assert tokens("lookup", PARAMS[0], options=EngineOptions(block_size=32)) == tokens("lookup", PARAMS[0])
    with pytest.raises(InvalidOption, match="must be a multiple of 16 for the compiled backend, got 8"):
        tokens("none", PARAMS[0], options=EngineOptions(block_size=8))


@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen3"])
@pytest.mark.parametrize("proposer", ["suffix", "draft_model"])
@pytest.mark.parametrize("instructions", processor.available()[1:])
def test_every_instruction_set_gives_the_tokens_of_its_own_plain_decoding(instructions, proposer, family, params):
    draft = compiled_model(family, "int4", instructions=instructions) if proposer == "draft_model" else None
    forced = {"family": family, "instructions": instructions}
    assert tokens(proposer, params, draft=draft, **forced) == tokens("none", params, **forced)


def test_a_size_of_blocks_that_there_is_not_is_refused_before_anything_is_loaded():
    with pytest.raises(InvalidOption, match="block_size must be a multiple of 16 for the compiled backend, got 24"):
        LLM("no-such-model", options=EngineOptions(block_size=24), device="cpu")
