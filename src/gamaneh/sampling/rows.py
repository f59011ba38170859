"""The target's rows of a step, and the verdicts over the drafts that they verify."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from gamaneh.core import ROOT, Draft, Rule, Use, Verdict
from gamaneh.sampling.pipeline import RequestSampler
from gamaneh.sampling.stacked import LogitRow, picks, probabilities, stacked


class DraftRows:
    """Scores, probabilities and draws of the target at each node of one draft.

    They are computed when asked for, row by row, unless `judge` has done so for all drafts of a step at once.

    Args:
        logits: `[1 + num_nodes, vocab]`, the root's row, then one row per node.
        draft: the draft that was verified.
        sampler: the request's sampling.
        position: absolute index of the token that follows the root.
        vocab_size: tokens of the target; what the rows hold beyond is padding.
    """

    def __init__(self, logits: Tensor, draft: Draft, sampler: RequestSampler, position: int, vocab_size: int) -> None:
        self.logits = logits[:, :vocab_size]
        self.draft = draft
        self._sampler = sampler
        self._positions = [position, *(position + depth for depth in draft.depths)]
        self._scores: dict[int, Tensor] = {}
        self.known_probs: dict[int, Tensor] = {}
        self.known_picks: dict[int, int] = {}

    def cut(self, max_depth: int) -> tuple[list[int], DraftRows]:
        """The nodes that are no deeper than `max_depth`, and their rows."""
        kept = [node for node, depth in enumerate(self.draft.depths) if depth <= max_depth]
        logits = self.logits[[0, *(1 + node for node in kept)]]
        position = self._positions[0]
        return kept, DraftRows(logits, self.draft.cut(max_depth), self._sampler, position, logits.shape[1])

    def row(self, node: int, first: int) -> LogitRow:
        """The row of the token that follows `node`, where the root's is the row `first`."""
        return LogitRow(first + 1 + node, self._sampler, self.draft.path_tokens(node), self._positions[1 + node])

    def scores(self, node: int) -> Tensor:
        """`[vocab]` scores for the token that follows `node` (`ROOT` for the first)."""
        if node not in self._scores:
            self._scores[node] = self._sampler.scores(self.logits[1 + node], self.draft.path_tokens(node))
        return self._scores[node]

    def probs(self, node: int) -> Tensor:
        """`[vocab]` probabilities for the token that follows `node`."""
        if node not in self.known_probs:
            self.known_probs[node] = self._sampler.probs(self.scores(node))
        return self.known_probs[node]

    def pick(self, node: int) -> int:
        """Draw the token that follows `node` with the request's noise."""
        if node not in self.known_picks:
            self.known_picks[node] = self._sampler.pick(self.scores(node), self._positions[1 + node], Use.TARGET)
        return self.known_picks[node]

    def uniform(self, node: int, use: Use) -> float:
        """A uniform draw in (0, 1) tied to the position after `node`."""
        return self._sampler.uniform(self._positions[1 + node], use)

    def pick_from(self, probs: Tensor, node: int, use: Use) -> int:
        """Draw the token that follows `node` from other (unnormalised) `[vocab]` probabilities."""
        return self._sampler.pick_from(probs, self._positions[1 + node], use)


@dataclass(frozen=True, slots=True)
class Trial:
    """A draft and what decides about it.

    Args:
        rule: of the request.
        draft: that was verified; it may be empty.
        logits: `[1 + num_nodes, vocab]` of the target.
        sampler: the sampling of the request.
        position: absolute index of the first token that may be emitted.
    """

    rule: Rule
    draft: Draft
    logits: Tensor
    sampler: RequestSampler
    position: int


def judge(trials: Sequence[Trial], vocab_size: int, *, by_level: bool | None = None) -> list[Verdict | Exception]:
    """The verdict over each draft of a step, or what its request raised; one does not disturb the others.

    Where a row behind a candidate is bad, the verdict is over the draft before it: its tokens are those of plain
    decoding, which would meet the bad row only after them.

    Args:
        vocab_size: tokens of the target; what logits hold beyond is padding.
        by_level: draw only the rows that drafts lead to, one level after the other; None does so on a CPU, where a
            call costs less than a row. Else all rows are computed in one go, since each level waits for the device.
    """
    rows = [DraftRows(trial.logits, trial.draft, trial.sampler, trial.position, vocab_size) for trial in trials]
    if rows:
        on_cpu = trials[0].logits.device.type == "cpu"
        _look_ahead([trial.rule for trial in trials], rows, on_cpu if by_level is None else by_level)
    return [_verdict(trial.rule, own) for trial, own in zip(trials, rows, strict=True)]


def _verdict(rule: Rule, rows: DraftRows) -> Verdict | Exception:
    try:
        return rule.judge(rows.draft, rows)
    except Exception as error:  # whatever one request raises ends that request alone
        if len(rows.draft) == 0:
            return error
        kept, shorter = rows.cut(rows.draft.depth - 1)
        found = _verdict(rule, shorter)
        return replace(found, path=tuple(kept[node] for node in found.path)) if isinstance(found, Verdict) else found


def _look_ahead(rules: Sequence[Rule], trials: Sequence[DraftRows], by_level: bool) -> None:
    """Compute for all drafts at once what their rules will ask for; by level only draws."""
    logits = stacked([rows.logits for rows in trials])
    firsts = _first_rows(trials)
    followed = [rows for rule, rows in zip(rules, trials, strict=True) if not rule.reads_probs]
    if not by_level:
        read = [rows for rule, rows in zip(rules, trials, strict=True) if rule.reads_probs]
        nodes = [(rows, node) for rows in read for node in _nodes(rows)]
        known = probabilities(logits, [rows.row(node, firsts[rows]) for rows, node in nodes])
        for (rows, node), probs in zip(nodes, known, strict=True):
            if probs is not None:
                rows.known_probs[node] = probs
    level = [(rows, node) for rows in followed for node in ((ROOT,) if by_level else _nodes(rows))]
    while level:
        tokens = picks(logits, [rows.row(node, firsts[rows]) for rows, node in level])
        for (rows, node), token in zip(level, tokens, strict=True):
            if token is not None:
                rows.known_picks[node] = token
        level = [found for rows, node in level if by_level and (found := _next(rows, node)) is not None]


def _first_rows(trials: Sequence[DraftRows]) -> dict[DraftRows, int]:
    firsts, count = {}, 0
    for rows in trials:
        firsts[rows] = count
        count += len(rows.draft) + 1
    return firsts


def _nodes(rows: DraftRows) -> range:
    return range(ROOT, len(rows.draft))


def _next(rows: DraftRows, node: int) -> tuple[DraftRows, int] | None:
    """The candidate that the draw after `node` equals."""
    token = rows.known_picks.get(node)
    found = (child for child in rows.draft.children(node) if rows.draft.tokens[child] == token)
    return next(((rows, child) for child in found), None)
