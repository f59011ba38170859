"""EAGLE: one decoder layer continues the target's hidden states (Li et al. 2025, EAGLE-3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from gamaneh.core import EMPTY_DRAFT, ROOT, Draft, Needs, ProposalRow, Proposer
from gamaneh.heads.eagle_head import load_eagle
from gamaneh.heads.eagle_runner import EagleRunner
from gamaneh.heads.level import Level, Strand, build_level
from gamaneh.proposers.recipe import Ingredients
from gamaneh.proposers.tree import CHAINS, Style, TreeBuilder
from gamaneh.proposers.vocabulary import DraftVocabulary

CHUNK = 256
"""Rows that one request reads at once while it catches up."""

WINDOW = 512
"""Tokens of a prompt whose hidden states are kept until the first draft. What lies before them, the head never sees."""


@dataclass(slots=True)
class _EagleSequence:
    """What the cache holds of one request: the tokens from `first` on, `length` of them, in a row of their own.

    The row of token t was computed from the target's hidden states of token t. Rows of a draft stand behind them
    and are written over in the next round.
    """

    row: int
    first: int
    length: int

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.first + self.length


@dataclass(slots=True, eq=False)
class _Branch:
    """One request's part of a round.

    Args:
        places: of each node that was fed, its place in the cache.
    """

    growth: TreeBuilder
    cached: _EagleSequence
    places: dict[int, int]

    @property
    def row(self) -> ProposalRow:
        return self.growth.row

    @property
    def num_unread(self) -> int:
        """Tokens whose hidden states are known and that the head has not read; the last token is pending."""
        return len(self.row.tokens) - 1 - self.cached.end

    def unread(self, count: int) -> Tensor:
        """`[count, num_layers, hidden]` of the next tokens to read."""
        assert self.row.hidden is not None, f"{self.row.request_id} has no hidden states"
        first = len(self.row.hidden) - self.num_unread
        return self.row.hidden[first : first + count]


class EagleProposer(Proposer):
    """Drafts a chain or a tree per request, one call per level for all requests of a round.

    A request's cache grows with the tokens whose hidden states it was shown. Where some were missing, after a
    preemption or a long time without drafts, the cache starts anew with those that are known.

    Args:
        runner: the head.
        vocab_size: size of the target's vocabulary, padding included.
        style: the form of its drafts.
        expected: survival of its drafts as measured, for the controller; empty for unknown.
    """

    name = "eagle"

    def __init__(
        self,
        runner: EagleRunner,
        *,
        vocab_size: int,
        style: Style = CHAINS,
        expected: tuple[float, ...] = (),
    ) -> None:
        self.runner, self.style = runner, style
        self.needs = Needs(
            hidden_layers=runner.hidden_layers,
            hidden_window=WINDOW,
            probs=True,
            branching=style.branching,
            expected_survival=expected,
        )
        self._vocabulary = DraftVocabulary(runner.draft_ids, vocab_size)
        self._cached: dict[str, _EagleSequence] = {}

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        """One draft per row; empty where no hidden state of the request is known."""
        branches = {row.request_id: self._begin(row) for row in rows if row.hidden is not None and len(row.hidden)}
        if branches:
            self._grow(list(branches.values()))
        return [branches[row.request_id].growth.draft() if row.request_id in branches else EMPTY_DRAFT for row in rows]

    def forget(self, request_id: str) -> None:
        """Free the rows of a request."""
        cached = self._cached.pop(request_id, None)
        if cached is not None:
            self.runner.cache.give_back(cached.row)

    def memory_bytes(self) -> int:
        """Weights and cache."""
        return self.runner.memory_bytes()

    def _begin(self, row: ProposalRow) -> _Branch:
        """Bring the request's cache into line with the hidden states that are known."""
        assert row.hidden is not None, f"{row.request_id} has no hidden states"
        if row.request_id not in self._cached:
            self._cached[row.request_id] = _EagleSequence(self.runner.cache.take(), 0, 0)
        cached, last = self._cached[row.request_id], len(row.tokens) - 1
        window = last - len(row.hidden)
        if cached.end < window:
            cached.first, cached.length = window, 0
        # At least one row is read, as its output is the first guess.
        cached.length = min(cached.end, last - 1) - cached.first
        growth = TreeBuilder(row, self.style)
        self.runner.cache.fit(last - cached.first + growth.width * row.max_depth)
        return _Branch(growth, cached, {})

    def _grow(self, branches: Sequence[_Branch]) -> None:
        """Level after level, until no draft goes on."""
        outputs = self._read(branches)
        fed = [(branch, ROOT) for branch in branches]
        while fed:
            features, logits = self.runner.guess(outputs)
            places = {key: at for at, key in enumerate(fed)}
            growing = dict.fromkeys(branch for branch, _ in fed)
            counts = [len(branch.growth.frontier) for branch in growing]
            wide = torch.split(self._vocabulary.widen(logits), counts)
            for branch, rows in zip(growing, wide, strict=True):
                branch.growth.grow(rows)
            fed = [(branch, node) for branch in growing if branch.growth.is_open for node in branch.growth.frontier]
            if fed:
                parents = [places[branch, branch.growth.parents[node]] for branch, node in fed]
                outputs = self.runner.layer(_taken(features, parents), self._level(fed))

    def _read(self, branches: Sequence[_Branch]) -> Tensor:
        """Read what is known of all requests; `[num_requests, hidden]` outputs at their last known tokens."""
        for branch in branches:
            while branch.num_unread > CHUNK:
                self._read_some([branch], [CHUNK])
        counts = [branch.num_unread for branch in branches]
        outputs = self._read_some(branches, counts)
        last = torch.tensor(counts, device=outputs.device).cumsum(0) - 1
        return outputs if len(outputs) == len(branches) else outputs[last]

    def _read_some(self, branches: Sequence[_Branch], counts: Sequence[int]) -> Tensor:
        """Read the next tokens of each request; `[num_rows, hidden]` outputs."""
        hidden = torch.cat([branch.unread(count) for branch, count in zip(branches, counts, strict=True)])
        strands = []
        for branch, count in zip(branches, counts, strict=True):
            cached, tokens = branch.cached, branch.row.tokens
            following = tokens[cached.end + 1 : cached.end + 1 + count]
            strands.append(Strand.chain(cached.row, cached.length, following, cached.end))
        outputs = self.runner.layer(self.runner.fused(hidden), self._lay_out(strands))
        for branch, count in zip(branches, counts, strict=True):
            branch.cached.length += count
        return outputs

    def _level(self, fed: Sequence[tuple[_Branch, int]]) -> Level:
        """The rows of these nodes."""
        nodes: dict[_Branch, list[int]] = {}
        for branch, node in fed:
            nodes.setdefault(branch, []).append(node)
        return self._lay_out([_strand(branch, own) for branch, own in nodes.items()])

    def _lay_out(self, strands: Sequence[Strand]) -> Level:
        return build_level(strands, self.runner.cache.capacity, self.runner.device)


