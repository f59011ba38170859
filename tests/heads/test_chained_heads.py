"""Chained multi-token prediction heads as they are trained: over whole texts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from gamaneh.heads.artifact import load_artifact, save_artifact
from gamaneh.heads.kinds import HEAD_KINDS
from gamaneh.heads.trainable import DraftHeads, TrainBatch
from gamaneh.testing import TINY_CONFIGS, tiny_heads, tiny_model

TARGET = tiny_model("llama")
LENGTH = 12


def text(seed: int = 0) -> TrainBatch:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(256, (2, LENGTH), generator=generator)
    return TrainBatch(tokens, torch.randn(2, LENGTH, 1, 32, generator=generator), torch.ones_like(tokens).bool())


def logits(heads: DraftHeads, batch: TrainBatch) -> Tensor:
    """`[depth, batch, length, vocab]`."""
    return torch.stack(heads.draft_logits(batch)).detach()


def random_heads(**shape: object) -> DraftHeads:
    return HEAD_KINDS["mtp"].load(tiny_heads(TARGET, "mtp", **shape), TARGET)


@pytest.mark.parametrize("family", TINY_CONFIGS)
def test_chains_begin_as_the_target(family: str) -> None:
    model, batch = tiny_model(family), text()
    expected = model.decoder.logits(batch.hidden[:, :, 0].flatten(0, 1), [2 * LENGTH]).view(2, LENGTH, -1)
    for level in logits(HEAD_KINDS["mtp"].blank({}, model, None), batch):
        torch.testing.assert_close(level, expected, rtol=1e-3, atol=1e-3)


def test_position_i_reads_tokens_up_to_t_plus_i_and_no_further() -> None:
    heads, batch = random_heads(depth=3), text()
    before = logits(heads, batch)
    for changed in range(1, LENGTH):
        tokens = batch.tokens.clone()
        tokens[:, changed] = (tokens[:, changed] + 1) % 256
        differs = (logits(heads, TrainBatch(tokens, batch.hidden, batch.mask)) != before).any(-1).any(1)
        for level in range(3):
            first = max(changed - 1 - level, 0)
            assert not differs[level, :first].any()
            assert differs[level, first]


def test_a_row_reads_the_hidden_states_up_to_its_own() -> None:
    heads, batch = random_heads(), text()
    hidden = batch.hidden.clone()
    hidden[:, 5] += 1.0
    differs = (logits(heads, TrainBatch(batch.tokens, hidden, batch.mask)) != logits(heads, batch)).any(-1).any(1)
    assert not differs[:, :5].any()
    assert differs[:, 5:].all()


def test_one_block_can_serve_every_position() -> None:
    shared, each = (tiny_heads(TARGET, "mtp", shared=flag, depth=3) for flag in (True, False))
    assert 3 * sum(tensor.numel() for tensor in shared.tensors.values()) == sum(
        tensor.numel() for tensor in each.tensors.values()
    )
    assert len(logits(HEAD_KINDS["mtp"].load(shared, TARGET), text())) == 3


def test_what_was_kept_computes_what_was_trained(tmp_path: Path) -> None:
    artifact = tiny_heads(TARGET, "mtp", draft_vocab=30, intermediate_size=24)
    save_artifact(artifact, tmp_path / "heads")
    trained = HEAD_KINDS["mtp"].blank(artifact.shape, TARGET, artifact.tensors["draft_ids"])
    trained.module().load_state_dict({k: v for k, v in artifact.tensors.items() if k != "draft_ids"})
    kept = HEAD_KINDS["mtp"].load(load_artifact(tmp_path / "heads"), TARGET)
    torch.testing.assert_close(logits(kept, text()), logits(trained, text()))


def test_gradients_reach_every_weight() -> None:
    heads = HEAD_KINDS["mtp"].blank({"depth": 2}, TARGET, None)
    with torch.no_grad():
        for parameter in heads.module().parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    torch.stack(heads.draft_logits(text())).logsumexp(-1).sum().backward()
    assert all(
        parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in heads.module().parameters()
    )
