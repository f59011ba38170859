"""Ways out of the target after some of its layers: its own head, or a trained exit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from gamaneh.core import Backend, Feed
from gamaneh.heads.borrowed import head_rows
from gamaneh.heads.exit_head import ExitHead
from gamaneh.models.decoder import Decoder
from gamaneh.models.linear import make_linear
from gamaneh.proposers.vocabulary import DraftVocabulary


class Exit(Protocol):
    """Some layers of the target and what makes logits of their output."""

    num_layers: int
    nbytes: int

    def logits(self, feeds: Sequence[Feed]) -> list[Tensor]:
        """Run the layers over feeds of one token each; `[vocab]` float32 logits of the token behind it."""
        ...


class OwnExit:
    """The target's final norm and output matrix, which were made for the last layer and not for this one."""

    nbytes = 0

    def __init__(self, backend: Backend, num_layers: int) -> None:
        self.backend, self.num_layers = backend, num_layers

    def logits(self, feeds: Sequence[Feed]) -> list[Tensor]:
        """`[vocab]` for each feed."""
        self.backend.verify(feeds, num_layers=self.num_layers)
        return [feed.scores[-1].float() for feed in feeds if feed.scores is not None]


class TrainedExit:
    """A head that was trained for this layer; it may know only a part of the vocabulary."""

    def __init__(self, backend: Backend, head: ExitHead, decoder: Decoder) -> None:
        ids = head.draft_ids()
        self.backend, self.head, self.num_layers = backend, head, head.shape.num_layers
        self.output = decoder.head if ids is None else make_linear(head_rows(decoder, ids))
        own = sum(parameter.nbytes for parameter in head.parameters())
        self.nbytes = own + (0 if ids is None else self.output.nbytes())
        self._vocabulary = DraftVocabulary(ids, decoder.config.vocab_size)

    @torch.inference_mode()
    def logits(self, feeds: Sequence[Feed]) -> list[Tensor]:
        """`[vocab]` for each feed."""
        silent = [replace(feed, logit_rows=0) for feed in feeds]
        self.backend.verify(silent, taps=(self.num_layers,), num_layers=self.num_layers)
        features = self.head.features(torch.stack([feed.hidden[-1, 0] for feed in silent if feed.hidden is not None]))
        return list(self._vocabulary.widen(self.output(features)))