def _strand(branch: _Branch, nodes: Sequence[int]) -> Strand:
    """Rows of nodes of one depth; the places behind the request's own are theirs."""
    growth, cached = branch.growth, branch.cached
    start = cached.length + len(branch.places)
    tokens = [growth.tokens[node] for node in nodes]
    position = cached.end + growth.depths[nodes[0]] - 1
    branch.places |= {node: start + at for at, node in enumerate(nodes)}
    if growth.width == 1:
        return Strand.chain(cached.row, start, tokens, position)
    return Strand(
        cached.row,
        start,
        tokens,
        [position] * len(nodes),
        [cached.length] * len(nodes),
        [[branch.places[above] for above in growth.line(node)] for node in nodes],
    )


def _taken(features: Tensor, rows: Sequence[int]) -> Tensor:
    """These rows of `[num_rows, hidden]`, and the tensor itself where they are all of them in order."""
    if len(rows) == len(features) and all(row == at for at, row in enumerate(rows)):
        return features
    return features[list(rows)]


def build(parts: Ingredients) -> Proposer:
    """Return the proposer that an EAGLE head makes."""
    loaded, artifact = parts.target.loaded, parts.heads_of("eagle")
    return EagleProposer(
        EagleRunner(load_eagle(artifact, loaded), loaded.decoder),
        vocab_size=parts.vocab_size,
        style=Style.asked(parts),
        expected=artifact.survival,
    )
