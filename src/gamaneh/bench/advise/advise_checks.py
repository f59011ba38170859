"""Two short checks: what a failing proposer does to an answer, and what is left in the cache after all answers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from gamaneh.bench.advise.recording import Answered, limited
from gamaneh.bench.advise.timing import fixed
from gamaneh.core import Draft, Needs, ProposalRow, Proposer
from gamaneh.engine.llm import LLM
from gamaneh.options import SamplingParams


class Failing(Proposer):
    """Raises whenever it is asked."""

    name = "failing"
    needs = Needs()

    def propose(self, rows: Sequence[ProposalRow]) -> list[Draft]:
        raise RuntimeError("this proposer always fails")

    def memory_bytes(self) -> int:
        return 0


@dataclass(frozen=True, slots=True)
class Fallback:
    """An answer with a proposer that always fails.

    Args:
        failures: how often it was asked and failed.
        same: the answer is the plain one; None where sampling without a seed makes every answer another.
    """

    failures: int
    same: bool | None

    @property
    def works(self) -> bool:
        """Failures were met, and the answer came all the same."""
        return self.failures > 0 and self.same is not False


@dataclass(frozen=True, slots=True)
class CacheState:
    """The books of some KV caches after their requests ended.

    Args:
        blocks: of all caches.
        leaked: blocks that are still held, or -1 where the books contradict each other.
    """

    blocks: int
    leaked: int

    @property
    def clean(self) -> bool:
        return self.leaked == 0


def check_fallback(llm: LLM, plain: Answered, params: SamplingParams) -> Fallback:
    """Answer one request with a proposer that always fails; it joins the engine's proposers."""
    llm.engine.register(Failing())
    request = plain.request
    answer = llm.generate([request.prompt], limited(params, request), speculation=fixed(Failing.name, 2))[0]
    repeatable = params.greedy or params.seed is not None
    return Fallback(
        failures=sum(count for (name, _), count in llm.engine.quarantine.counts.items() if name == Failing.name),
        same=answer.tokens == plain.answer.tokens if repeatable else None,
    )


def check_caches(llms: Iterable[LLM]) -> CacheState:
    """Look at the target's caches of engines without requests."""
    backends = [llm.engine.backend for llm in llms]
    rooms = [backend.room() for backend in backends]
    blocks = sum(room.total // room.unit for room in rooms)
    try:
        for backend in backends:
            backend.check_integrity()
    except AssertionError:
        return CacheState(blocks, -1)
    return CacheState(blocks, blocks - sum(room.free // room.unit for room in rooms))
