"""Output = plain decoding when the draft model has another tokenizer (CASES kind 25)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from conftest import assert_idle, run
from small_tokenizers import byte_level, sentence_piece
from test_equivalence import ready
from under_test import kept, tiny_model

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import Request, StepReport
from gamaneh.engine.assembly import assemble
from gamaneh.engine.engine import Engine
from gamaneh.kv import BlockPool, KVManager
from gamaneh.models.loading import LoadedModel
from gamaneh.models.tokenizer import Tokenizer
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.proposers.recipe import Ingredients, ReadyModel
from gamaneh.proposers.registry import build_proposers
from gamaneh.testing import TINY_CONFIGS, PieceTokenizer, Script, ScriptedRunner

LETTERS = [chr(byte) for byte in range(128)]
OURS = PieceTokenizer(
    [*LETTERS, " t", " th", " the", " c", " ca", " cat", "at", "س", "ل", "ا", "م", b"\xf0\x9f", b"\x91\x8b", b"\xd8"],
    special=("<end>", "<|user|>", "<|image|>"),
)
THEIRS = PieceTokenizer(
    ["the ", "cat", " s", "سل", "a ", "qu", *(bytes([byte]) for byte in range(256))], special=("<eos>", "<|user|>")
)
TEXTS = {"a": "the cat sat on the mat; " * 4, "b": "سلام 👋 the", "c": " ", "d": "a\n\n\tb  two  spaces " * 6}
BRIDGES = ("text", "vocabulary", "auto")


@kept
def model(
    tokenizer: PieceTokenizer | Tokenizer, family: str, dtype: torch.dtype, seed: int, context: int = 2048
) -> LoadedModel:
    """Its vocabulary is padded."""
    sizes = {"vocab_size": tokenizer.vocab_size + 3, "max_context": context}
    config = replace(TINY_CONFIGS[family], **sizes, eos_ids=tokenizer.eos_ids)
    return replace(tiny_model(config=config, dtype=dtype, seed=seed), tokenizer=tokenizer, name=f"tiny-{seed}")


def knows(texts: Sequence[str], tokenizer: PieceTokenizer) -> Script:
    """Writes on as one of the texts goes on; something else where it has read another text."""

    def script(history: Sequence[int]) -> torch.Tensor:
        said = b"".join(map(tokenizer.token_bytes, history)).decode(errors="ignore").encode()
        rests = [text.encode()[len(said) :] for text in texts if text.encode().startswith(said)]
        pieces = [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]
        fitting = [token for token, piece in enumerate(pieces) if rests and rests[0].startswith(piece)]
        token = max(fitting, key=lambda token: len(pieces[token]), default=len(history) % tokenizer.vocab_size)
        return torch.zeros(tokenizer.vocab_size).index_fill_(0, torch.tensor(token), 9.0)

    return script


def engine_for(
    bridge: str,
    *,
    family: str = "llama",
    dtype: torch.dtype = torch.float32,
    k: int | None = 4,
    num_blocks: int = 100,
    step_tokens: int = 256,
    branching: int = 1,
    target: PieceTokenizer | Tokenizer = OURS,
    draft: PieceTokenizer | Tokenizer = THEIRS,
    script: Script | None = None,
) -> Engine:
    """Without a script the draft model is a random one."""
    large, small = model(target, family, dtype, 0), model(draft, "qwen2", dtype, 1, context=512)
    speculation = SpeculationOptions(
        proposer="draft_model",
        draft_length=k,
        proposer_options={"min_confidence": 0.0, "bridge": bridge, "draft_branching": branching},
    )
    ours = ready(large, num_blocks=num_blocks, invariant=True, prefix_cache=True)
    theirs = ready(small, num_blocks=100, invariant=False, prefix_cache=False)
    if script is not None:
        runner = ScriptedRunner(script, draft.vocab_size, num_blocks=400, max_context=2000)
        theirs = ReadyModel(small, PagedBackend(runner, KVManager(BlockPool(400, 4, prefix_cache=False), runner.cache)))
    return assemble(
        ours.backend,
        target,
        proposers=build_proposers(Ingredients(speculation, ours, theirs)),
        speculation=speculation,
        options=EngineOptions(max_batch=8, step_tokens=step_tokens),
    )


def params_for(temperature: float, length: int = 40) -> SamplingParams:
    return SamplingParams(temperature=temperature, seed=5, max_tokens=length, ignore_eos=True)


def prompt_of(name: str, tokenizer: PieceTokenizer | Tokenizer = OURS) -> list[int]:
    return tokenizer.encode(TEXTS[name])


def outputs(engine: Engine, names: str, temperature: float, length: int = 40) -> dict[str, list[int]]:
    requests = {name: (prompt_of(name, engine.tokenizer), params_for(temperature, length)) for name in names}
    results = run(engine, requests)
    assert_idle(engine)
    assert engine.proposers["draft_model"].reader.backend.kv.pool.in_use == 0
    return {name: result.tokens for name, result in results.items()}


@kept
def plain(
    temperature: float,
    family: str = "llama",
    dtype: torch.dtype = torch.float32,
    target: PieceTokenizer | Tokenizer = OURS,
    length: int = 40,
) -> dict[str, list[int]]:
    """Each text alone, in one piece, without speculation."""
    tokens = {}
    for name in TEXTS:
        large = ready(model(target, family, dtype, 0), num_blocks=100, invariant=True, prefix_cache=True)
        engine = assemble(large.backend, target, options=EngineOptions(max_batch=8, step_tokens=256))
        request = {name: (prompt_of(name, target), params_for(temperature, length))}
        tokens[name] = run(engine, request)[name].tokens
    return tokens


def expected(names: str, temperature: float, **options: object) -> dict[str, list[int]]:
    tokens = plain(temperature, **options)
    return {name: tokens[name] for name in names}


def known_texts(temperature: float) -> list[str]:
    """Prompts and outputs as the draft model reads them: without what is no text, and without special tokens."""
    whole = [[*prompt_of(name), *tokens] for name, tokens in plain(temperature).items()]
    kept = [[token for token in tokens if token not in OURS.special_ids] for tokens in whole]
    return [b"".join(map(OURS.token_bytes, tokens)).decode(errors="ignore") for tokens in kept]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("names", ["a", "abcd"])
@pytest.mark.parametrize("bridge", BRIDGES)
@pytest.mark.parametrize("right", [True, False])
def test_every_bridge(right: bool, bridge: str, names: str, temperature: float) -> None:
    script = knows(known_texts(temperature), THEIRS) if right else None
    assert outputs(engine_for(bridge, script=script), names, temperature) == expected(names, temperature)


@pytest.mark.parametrize("bridge", ["text", "vocabulary"])
@pytest.mark.parametrize("family", ["mistral", "gemma3", "qwen3"])
def test_every_kind_of_target(family: str, bridge: str) -> None:
    """CASES kind 37: outputs longer than the sliding window of 32."""
    engine = engine_for(bridge, family=family)
    assert outputs(engine, "abcd", 1.0) == expected("abcd", 1.0, family=family)


@pytest.mark.parametrize("bridge", ["text", "vocabulary"])
@pytest.mark.parametrize("k", [None, 1, 2, 3, 5, 6, 7, 8, 15])
def test_every_draft_length(k: int | None, bridge: str) -> None:
    assert outputs(engine_for(bridge, k=k), "abcd", 1.0) == expected("abcd", 1.0)


@pytest.mark.parametrize("bridge", ["text", "vocabulary"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("step_tokens", [16, 33])
def test_every_size_of_prefill_chunks(step_tokens: int, dtype: torch.dtype, bridge: str) -> None:
    engine = engine_for(bridge, dtype=dtype, step_tokens=step_tokens)
    assert outputs(engine, "abcd", 1.0) == expected("abcd", 1.0, dtype=dtype)


@pytest.mark.parametrize("bridge", ["text", "vocabulary"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_preemption_and_reused_prefixes(dtype: torch.dtype, bridge: str) -> None:
    engine = engine_for(bridge, dtype=dtype, num_blocks=18)
    preempted = []
    original = engine.scheduler._preempt
    engine.scheduler._preempt = lambda sequence: (preempted.append(sequence), original(sequence))
    for _ in ("cold", "warm"):
        assert outputs(engine, "abcd", 1.0) == expected("abcd", 1.0, dtype=dtype)
    assert preempted
    assert engine.backend.kv.stats.hit_tokens > 0


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_trees_over_shared_tokens(temperature: float) -> None:
    engine = engine_for("vocabulary", branching=3)
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    assert outputs(engine, "abcd", temperature) == expected("abcd", temperature)
    assert any(report.drafted > report.depth for report in reports)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("k", range(1, 9))
@pytest.mark.parametrize("bridge", ["text", "vocabulary"])
@pytest.mark.parametrize(("target", "draft"), [(sentence_piece, byte_level), (byte_level, sentence_piece)])
def test_sentence_piece_and_byte_level_tokenizers(target, draft, bridge: str, k: int, temperature: float) -> None:
    ours, theirs = _tokenizer(target), _tokenizer(draft)
    engine = engine_for(bridge, k=k, target=ours, draft=theirs)
    assert outputs(engine, "abd", temperature, 24) == expected("abd", temperature, target=ours, length=24)


@kept
def _tokenizer(make) -> Tokenizer:
    return make()


@pytest.mark.parametrize(
    "text", ["Hello", "  two  spaces ", "a\n\n\tb", "سلام 👋", "word " * 300, "two {special}{special} of them "]
)
@pytest.mark.parametrize(("target", "draft"), [(sentence_piece, byte_level), (byte_level, sentence_piece)])
def test_the_draft_model_reads_the_text_itself(target, draft, text: str) -> None:
    """Spaces kept, no begin token in mid-text, special tokens inside the text only characters."""
    ours, theirs = _tokenizer(target), _tokenizer(draft)
    text = text.replace("{special}", "<s>" if draft is sentence_piece else "<|im_start|>")
    engine = engine_for("text", target=ours, draft=theirs, num_blocks=200)
    engine.add(Request(ours.encode(text), SamplingParams(max_tokens=20, ignore_eos=True), id="r"))
    transcriber = engine.proposers["draft_model"].bridge.transcriber
    while engine.has_work:
        engine.step()
        for transcript in transcriber._transcripts.values():
            begins = theirs.bos_id is not None
            assert [at for at, token in enumerate(transcript.tokens) if token == theirs.bos_id] == [0] * begins
            assert theirs.decode(transcript.tokens).startswith(text[:-1])
        engine.check_integrity()


def test_nothing_is_drafted_where_the_draft_models_context_is_full() -> None:
    """Its tokens may be shorter than the target's: 256 bytes are longer than its context of 512, four times over."""
    engine = engine_for("text", num_blocks=200)
    reports: list[StepReport] = []
    engine.observers.append(reports.append)
    tokens = OURS.encode("ااا" * 150)
    engine.add(Request(tokens, SamplingParams(max_tokens=8, ignore_eos=True)))
    while engine.has_work:
        engine.step()
    assert len(reports) == 7
    assert all(report.drafted == 0 for report in reports)
