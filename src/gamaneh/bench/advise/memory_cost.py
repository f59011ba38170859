"""How many requests fit at once, with the memory of a proposer and without.

Formula
    largest batch   (limit - weights) / (bytes of one token in the caches * tokens of one request), rounded down
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gamaneh.bench.advise.candidate import Candidate, token_bytes
from gamaneh.machine_limits import available_memory
from gamaneh.models.loading import LoadedModel


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a target with one proposer.

    Args:
        target_weights, draft_weights: of the target and of the proposer, or all that the latter holds if it
            is no model.
        target_token, draft_token: of one token in their caches.
        context: tokens of one request.
        limit: what may be used.
    """

    target_weights: int
    target_token: int
    draft_weights: int
    draft_token: int
    context: int
    limit: int

    @property
    def largest_plain_batch(self) -> int:
        """Requests at once without the proposer."""
        return self._batch(self.target_weights, self.target_token)

    @property
    def largest_batch(self) -> int:
        """Requests at once with it."""
        return self._batch(self.target_weights + self.draft_weights, self.target_token + self.draft_token)

    def needed(self, batch: int) -> int:
        """Bytes of weights and caches with so many requests at once."""
        token = self.target_token + self.draft_token
        return self.target_weights + self.draft_weights + token * self.context * batch

    def _batch(self, weights: int, token: int) -> int:
        return max((self.limit - weights) // (token * self.context), 0)


def footprint(target: LoadedModel, candidate: Candidate, context: int, limit: int) -> Footprint:
    """Of this target with this candidate.

    Args:
        context: tokens of one request, prompt and answer.
        limit: bytes that may be used.
    """
    return Footprint(
        target_weights=target.weight_bytes,
        target_token=token_bytes(target),
        draft_weights=candidate.weight_bytes,
        draft_token=candidate.token_bytes,
        context=context,
        limit=limit,
    )


def free_bytes(device: torch.device) -> int:
    """Memory that is free now, of the device on which the models are going to be."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return available_memory()
