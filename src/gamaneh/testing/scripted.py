"""A target whose next token is a table, and proposers that are right as often as they are told.

The scripted target keeps each token it is fed in a real KV cache and reads a row's history back
from there, so that every fault in slots, rollback or tree compaction shows as a wrong token.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from gamaneh.backends.paged import PagedBackend
from gamaneh.core import Caps, Clock, Draft, Needs, ProposalRow
from gamaneh.engine.assembly import assemble
from gamaneh.engine.engine import Engine
from gamaneh.kv import BlockPool, KVCache, KVManager
from gamaneh.kv.placing import Placed
from gamaneh.models.runner import Forward
from gamaneh.options import EngineOptions, SpeculationOptions

Script = Callable[[Sequence[int]], Tensor]
"""History of token ids -> logits `[vocab]` of the next token."""


def fixed_output(output: Sequence[int], vocab_size: int, prompt_len: int) -> Script:
    """Emits `output` after a prompt of `prompt_len` tokens whatever was emitted, then repeats its last token."""

    def script(history: Sequence[int]) -> Tensor:
        at = min(len(history) - prompt_len, len(output) - 1)
        return _one_hot(output[at], vocab_size)

    return script


def next_token_table(table: Mapping[int, int], vocab_size: int) -> Script:
    """The next token depends on the last one only; tokens not in the table are followed by 0."""
    return lambda history: _one_hot(table.get(history[-1], 0), vocab_size)


def hashed(vocab_size: int, sharpness: float = 4.0) -> Script:
    """Pseudo-random logits that depend on the last three tokens and on the length of the history."""

    def script(history: Sequence[int]) -> Tensor:
        seed = hash((len(history), *history[-3:])) & 0x7FFFFFFF
        return torch.randn(vocab_size, generator=torch.Generator().manual_seed(seed)) * sharpness

    return script


def constant(probs: Sequence[float]) -> Script:
    """The same distribution at every position."""
    logits = torch.tensor(probs, dtype=torch.float64).log().float()
    return lambda history: logits


def _one_hot(token: int, vocab_size: int) -> Tensor:
    return torch.full((vocab_size,), -20.0).index_fill_(0, torch.tensor(token), 20.0)


class ScriptedRunner:
    """Runs a script over a cache of token ids; implements `PagedModel`.

    Args:
        script: logits of the next token.
        num_blocks, block_size: size of the cache.
        max_context: context length of the model.
    """

    lanes_differ = True

    def __init__(
        self, script: Script, vocab_size: int, *, num_blocks: int = 64, block_size: int = 4, max_context: int = 256
    ) -> None:
        self.script, self.vocab_size = script, vocab_size
        self.caps = Caps(vocab_size, max_context, invariant=True)
        self.cache = KVCache(1, num_blocks, block_size, 1, 1, torch.float32)
        self.forwards: list[list[Placed]] = []

    def computed_rows(self, rows: int) -> int:
        return rows

    def forward(self, feeds: Sequence[Placed], *, taps: Sequence[int] = (), num_layers: int | None = None) -> Forward:
        """Write the tokens, then read each row's history back. A tap shows the token itself; it has one layer."""
        self.forwards.append(list(feeds))
        memory = self.cache.layer(0)[0].view(-1)
        for feed in feeds:
            memory[torch.tensor(feed.slots[feed.start :])] = torch.tensor(feed.tokens, dtype=torch.float32)
        logits = [self._logits(feed, memory) for feed in feeds]
        shape = (-1, 1, 1)
        hidden = (
            [torch.tensor(feed.tokens, dtype=torch.float32).view(shape).expand(-1, len(taps), 1) for feed in feeds]
            if taps
            else []
        )
        return Forward(logits, hidden)

    def _logits(self, feed: Placed, memory: Tensor) -> Tensor:
        rows = range(len(feed.tokens) - feed.logit_rows, len(feed.tokens))
        histories = ([int(memory[slot]) for slot in _visible_slots(feed, row)] for row in rows)
        return torch.stack([self.script(history) for history in histories]) if rows else torch.empty(0, self.vocab_size)


def _visible_slots(feed: Placed, row: int) -> list[int]:
    base = feed.start + feed.num_pending
    if row < feed.num_pending:
        return list(feed.slots[: feed.start + row + 1])
    node, path = row - feed.num_pending, []
    while node >= 0:
        path.append(feed.slots[base + node])
        node = feed.parents[node]
    return [*feed.slots[:base], *reversed(path)]


@dataclass
class ScriptedProposer:
    """Proposes the script's most likely tokens, each right with probability `accuracy`.

    Args:
        accuracy: 1 is always right, 0 always wrong.
        branches: wrong siblings beside each candidate; 0 makes chains.
        fault: called at the start of `propose` and `observe`, to raise what a test wants raised.
    """

    script: Script
    vocab_size: int
    accuracy: float = 1.0
    branches: int = 0
    name: str = "scripted"
    needs: Needs = field(default_factory=Needs)
    fault: Callable[[], None] | None = None
    asked: list[list[ProposalRow]] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.branches:
            self.needs = replace(self.needs, branching=1 + self.branches)

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        if self.fault:
            self.fault()
        self.asked.append(list(rows))
        return [self._draft(row) for row in rows]

    def end(self, request_id: str) -> None:
        self.dropped.append(request_id)

    def forget(self, request_id: str) -> None:
        self.dropped.append(request_id)

    def memory_bytes(self) -> int:
        return 0

    def _draft(self, row: ProposalRow) -> Draft:
        history, parent = list(row.tokens), -1
        tokens: list[int] = []
        parents: list[int] = []
        while len(tokens) + 1 + self.branches <= row.max_nodes and row.max_depth > len(history) - len(row.tokens):
            right = int(self.script(history).argmax())
            lucky = random.Random(hash(tuple(history))).random() < self.accuracy
            token = right if lucky else (right + 1) % self.vocab_size
            siblings = [(right + 2 + at) % self.vocab_size for at in range(self.branches)]
            parents += [parent] * (1 + self.branches)
            tokens += [*siblings, token]
            parent = len(tokens) - 1
            history.append(token)
        return Draft(tuple(tokens), tuple(parents))


def scripted_engine(
    runner: ScriptedRunner,
    tokenizer: object,
    *,
    proposer: ScriptedProposer | None = None,
    speculation: SpeculationOptions | None = None,
    options: EngineOptions | None = None,
    clock: Clock = time.perf_counter,
) -> Engine:
    """An engine over a scripted target, which speculates with `proposer` if there is one."""
    pool = BlockPool(runner.cache.num_blocks, runner.cache.block_size, prefix_cache=True)
    speculation = speculation or SpeculationOptions(proposer=proposer.name if proposer else "none")
    proposers = {proposer.name: proposer} if proposer else {}
    return assemble(
        PagedBackend(runner, KVManager(pool, runner.cache)),
        tokenizer,  # type: ignore[arg-type]
        proposers=proposers,
        speculation=speculation,
        options=options or EngineOptions(max_batch=8, step_tokens=64),
        clock=clock,
    )
