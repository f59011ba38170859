"""Heads with random weights, for a tiny target or for any other."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from gamaneh.heads.artifact import Artifact, Provenance, mark_target, tensors_of
from gamaneh.heads.kinds import HEAD_KINDS
from gamaneh.models.loading import LoadedModel

_SPREAD = 0.1
_GUESSES = 4


def tiny_heads(
    target: LoadedModel, kind: str = "medusa", *, seed: int = 0, draft_vocab: int | None = None, **shape: Any
) -> Artifact:
    """Untrained heads that guess almost at random; the same seed gives the same weights.

    Args:
        kind: `medusa`, `mtp`, `eagle`, `block` or `early_exit`.
        draft_vocab: draft from this many tokens, chosen at random; None for all.
        shape: sizes and switches of the kind that differ from its defaults.

    Raises:
        KeyError: there is no such kind.
        InvalidOption: the shape breaks a rule.
    """
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        ids = None if draft_vocab is None else _some_ids(target.config.vocab_size, draft_vocab)
        heads = HEAD_KINDS[kind].blank(shape, target, ids)
        for parameter in heads.module().parameters():
            parameter.add_(torch.randn_like(parameter) * _SPREAD)
    ranks = [[0.5 / (1 + depth + rank) for rank in range(_GUESSES)] for depth in range(heads.depth)]
    return Artifact(
        kind=kind,
        shape=HEAD_KINDS[kind].whole_shape(shape, target),
        target=mark_target(target),
        tensors=tensors_of(heads),
        provenance=Provenance(command="gamaneh.testing.tiny_heads", data={"seed": seed}),
        quality={"ranks": ranks},
    )


def _some_ids(vocab_size: int, count: int) -> Tensor:
    return torch.randperm(vocab_size)[:count].sort().values
