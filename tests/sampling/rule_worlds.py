"""Exact laws of rules: run a rule once for every sequence of chances it can meet, with its probability."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from gamaneh.core import Draft, Rule, Use, Verdict

Law = Callable[[tuple[int, ...]], Tensor]
"""Tokens so far -> float64 probabilities `[vocab]` of the next one."""


@dataclass
class Tape:
    """The choices of one world. Replays `taken`, then takes the first possible option."""

    taken: list[int] = field(default_factory=list)
    offered: list[list[float]] = field(default_factory=list)

    def choose(self, weights: Sequence[float]) -> int:
        chances = [float(weight) / float(sum(weights)) for weight in weights]
        step = len(self.offered)
        self.offered.append(chances)
        if step == len(self.taken):
            self.taken.append(_next_possible(chances, 0))
        return self.taken[step]

    @property
    def chance(self) -> float:
        chance = 1.0
        for chances, option in zip(self.offered, self.taken, strict=True):
            chance *= chances[option]
        return chance

    def next(self) -> Tape | None:
        for step in reversed(range(len(self.taken))):
            option = _next_possible(self.offered[step], self.taken[step] + 1)
            if option < len(self.offered[step]):
                return Tape([*self.taken[:step], option])
        return None


def _next_possible(chances: Sequence[float], start: int) -> int:
    return next((option for option in range(start, len(chances)) if chances[option] > 0.0), len(chances))


class Coin:
    """A uniform number that is not drawn until it is compared, once, with a threshold."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape

    def __le__(self, threshold: float) -> bool:
        threshold = min(1.0, threshold)
        return self._tape.choose((threshold, 1.0 - threshold)) == 0

    def __gt__(self, threshold: float) -> bool:
        return not self <= threshold


@dataclass
class WorldRows:
    """Target rows whose draws branch the world."""

    tape: Tape
    draft: Draft
    law: Law

    def probs(self, node: int) -> Tensor:
        return self.law(self.draft.path_tokens(node))

    def scores(self, node: int) -> Tensor:
        return self.probs(node).log()

    def pick(self, node: int, use: Use = Use.TARGET) -> int:
        return self.tape.choose(self.probs(node).tolist())

    def pick_from(self, probs: Tensor, node: int, use: Use) -> int:
        return self.tape.choose(probs.tolist())

    def uniform(self, node: int, use: Use) -> float:
        return Coin(self.tape)  # type: ignore[return-value]


Drafter = Callable[[Tape], Draft]


def sampled(law: Law, length: int) -> Drafter:
    """A drafter that samples a chain from `law` and says so."""

    def draft(tape: Tape) -> Draft:
        tokens: tuple[int, ...] = ()
        rows = []
        for _ in range(length):
            rows.append(law(tokens))
            tokens += (tape.choose(rows[-1].tolist()),)
        return Draft.chain(tokens, torch.stack(rows))

    return draft


def greedy(law: Law, length: int) -> Drafter:
    """A drafter that takes the most likely tokens of `law`: a point mass."""
    tokens: tuple[int, ...] = ()
    for _ in range(length):
        tokens += (int(law(tokens).argmax()),)
    return lambda tape: Draft.chain(tokens)


def verdicts(rule: Rule, target: Law, drafter: Drafter) -> Iterator[tuple[float, Verdict]]:
    """Every verdict that the rule can reach, with its probability."""
    tape: Tape | None = Tape()
    while tape is not None:
        draft = drafter(tape)
        verdict = rule.judge(draft, WorldRows(tape, draft, target))
        yield tape.chance, verdict
        tape = tape.next()


def output_law(rule: Rule, target: Law, drafter: Drafter, length: int) -> dict[tuple[int, ...], float]:
    """Law of the first `length` tokens: what the rule emits, continued by plain decoding."""
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for chance, verdict in verdicts(rule, target, drafter):
        emitted = verdict.tokens[:length]
        for end, end_chance in _continuations(target, emitted, length):
            law[end] += chance * end_chance
    return dict(law)


def plain_law(target: Law, length: int) -> dict[tuple[int, ...], float]:
    return dict(_continuations(target, (), length))


def accepted(rule: Rule, target: Law, drafter: Drafter) -> float:
    """Expected number of accepted candidates."""
    return sum(chance * verdict.accepted for chance, verdict in verdicts(rule, target, drafter))


def distance(law: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> float:
    """Total variation distance."""
    return sum(abs(law.get(key, 0.0) - other.get(key, 0.0)) for key in law.keys() | other.keys()) / 2


def _continuations(target: Law, start: tuple[int, ...], length: int) -> Iterator[tuple[tuple[int, ...], float]]:
    vocab = target(()).shape[0]
    for end in product(range(vocab), repeat=length - len(start)):
        chance, tokens = 1.0, start
        for token in end:
            chance *= float(target(tokens)[token])
            tokens += (token,)
        if chance > 0.0:
            yield tokens, chance
