"""The rules: which candidates of a draft are kept, and which token follows them.

    rule       emits                                                    exact  draft
    match      the target's own draws                                   yes    any tree
    rejection  Leviathan et al. 2211.17192, Chen et al. 2302.01318      yes    chain
    block      Sun et al. 2403.10444                                    yes    chain
    typical    Cai et al. 2401.10774 (Medusa)                           no     any tree

`exact` means that the output follows the target's distribution. A bad draft (NaN in its
probabilities, a token that does not exist) is refused, whatever the rule, and costs only time. Rules
for chains read the first path of a tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from gamaneh.core import ROOT, Draft, Rule, TargetRows, Use, Verdict
from gamaneh.options import Drafting, RuleName, SamplingParams


class Match:
    """Draw the target's token at each node and follow the child that equals it.

    The emitted tokens are the target's own draws, tied to their positions: the same whatever was
    drafted. `bonus` is also set for an empty draft, whose root has no child to refuse.
    """

    name = "match"
    exact = True
    wants_probs = False
    reads_probs = False
    trees = True

    def judge(self, draft: Draft, target: TargetRows) -> Verdict:
        path: list[int] = []
        tokens = [target.pick(ROOT)]
        while (child := _child(draft, _last(path), tokens[-1])) is not None:
            path.append(child)
            tokens.append(target.pick(child))
        return Verdict(tuple(path), tuple(tokens), bonus=not draft.children(_last(path)))


class Rejection:
    """Accept each candidate with probability min(1, target / draft), stop at the first refusal.

    The correction is drawn from the positive part of target - draft (Leviathan et al., algorithm 1).
    """

    name = "rejection"
    exact = True
    wants_probs = True
    reads_probs = True
    trees = False

    def judge(self, draft: Draft, target: TargetRows) -> Verdict:
        nodes = _first_path(draft)
        before = ROOT
        for count, node in enumerate(nodes):
            target_probs = target.probs(before)
            draft_probs = _draft_probs(draft, node, target_probs)
            if target.uniform(before, Use.ACCEPT) > _ratio(draft.tokens[node], target_probs, draft_probs):
                return _corrected(target, draft, nodes[:count], _residual(target_probs, draft_probs))
            before = node
        return _with_bonus(target, draft, nodes)


class Block:
    """Judge all candidates together and keep the longest prefix that passes.

    Sun et al., algorithm 2. With `reach` the running min(1, reach * target / draft) and `residual` the
    sum of the positive part of reach * target - draft at the next position, the prefix of i
    candidates passes with probability residual / (residual + 1 - reach), the whole with `reach`.
    """

    name = "block"
    exact = True
    wants_probs = True
    reads_probs = True
    trees = False

    def judge(self, draft: Draft, target: TargetRows) -> Verdict:
        nodes = _first_path(draft)
        chances, residuals = _prefixes(draft, target, nodes)
        befores = (ROOT, *nodes)
        passed = (
            count
            for count in range(len(chances) - 1, 0, -1)
            if target.uniform(befores[count - 1], Use.ACCEPT) <= chances[count]
        )
        kept = next(passed, 0)
        if kept == len(nodes):
            return _with_bonus(target, draft, nodes)
        return _corrected(target, draft, nodes[:kept], residuals[kept])


def _prefixes(draft: Draft, target: TargetRows, nodes: tuple[int, ...]) -> tuple[list[float], list[Tensor]]:
    """Chance to pass of each prefix (0 candidates first), and the weights of the correction after it."""
    chances: list[float] = []
    residuals: list[Tensor] = []
    reach, before = 1.0, ROOT
    for node in nodes:
        target_probs = target.probs(before)
        draft_probs = _draft_probs(draft, node, target_probs)
        residuals.append(_residual(reach * target_probs, draft_probs))
        chances.append(_pass_chance(reach, residuals[-1]))
        reach = min(1.0, reach * _ratio(draft.tokens[node], target_probs, draft_probs))
        if reach == 0.0:  # no longer prefix can pass, and its target rows may mean nothing
            return chances, residuals
        before = node
    return [*chances, reach], residuals


class Typical:
    """Accept what the target finds likely enough for its uncertainty: approximate.

    A candidate passes if its target probability is at least min(epsilon, delta * exp(-entropy)) (Cai
    et al., section 3.3.1). The longest passing path is kept, the likelier one of equally long ones,
    and one token of the target follows. Greedy probabilities make it equal to `match`.
    """

    name = "typical"
    exact = False
    wants_probs = False
    reads_probs = True
    trees = True

    def __init__(self, epsilon: float, delta: float) -> None:
        self._epsilon = epsilon
        self._delta = delta

    def judge(self, draft: Draft, target: TargetRows) -> Verdict:
        likelihoods = self._passing(draft, target)
        depths = [*draft.depths, 0]  # index -1 is ROOT
        best = max(likelihoods, key=lambda node: (depths[node], likelihoods[node]))
        tokens = (*draft.path_tokens(best), target.pick(best))
        return Verdict(draft.path(best), tokens, bonus=not draft.children(best))

    def _passing(self, draft: Draft, target: TargetRows) -> dict[int, float]:
        """Nodes whose whole path passes, with the target's probability of that path."""
        likelihoods = {ROOT: 1.0}
        thresholds: dict[int, float] = {}
        for node, (token, parent) in enumerate(zip(draft.tokens, draft.parents, strict=True)):
            if parent not in likelihoods:
                continue
            target_probs = target.probs(parent)
            if parent not in thresholds:
                thresholds[parent] = self._threshold(target_probs)
            chance = float(target_probs[token]) if _exists(token, target_probs) else 0.0
            if chance >= thresholds[parent]:
                likelihoods[node] = likelihoods[parent] * chance
        return likelihoods

    def _threshold(self, target_probs: Tensor) -> float:
        entropy = float(torch.special.entr(target_probs).sum())
        return min(self._epsilon, self._delta * math.exp(-entropy))


