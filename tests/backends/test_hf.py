"""Families that our decoder does not know run, speculate and equal their own plain decoding."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPTNeoXConfig,
    MambaConfig,
    MixtralConfig,
    PreTrainedConfig,
    PreTrainedTokenizerFast,
)

from gamaneh import LLM
from gamaneh.backends.hf import HFBackend
from gamaneh.core import Draft, Feed, Needs, ProposalRow, Request
from gamaneh.engine.assembly import assemble
from gamaneh.errors import InvalidOption, UnsupportedModel
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.proposers.lookup import LookupProposer
from gamaneh.testing import ByteTokenizer

VOCAB = 260
SMALL = {"vocab_size": VOCAB, "bos_token_id": 1, "eos_token_id": 2}

CONFIGS: dict[str, PreTrainedConfig] = {
    "gpt2": GPT2Config(**SMALL, n_positions=256, n_embd=32, n_layer=2, n_head=2),
    "neox": GPTNeoXConfig(
        **SMALL, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=256,
    ),
    "mixture of experts": MixtralConfig(
        **SMALL, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, num_local_experts=4, max_position_embeddings=256, sliding_window=None,
    ),
    "state space": MambaConfig(**SMALL, hidden_size=32, num_hidden_layers=2, state_size=8),
}  # fmt: skip

PROMPTS = [[5, 6, 7, 8, 5, 6, 7], [9, 9, 9, 9, 9], [11, 12], list(range(20, 60))]


@cache
def backend(family: str, seed: int = 0) -> HFBackend:
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(CONFIGS[family], dtype=torch.float32).eval()
    for parameter in model.parameters():
        parameter.data.mul_(2.0)
    return HFBackend(model, total=2048)


class Replay:
    """Guesses the plain answer, with a wrong token now and then."""

    name = "replay"
    needs = Needs()

    def __init__(self, answers: dict[str, list[int]], prompts: dict[str, int]) -> None:
        self.answers, self.prompts = answers, prompts

    def propose(self, rows: list[ProposalRow]) -> list[Draft]:
        return [self._draft(row) for row in rows]

    def _draft(self, row: ProposalRow) -> Draft:
        at = len(row.tokens) - self.prompts[row.request_id]
        guess = [*self.answers[row.request_id], *[3] * 16][at : at + row.max_depth]
        guess[at % len(guess)] = 4 if at % 3 else guess[at % len(guess)]
        return Draft.chain(guess)

    def end(self, request_id: str) -> None: ...

    def forget(self, request_id: str) -> None: ...

    def memory_bytes(self) -> int:
        return 0


def answers(family: str, proposer: object = None, params: SamplingParams | None = None) -> dict[str, list[int]]:

    own = {} if proposer is None else {proposer.name: proposer}  # type: ignore[attr-defined]
    speculation = SpeculationOptions(proposer=next(iter(own)), draft_length=4) if own else SpeculationOptions()
    engine = assemble(
        backend(family),
        ByteTokenizer(),
        proposers=own,  # type: ignore[arg-type]
        speculation=speculation,
        options=EngineOptions(max_batch=3, step_tokens=16),
    )
    for at, prompt in enumerate(PROMPTS):
        engine.add(Request(prompt, params or SamplingParams(max_tokens=16, ignore_eos=True), id=f"r{at}"))
    found: dict[str, list[int]] = {f"r{at}": [] for at in range(len(PROMPTS))}
    while engine.has_work:
        for output in engine.step():
            assert output.error is None, output.error
            found[output.request_id] += output.tokens
        engine.check_integrity()
    assert engine.backend.room().free == engine.backend.room().total
    return found


@pytest.mark.parametrize("family", CONFIGS)
@pytest.mark.parametrize("sampled", [False, True], ids=["greedy", "seeded"])
def test_drafts_do_not_change_the_answer(family: str, sampled: bool) -> None:
    params = SamplingParams(max_tokens=16, ignore_eos=True, **({"temperature": 0.8, "seed": 3} if sampled else {}))
    plain = answers(family, None, params)
    lengths = {f"r{at}": len(prompt) for at, prompt in enumerate(PROMPTS)}
    draft_model = DraftModelProposer(backend(family, seed=1), vocab_size=VOCAB)
    for proposer in (LookupProposer(), Replay(plain, lengths), draft_model):
        assert answers(family, proposer, params) == plain, proposer.name


@pytest.mark.parametrize("family", CONFIGS)
def test_plain_decoding_is_that_of_the_library(family: str) -> None:
    model = backend(family).model
    for name, found in answers(family).items():
        tokens = list(PROMPTS[int(name[1:])])
        for token in found:
            with torch.inference_mode():
                assert int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()) == token
            tokens.append(token)


def test_a_draft_that_branches_is_refused_by_name() -> None:
    own = backend("gpt2")
    own.admit("r", [1, 2])
    try:
        own.reserve("r", 3)
        feed = Feed(request_id="r", tokens=[1], count=1, draft=Draft((3, 4), (-1, -1)), logit_rows=3)
        with pytest.raises(InvalidOption, match="drafts that branch"):
            own.verify([feed])
    finally:
        own.release(["r"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 that our decoder does not know, as a Hugging Face folder."""
    path = tmp_path_factory.mktemp("models") / "tiny-gpt2"
    backend("gpt2").model.save_pretrained(path)
    words = {f"w{at}": at for at in range(VOCAB)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="w0"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w2").save_pretrained(path)
    return path


def test_a_folder_is_loaded_and_drafted_for_by_its_option(folder: Path) -> None:
    prompt, params = "w5 w6 w7 w5 w6", SamplingParams(max_tokens=8, ignore_eos=True)
    plain = LLM(folder, backend="hf").generate(prompt, params)[0]
    options = SpeculationOptions(proposer="lookup", draft_length=3)
    drafted = LLM(folder, backend="hf", speculation=options).generate(prompt, params)[0]
    assert drafted.tokens == plain.tokens == answers_of_library(folder, prompt, 8)


def answers_of_library(folder: Path, prompt: str, count: int) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokens = [int(word[1:]) for word in prompt.split()]
    for _ in range(count):
        with torch.inference_mode():
            tokens.append(int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[-count:]


def test_what_needs_layers_is_refused_by_name(folder: Path) -> None:
    with pytest.raises(InvalidOption, match="must be none of block, eagle, early_exit, medusa, mtp with backend hf"):
        LLM(folder, backend="hf", speculation=SpeculationOptions(proposer="early_exit"))
    with pytest.raises(InvalidOption, match="invariant cannot be had with backend hf"):
        LLM(folder, backend="hf", options=EngineOptions(invariant=True))


def test_a_file_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(UnsupportedModel, match="must be given a Hugging Face folder"):
        LLM(file, backend="hf")
