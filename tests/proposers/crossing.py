"""Two tokenizers that cut texts differently, and draft models that write a given text."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import ProposalRow, Use
from gamaneh.kv import BlockPool, KVManager
from gamaneh.options import SamplingParams
from gamaneh.proposers.bridge import Bridge
from gamaneh.proposers.cross.spelling import Speller
from gamaneh.proposers.cross.transcript import Transcriber
from gamaneh.proposers.draft_model import DraftModelProposer
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.testing import PieceTokenizer, Script, ScriptedRunner

BYTES = [bytes([byte]) for byte in range(256)]
BEGINNINGS = [" t", " th", "th", " c", " s", " m", " q", " qu", "سل", "سلا"]
"""As in tokenizers that are learned, where a word becomes a token step by step."""

OURS = PieceTokenizer(
    [*BYTES, "the", *BEGINNINGS, " the", " cat", " sat", " mat", " quick", "سلام", b" \xf0\x9f", b"\x91\x8b"],
    special=("<end>", "<|user|>", "<|image|>"),
)
THEIRS = PieceTokenizer(
    ["cat", " s", "at", " th", "e ", "qu", "ick", " and", "سل", *BYTES], special=("<eos>", "<|user|>", "<s>")
)
USER, IMAGE = sorted(OURS.special_ids)[1:]
THEIR_EOS, THEIR_USER, THEIR_BEGIN = sorted(THEIRS.special_ids)


def transcriber(target: PieceTokenizer = OURS, draft: PieceTokenizer = THEIRS) -> Transcriber:
    return Transcriber(Speller(target), Speller(draft))


def writes(text: str, tokenizer: PieceTokenizer = THEIRS, *, sharpness: float = 20.0) -> Script:
    """What was read must be the beginning of `text`; what is written is how it goes on, and then the end."""

    def script(history: Sequence[int]) -> torch.Tensor:
        said = b"".join(map(tokenizer.token_bytes, history))
        assert text.encode().startswith(said), f"the draft model has read {said!r}"
        rest = text.encode()[len(said) :]
        fitting = [token for token in range(tokenizer.vocab_size) if rest.startswith(tokenizer.token_bytes(token))]
        token = max(fitting, key=lambda token: len(tokenizer.token_bytes(token)), default=tokenizer.eos_ids[0])
        logits = torch.zeros(tokenizer.vocab_size)
        logits[token] = sharpness
        return logits

    return script


def proposer_over(
    script: Script, bridge: Bridge, *, vocab_size: int = THEIRS.vocab_size, **options
) -> DraftModelProposer:
    runner = ScriptedRunner(script, vocab_size, num_blocks=options.pop("num_blocks", 200), max_context=2000)
    pool = BlockPool(runner.cache.num_blocks, runner.cache.block_size, prefix_cache=False)
    return DraftModelProposer(
        PagedBackend(runner, KVManager(pool, runner.cache)), vocab_size=OURS.vocab_size, bridge=bridge, **options
    )


def row(tokens: Sequence[int], k: int = 4, *, request_id: str = "r", nodes: int | None = None, **params) -> ProposalRow:
    """A request for a draft; `want_probs` as under the rules that read probabilities."""
    want_probs = params.pop("want_probs", False)
    sampling = SamplingParams(**params)
    sampler = RequestSampler(
        sampling, vocab_size=OURS.vocab_size, prompt=tokens[:1], tokens=tokens, eos_ids=(), seed=sampling.seed or 0
    )
    use = Use.DRAFT if want_probs else Use.TARGET
    return ProposalRow(request_id, tokens, k, nodes or k, sampler, use, want_probs)
