"""Targets and proposers that take simulated time, to test what depends on costs without waiting and without noise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from gamaneh.core import Draft, ProposalRow
from gamaneh.kv.placing import Placed
from gamaneh.models.runner import Forward
from gamaneh.testing.scripted import Script, ScriptedProposer, ScriptedRunner


@dataclass(slots=True)
class SimulatedClock:
    """Seconds that pass only when they are told to."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class TimedRunner(ScriptedRunner):
    """A scripted target whose forwards take time, for scripts that read the last token only.

    It does not read its cache back, so that long runs are quick.

    Args:
        seconds: (token rows, tokens of context) -> seconds of a forward.
        tile: rows are computed in multiples of it.
    """

    def __init__(
        self,
        script: Script,
        vocab_size: int,
        clock: SimulatedClock,
        seconds: Callable[[int, int], float],
        *,
        tile: int = 1,
        num_blocks: int = 256,
        max_context: int = 4096,
    ) -> None:
        super().__init__(script, vocab_size, num_blocks=num_blocks, block_size=16, max_context=max_context)
        self.clock, self.seconds, self.tile = clock, seconds, tile

    def computed_rows(self, rows: int) -> int:
        return -(-rows // self.tile) * self.tile

    def forward(self, feeds: Sequence[Placed], *, taps: Sequence[int] = (), num_layers: int | None = None) -> Forward:
        """Logits of the last `logit_rows` tokens of each feed, later."""
        self.forwards.append(list(feeds))
        self.clock.advance(self.seconds(sum(len(feed.tokens) for feed in feeds), sum(feed.start for feed in feeds)))
        rows = (feed.tokens[len(feed.tokens) - feed.logit_rows :] for feed in feeds)
        none = torch.empty(0, self.vocab_size)
        return Forward(
            [torch.stack([self.script([token]) for token in tokens]) if tokens else none for tokens in rows], []
        )


@dataclass
class TimedProposer(ScriptedProposer):
    """A scripted proposer whose drafts take time.

    Args:
        seconds: of one more candidate on the longest path.
        lag_seconds: of each token that it has not read yet.
    """

    clock: SimulatedClock = field(default_factory=SimulatedClock)
    seconds: float = 0.0
    lag_seconds: float = 0.0
    read: dict[str, int] = field(default_factory=dict)

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        drafts = super().propose(rows)
        lag = sum(len(row.tokens) - self.read.get(row.request_id, 0) for row in rows)
        self.read |= {row.request_id: len(row.tokens) for row in rows}
        self.clock.advance(self.seconds * max(draft.depth for draft in drafts) + self.lag_seconds * lag)
        return drafts
