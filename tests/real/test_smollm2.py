"""SmolLM2-135M: the same logits as `transformers`, and the same tokens with and without speculation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from gamaneh.bench.engines import as_tokens
from gamaneh.bench.prompt_set import load_prompts
from gamaneh.cli.main import app
from gamaneh.engine.llm import LLM, Generation
from gamaneh.models.loading import LoadedModel, load
from gamaneh.options import EngineOptions, Precision, SamplingParams, SpeculationOptions
from tools.speed.peer import load_peer

PLAIN = SpeculationOptions()
OPTIONS = EngineOptions(max_batch=8, max_context=1024, invariant=True)


@pytest.fixture(scope="module")
def loaded(model_file: Path) -> LoadedModel:
    return load(model_file)


@pytest.fixture(scope="module")
def llm(loaded: LoadedModel) -> Iterator[LLM]:
    yield LLM(loaded, speculation=SpeculationOptions(proposer="lookup"), options=OPTIONS)


@pytest.fixture(scope="module")
def prompts(llm: LLM) -> list[list[int]]:
    """One prompt of each category, in the chat template."""
    by_category = {prompt.category: prompt for prompt in reversed(load_prompts(None))}
    return [as_tokens(llm.tokenizer, prompt.prompt) for prompt in by_category.values()]


def params_for(temperature: float) -> list[SamplingParams]:
    return [SamplingParams(temperature=temperature, seed=at, max_tokens=16) for at in range(4)]


def tokens_of(answers: list[Generation]) -> list[list[int]]:
    assert [answer.error for answer in answers] == [None] * len(answers)
    return [answer.tokens for answer in answers]


def alone(llm: LLM, prompts: list[list[int]], params: list[SamplingParams]) -> list[list[int]]:
    """Plain decoding, one request at a time."""
    answers = [llm.generate([one], own, speculation=PLAIN)[0] for one, own in zip(prompts, params, strict=True)]
    return tokens_of(answers)


def test_logits_are_those_of_transformers(model_file: Path) -> None:
    llm = LLM(model_file, precision=Precision(weights="float32"), options=EngineOptions(max_batch=1, max_context=256))
    ids = llm.tokenizer.encode("The guess is put to the test. گمانه را می‌آزمایند. x = [1, 22, 333]")
    peer = load_peer(model_file, torch.float32)
    with torch.inference_mode():
        expected = peer(torch.tensor([ids])).logits[0].log_softmax(-1)
    answer = llm.generate([ids], SamplingParams(max_tokens=1, prompt_logprobs=5))[0]
    assert answer.prompt_logprobs is not None
    for at, entry in enumerate(answer.prompt_logprobs[1:], start=1):
        assert entry is not None
        assert entry.logprob == pytest.approx(float(expected[at - 1, ids[at]]), abs=1e-3)
        assert entry.top[0][0] == int(expected[at - 1].argmax())


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_lookup_changes_no_token_alone_or_in_a_batch(llm: LLM, prompts: list[list[int]], temperature: float) -> None:
    params = params_for(temperature)
    plain = alone(llm, prompts, params)
    assert tokens_of(llm.generate(prompts, params)) == plain
    assert tokens_of([llm.generate([one], own)[0] for one, own in zip(prompts, params, strict=True)]) == plain


def test_lookup_changes_no_token_in_float32(model_file: Path, prompts: list[list[int]]) -> None:
    speculation = SpeculationOptions(proposer="lookup")
    exact = LLM(model_file, speculation=speculation, options=OPTIONS, precision=Precision(weights="float32"))
    params = [SamplingParams(temperature=temperature, seed=1, max_tokens=10) for temperature in (0.0, 1.0)]
    assert tokens_of(exact.generate(prompts[:2], params)) == alone(exact, prompts[:2], params)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_draft_model_changes_no_token(loaded: LoadedModel, prompts: list[list[int]], temperature: float) -> None:
    """The draft model is the target itself, so that drafts are long and most are accepted."""
    speculation = SpeculationOptions(proposer="draft_model", draft_length=5, proposer_options={"min_confidence": 0.0})
    drafted = LLM(loaded, draft_model=loaded, speculation=speculation, options=OPTIONS)
    answers = drafted.generate(prompts, params_for(temperature))
    assert tokens_of(answers) == alone(drafted, prompts, params_for(temperature))
    reports = [report for answer in answers for report in answer.reports]
    assert sum(report.accepted for report in reports) > 0.9 * sum(report.drafted for report in reports)


def test_the_command_line_gives_the_same_text_with_and_without_lookup(model_file: Path) -> None:
    texts = []
    for way in ("--plain", "--lookup"):
        arguments = ["generate", "--model", str(model_file), way, "--chat", "-n", "24", "--json", "Say: one two three"]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        texts.append(json.loads(result.stdout.splitlines()[-1])["text"])
    assert texts[0] == texts[1]
