"""What is audited: a target twice, plain and speculating, and the prompts that it is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from gamaneh.bench.audit.answers import Question
from gamaneh.bench.audit.judges import Careless
from gamaneh.core import Rule
from gamaneh.engine.engine import Engine
from gamaneh.options import SamplingParams
from gamaneh.sampling.rules import choose_rule

SEEDS = 1 << 63
"""Seeds are counted up from that of the audit, and begin again here."""


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt as token ids."""

    id: str
    prompt: Sequence[int]
    reference: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Subject:
    """Two engines over the same weights, and what to ask them.

    Args:
        plain: does not speculate.
        speculative: does, by its own `speculation`.
        seed: first of the seeds that are counted up.
        tick: called after each answer.
    """

    plain: Engine
    speculative: Engine
    cases: Sequence[Case]
    seed: int = 0
    tick: Callable[[], None] = lambda: None

    def rule(self, params: SamplingParams) -> Rule:
        """The rule that judges requests with these parameters."""
        speculation = self.speculative.speculation
        return choose_rule(speculation.rule, params, self.speculative.gives_probs(speculation), speculation)

    def questions(self, params: SamplingParams, *, draws: int = 1, first_seed: int | None = None) -> list[Question]:
        """Each prompt `draws` times in a row, all with different seeds from `first_seed` on; None for no seed."""
        seeds = self._seeds(first_seed)
        return [
            Question(case.id, case.prompt, replace(params, seed=next(seeds)), case.reference)
            for case in self.cases
            for _ in range(draws)
        ]

    def _seeds(self, first: int | None) -> Iterator[int | None]:
        number = 0
        while True:
            yield None if first is None else (self.seed + first + number) % SEEDS
            number += 1


class Fault:
    """One careless rule per request, counted together."""

    def __init__(self) -> None:
        self._planted: list[Careless] = []

    @property
    def kept(self) -> int:
        """Candidates that were kept wrongly."""
        return sum(careless.kept for careless in self._planted)

    def plant(self, rule: Rule) -> Careless:
        """The same rule with the fault."""
        self._planted.append(Careless(rule))
        return self._planted[-1]
