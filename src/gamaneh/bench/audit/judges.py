"""Rules that no request can ask for: one that is wrong on purpose, and one that takes dictation."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gamaneh.core import ROOT, Draft, Rule, TargetRows, Verdict

Look = Callable[[TargetRows, int, int], float]
"""The target's rows, position in the output, dictated token -> what is to be remembered."""


class Careless:
    """The planted fault: as `rule`, but the candidate that is to be refused is kept, and one token follows it."""

    def __init__(self, rule: Rule) -> None:
        self.name, self.exact, self.trees = rule.name, False, rule.trees
        self.wants_probs, self.reads_probs = rule.wants_probs, rule.reads_probs
        self.kept = 0
        self._rule = rule

    def judge(self, draft: Draft, target: TargetRows) -> Verdict:
        verdict = self._rule.judge(draft, target)
        refused = draft.children(verdict.path[-1] if verdict.path else ROOT)
        if verdict.bonus or not refused:
            return verdict
        self.kept += 1
        node = refused[0]
        tokens = (*draft.path_tokens(node), target.pick(node))
        return Verdict(draft.path(node), tokens, bonus=not draft.children(node))


class Dictated:
    """Emits the tokens that it is told, whatever the target wants, and looks at the target's rows before each.

    Args:
        tokens: at least as many as the request may emit.
    """

    name = "dictated"
    exact = False
    wants_probs = False
    reads_probs = True
    trees = False

    def __init__(self, tokens: Sequence[int], look: Look) -> None:
        self.seen: list[float] = []
        self._tokens, self._look = tokens, look

    def judge(self, draft: Draft, target: TargetRows) -> Verdict:
        position = len(self.seen)
        token = self._tokens[position]
        self.seen.append(self._look(target, position, token))
        return Verdict((), (token,), bonus=True)
