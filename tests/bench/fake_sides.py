"""Two sides whose answers and times are known, on a clock of their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gamaneh.bench.conduct import conduct, make_price
from gamaneh.bench.measure import BenchPlan
from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.record import (
    Ask,
    Counts,
    Delivery,
    Ending,
    Key,
    MeasuredLoad,
    Record,
    RequestFailed,
    Stretch,
    Way,
    Ways,
)
from gamaneh.bench.result import Load, ModelMark, Run, SideSetup, Slo
from gamaneh.options import SamplingParams

GREEDY = SamplingParams(max_tokens=8)

SETUP = SideSetup(
    target="tiny",
    target_sha256="ab",
    precision="bfloat16",
    hardware="a machine",
    sampling={},
    max_tokens=8,
    batch=1,
    requests=4,
    warmups=1,
    prompts_sha256="cd",
    proposer="none",
    rule="match",
    exact=True,
    invariant=True,
)


def prompts(count: int = 4) -> list[Prompt]:
    """Of two categories and two languages in turns."""
    return [
        Prompt(f"p{at}", ("chat", "code")[at % 2], ("en", "fa")[at // 2 % 2], f"question number {at}")
        for at in range(count)
    ]


def make_plan(**changes: object) -> BenchPlan:
    plan = BenchPlan(
        source="test",
        prompts=prompts(),
        params=GREEDY,
        loads=[Load("closed", 1.0, requests=4, rounds=2)],
    )
    return replace(plan, **changes)


@dataclass
class FakeClient:
    """Says a text word by word, and notes what it was asked.

    Args:
        say: text for a request; raises what a test wants raised.
        gaps: reported with each word, when they are asked for.
    """

    name: str
    say: Callable[[Ask], str] = lambda ask: "one two three"
    gaps: float = 1.0
    asked: list[tuple[str, str]] = field(default_factory=list)
    salts: list[str] = field(default_factory=list)

    async def stream(self, ask: Ask) -> AsyncGenerator[Delivery]:
        self.asked.append((self.name, ask.text))
        self.salts.append(ask.salt)
        for at, word in enumerate(self.say(ask).split()):
            yield Delivery(word if at == 0 else f" {word}", 1, gaps=(self.gaps,) if ask.params.logprobs else ())
        yield Delivery("", 0, Ending(counts=Counts(2, 3, 2, 4, 5)))


def broken(ask: Ask) -> str:
    """Says nothing."""
    raise RequestFailed("it broke")


def make_ways(
    plain: FakeClient | None = None, speculative: FakeClient | None = None, asked: list[tuple[str, str]] | None = None
) -> Ways:
    """Both ways; with `asked`, one list of what either was asked."""
    clients = plain or FakeClient("plain"), speculative or FakeClient("speculative")
    if asked is not None:
        for client in clients:
            client.asked = asked
    return Ways(
        Way("plain", clients[0], True, SETUP),
        Way("speculative", clients[1], True, replace(SETUP, proposer="lookup")),
    )


def answer(sent: float, *deliveries: float, tokens: int | None = None, text: str = "abcd", **ending: object) -> Record:
    """One answer with its times; one token with each delivery unless told otherwise."""
    count = len(deliveries) if tokens is None else tokens
    return Record(sent, list(deliveries), count, text, Ending(**ending))


def records(answers: Sequence[Record], number: int = 0, among: Sequence[Prompt] | None = None) -> list[Record]:
    """Give each a place in a round, of the prompts in turns."""
    asked = among or prompts()
    return [replace(each, key=Key(number, slot), prompt=asked[slot % len(asked)]) for slot, each in enumerate(answers)]


def stretch(answers: Sequence[Record], seconds: float, number: int = 0, **more: object) -> Stretch:
    """A turn that took so many seconds."""
    return Stretch(records(answers, number), seconds, more.get("counts"), more.get("cpu_seconds"))


def measured(plain: Sequence[Stretch], speculative: Sequence[Stretch], load: Load | None = None) -> MeasuredLoad:
    """What was measured at one load."""
    return MeasuredLoad(load or Load("closed", 1.0, 4, 1), {"plain": list(plain), "speculative": list(speculative)})


def run_of(
    ways: Ways | None = None, plan: BenchPlan | None = None, kept: list[Run] | None = None, allow_unequal: bool = False
) -> Run:
    """A whole run over fake sides."""

    @asynccontextmanager
    async def connect() -> AsyncIterator[Ways]:
        yield ways or make_ways()

    usual = make_plan(
        prompts=prompts(8),
        loads=[Load("closed", 1.0, 8, 2), Load("closed", 4.0, 8, 2)],
        slo=Slo(ttft=1.0),
        price=make_price(1.0, "EUR", "2026-11-29"),
    )
    models = [ModelMark("target", "tiny", "ab", "bfloat16")]
    keep = (lambda run: None) if kept is None else kept.append
    return conduct(connect, plan or usual, "a test", models, keep=keep, allow_unequal=allow_unequal)