RULES: Mapping[str, Callable[[Drafting], Rule]] = {
    "match": lambda options: Match(),
    "rejection": lambda options: Rejection(),
    "block": lambda options: Block(),
    "typical": lambda options: Typical(options.epsilon, options.delta),
}
"""Name -> factory. `auto` is no rule of its own: see `choose_rule`."""


def is_exact(rule: str) -> bool:
    """Whether outputs that this rule judges follow the target's distribution."""
    return RULES[rule](Drafting()).exact


def choose_rule(name: RuleName, params: SamplingParams, draft_has_probs: bool, options: Drafting | None = None) -> Rule:
    """The rule called `name`; `auto` takes the exact one that suits the request and its drafts.

    That is `block` for a request that samples without a seed from drafts with probabilities, which
    it accepts most of. Else it is `match`: no rule accepts more of a greedy request or of
    a draft without probabilities, and a seed asks for the tokens of plain decoding.
    """
    if name == "auto":
        free = draft_has_probs and not params.greedy and params.seed is None
        name = "block" if free else "match"
    return RULES[name](options or Drafting())


def _child(draft: Draft, node: int, token: int) -> int | None:
    return next((child for child in draft.children(node) if draft.tokens[child] == token), None)


def _last(path: Sequence[int]) -> int:
    return path[-1] if path else ROOT


def _first_path(draft: Draft) -> tuple[int, ...]:
    nodes: list[int] = []
    node = ROOT
    while children := draft.children(node):
        node = children[0]
        nodes.append(node)
    return tuple(nodes)


def _exists(token: int, probs: Tensor) -> bool:
    return 0 <= token < probs.shape[0]


def _draft_probs(draft: Draft, node: int, like: Tensor) -> Tensor:
    """The distribution that `node` was drawn from, on the target's vocabulary `[vocab]`.

    All zero if it cannot have been drawn so; that is a candidate which is always refused, and whose
    correction is a draw from the target itself, so the output stays exact.
    """
    token = draft.tokens[node]
    on_target = torch.zeros_like(like)
    if draft.probs is None:
        if _exists(token, like):
            on_target[token] = 1.0
        return on_target
    row = draft.probs[node].to(like)
    if _may_have_drawn(row, token):
        width = min(row.shape[0], like.shape[0])
        on_target[:width] = row[:width] / row.sum()
    return on_target


def _may_have_drawn(row: Tensor, token: int) -> bool:
    if row.ndim != 1 or not _exists(token, row):
        return False
    return float(row.min()) >= 0.0 and math.isfinite(float(row.sum())) and float(row[token]) > 0.0


def _ratio(token: int, target_probs: Tensor, draft_probs: Tensor) -> float:
    """Target / draft probability of a candidate; 0 if either is 0."""
    if not _exists(token, target_probs):
        return 0.0
    draft_prob = float(draft_probs[token])
    return float(target_probs[token]) / draft_prob if draft_prob > 0.0 else 0.0


def _residual(target_probs: Tensor, draft_probs: Tensor) -> Tensor:
    return (target_probs - draft_probs).clamp_(min=0.0)


def _pass_chance(reach: float, residual: Tensor) -> float:
    left = float(residual.sum())
    # Nothing left and reach 1: draft and target are equal here, and either choice is exact.
    return left / (left + 1.0 - reach) if left + 1.0 - reach > 0.0 else 1.0


def _corrected(target: TargetRows, draft: Draft, path: tuple[int, ...], weights: Tensor) -> Verdict:
    """Stop after `path`, with a token drawn from `weights` (from the target where they vanish)."""
    weights = weights if float(weights.sum()) > 0.0 else target.probs(_last(path))
    token = target.pick_from(weights, _last(path), Use.RESIDUAL)
    return Verdict(path, (*_tokens(draft, path), token), bonus=False)


def _with_bonus(target: TargetRows, draft: Draft, path: tuple[int, ...]) -> Verdict:
    token = target.pick(_last(path))
    return Verdict(path, (*_tokens(draft, path), token), bonus=True)


def _tokens(draft: Draft, path: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(draft.tokens[node] for node in path)
