"""Heads for the real small model: bfloat16, its own chat template, a part of its vocabulary."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from gamaneh.engine.llm import LLM
from gamaneh.models.loading import load
from gamaneh.options import Precision, SamplingParams, SpeculationOptions
from gamaneh.train.corpus import make_corpus
from gamaneh.train.data import Example
from gamaneh.train.heads import HeadsOrder, train_heads
from gamaneh.train.runs import Tick, Workshop, start_accelerator
from gamaneh.train.settings import DataOptions, LoopOptions


def silent(title: str) -> AbstractContextManager[Tick]:
    return nullcontext(lambda done, total: None)


@pytest.mark.parametrize("kind", ["medusa", "eagle"])
def test_heads_are_trained_for_the_real_model_and_change_no_answer(model_file: Path, tmp_path: Path, kind: str) -> None:
    target = load(model_file)
    workshop = Workshop(start_accelerator("auto", Precision(), "cpu"), tmp_path / "work", silent, lambda text: None)
    data = DataOptions(max_length=96, held_out=2, answer_tokens=24, temperatures=(0.0,), answer_batch=8)
    examples = [Example.from_prompt(f"Name {count} colours.") for count in range(2, 8)]
    order = HeadsOrder(kind=kind, draft_vocab=512, loop=LoopOptions(epochs=8, batch_tokens=512, learning_rate=2e-3))

    corpus = make_corpus(target, examples, data, workshop)
    artifact = train_heads(target, corpus, order, workshop, tmp_path / "out")
    llm = LLM(target, heads=[tmp_path / "out"], speculation=SpeculationOptions(proposer=kind, draft_length=3))
    prompt, params = target.tokenizer.chat(list(examples[0].messages)), SamplingParams(max_tokens=16)
    guessed, plain = (
        llm.generate([prompt], params, speculation=speculation)[0]
        for speculation in (None, SpeculationOptions(proposer="none"))
    )

    assert guessed.tokens == plain.tokens
    assert any(report.drafted for report in guessed.reports)
    assert artifact.quality["survival"]["all"][0] > 0
