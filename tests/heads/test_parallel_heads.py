"""Medusa heads and parallel multi-token prediction heads: what they compute, before and after they are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from gamaneh.errors import CorruptModel, InvalidOption
from gamaneh.heads.artifact import Artifact, load_artifact, mark_target, save_artifact
from gamaneh.heads.kinds import HEAD_KINDS
from gamaneh.heads.parallel import ParallelHeads
from gamaneh.heads.trainable import TrainBatch
from gamaneh.models.loading import LoadedModel
from gamaneh.testing import TINY_CONFIGS, tiny_heads, tiny_model

TARGET = tiny_model("llama")
PARALLEL: Mapping[str, tuple[str, dict[str, Any]]] = {
    "medusa": ("medusa", {}),
    "medusa, two blocks": ("medusa", {"num_blocks": 2, "depth": 2}),
    "medusa, own matrices": ("medusa", {"share_head": False, "depth": 2}),
    "medusa, blind": ("medusa", {"see_next": False}),
    "mtp": ("mtp", {"form": "parallel", "depth": 2, "intermediate_size": 16}),
}


def blank(case: str, model: LoadedModel = TARGET, draft_ids: Tensor | None = None) -> ParallelHeads:
    kind, shape = PARALLEL[case]
    heads = HEAD_KINDS[kind].blank(shape, model, draft_ids)
    assert isinstance(heads, ParallelHeads)
    return heads


def loaded(artifact: Artifact, model: LoadedModel) -> ParallelHeads:
    heads = HEAD_KINDS[artifact.kind].load(artifact, model)
    assert isinstance(heads, ParallelHeads)
    return heads


def some_hidden(count: int, seed: int = 3) -> Tensor:
    return torch.randn(count, 32, generator=torch.Generator().manual_seed(seed)) * 5.0


@pytest.mark.parametrize("family", TINY_CONFIGS)
@pytest.mark.parametrize("case", PARALLEL)
def test_heads_begin_as_the_target(case: str, family: str) -> None:
    model = tiny_model(family)
    hidden = some_hidden(6)
    expected = model.decoder.logits(hidden, [6])
    for logits in blank(case, model)(hidden, torch.arange(6)):
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("case", PARALLEL)
def test_a_part_of_the_vocabulary_has_the_logits_of_its_tokens(case: str) -> None:
    ids = torch.tensor([3, 7, 250])
    hidden = some_hidden(4)
    whole, part = blank(case)(hidden, torch.arange(4)), blank(case, draft_ids=ids)(hidden, torch.arange(4))
    for all_logits, logits in zip(whole, part, strict=True):
        torch.testing.assert_close(logits, all_logits[:, ids])


@pytest.mark.parametrize("case", PARALLEL)
def test_a_text_is_read_position_by_position(case: str) -> None:
    """Row t of a text has what the heads say of hidden state t and token t + 1."""
    kind, shape = PARALLEL[case]
    heads = loaded(tiny_heads(TARGET, kind, **shape), TARGET)
    tokens, hidden = torch.arange(10, 22).view(2, 6), some_hidden(12).view(2, 6, 1, 32)
    whole = heads.draft_logits(TrainBatch(tokens, hidden, torch.ones_like(tokens, dtype=torch.bool)))
    assert len(whole) == heads.depth
    for level, logits in enumerate(whole):
        for at in range(5):
            alone = heads(hidden[:, at, 0], tokens[:, at + 1])[level]
            torch.testing.assert_close(logits[:, at], alone)


@pytest.mark.parametrize(("case", "sees"), [("medusa", True), ("medusa, blind", False), ("mtp", True)])
def test_the_next_token_is_seen_if_the_shape_says_so(case: str, sees: bool) -> None:
    kind, shape = PARALLEL[case]
    heads = loaded(tiny_heads(TARGET, kind, **shape), TARGET)
    hidden = some_hidden(1)
    differs = [
        not torch.equal(*pair) for pair in zip(*(heads(hidden, torch.tensor([at])) for at in (5, 6)), strict=True)
    ]
    assert differs == [sees] * heads.depth


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", PARALLEL)
def test_what_was_kept_computes_what_was_trained(case: str, dtype: torch.dtype, tmp_path: Path) -> None:
    kind, shape = PARALLEL[case]
    model = tiny_model("llama", dtype=dtype)
    artifact = tiny_heads(model, kind, draft_vocab=30, **shape)
    save_artifact(artifact, tmp_path / "heads")
    trained = HEAD_KINDS[kind].blank(shape, model, artifact.tensors["draft_ids"])
    trained.module().load_state_dict({k: v for k, v in artifact.tensors.items() if k != "draft_ids"})
    kept = loaded(load_artifact(tmp_path / "heads"), model)
    hidden = some_hidden(3)
    tolerance = 1e-5 if dtype == torch.float32 else 0.2
    for ours, theirs in zip(
        kept(hidden.to(dtype), torch.arange(3)), trained.module()(hidden, torch.arange(3)), strict=True
    ):
        torch.testing.assert_close(ours.float(), theirs, rtol=tolerance, atol=tolerance)
    assert kept.draft_ids() is not None and kept.nbytes() > 0


def test_only_the_heads_are_trained() -> None:
    heads = blank("medusa")
    before = TARGET.decoder.embedding.clone()
    optimiser = torch.optim.SGD(heads.module().parameters(), lr=0.1)
    sum(logits.logsumexp(-1).sum() for logits in heads(some_hidden(4), torch.arange(4))).backward()  # type: ignore[union-attr]
    assert all(parameter.grad is not None and parameter.grad.abs().sum() > 0 for parameter in heads.parameters())
    optimiser.step()
    assert torch.equal(TARGET.decoder.embedding, before)


WRONG_SHAPES: Mapping[str, tuple[str, dict[str, Any], str]] = {
    "no depth": ("medusa", {"depth": 0}, "depth must be a whole number from 1 to 32, got 0"),
    "no flag": ("medusa", {"share_head": 1}, "share_head must be true or false, got 1"),
    "unknown": ("medusa", {"colour": 1}, "colour is not an option of MedusaShape"),
    "form": ("mtp", {"form": "round"}, "form must be one of parallel, chained, got 'round'"),
    "size": ("mtp", {"intermediate_size": 0}, "intermediate_size must be a whole number above 0"),
    "shared": ("mtp", {"form": "parallel", "shared": True}, "shared needs the form chained"),
}


@pytest.mark.parametrize("case", WRONG_SHAPES)
def test_a_wrong_shape_is_refused_by_its_part(case: str) -> None:
    kind, shape, message = WRONG_SHAPES[case]
    with pytest.raises(InvalidOption, match=message):
        HEAD_KINDS[kind].blank(shape, TARGET, None)
    whole = {**HEAD_KINDS[kind].whole_shape({}, TARGET), **shape}
    with pytest.raises(CorruptModel, match="shape of heads"):
        HEAD_KINDS[kind].load(Artifact(kind, whole, mark_target(TARGET), {}), TARGET)
