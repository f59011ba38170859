"""SmolLM2's tokenizer on both sides of a bridge: nothing is lost on the way there and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gamaneh.engine.llm import LLM
from gamaneh.models.gguf_file import GgufFile
from gamaneh.models.loading import LoadedModel, load
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.cross.spelling import Speller
from gamaneh.proposers.cross.transcript import Transcriber, Transcript
from gamaneh.testing import PieceTokenizer

TEXT = "for i in range(10):\n    print(i * 2)  # سلام دنیا، ۱۲۳ 👋🏽 naïve  two  spaces\n\n\tThe end; of 3.14159!\n"
PLAIN = SpeculationOptions()


@pytest.fixture(scope="module")
def loaded(model_file: Path) -> LoadedModel:
    return load(model_file)


@pytest.fixture(scope="module")
def tokenizer(model_file: Path) -> Tokenizer:
    return Tokenizer.from_gguf(GgufFile(model_file))


def test_a_text_that_grows_byte_by_byte_is_spelled_as_a_whole_one(tokenizer: Tokenizer) -> None:
    bytewise = PieceTokenizer([bytes([byte]) for byte in range(256)])
    transcript = Transcript(Transcriber(Speller(bytewise), Speller(tokenizer)))
    data = list((TEXT * 2).encode())
    for end in range(1, len(data) + 1):
        transcript.extend(data[:end])
    assert transcript.tokens == tokenizer.encode(TEXT * 2)


@pytest.mark.parametrize("bridge", ["text", "vocabulary"])
def test_the_model_drafts_for_itself_across_a_bridge(loaded: LoadedModel, bridge: str) -> None:
    speculation = SpeculationOptions(
        proposer="draft_model", draft_length=4, proposer_options={"min_confidence": 0.0, "bridge": bridge}
    )
    options = EngineOptions(max_batch=4, max_context=512, invariant=True)
    llm = LLM(loaded, draft_model=loaded, speculation=speculation, options=options)
    prompts = [
        llm.tokenizer.chat([{"role": "user", "content": text}])
        for text in ("Count from one to ten in words.", "یک جمله درباره دریا بنویس.")
    ]
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    answers = llm.generate(prompts, params)
    assert [one.tokens for one in answers] == [
        llm.generate([prompt], params, speculation=PLAIN)[0].tokens for prompt in prompts
    ]
    reports = [report for answer in answers for report in answer.reports]
    assert sum(report.accepted for report in reports) >= 0.8 * sum(report.drafted for report in reports)
