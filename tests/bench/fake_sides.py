"""Two sides whose answers and times are known, on a clock of their own."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, field, replace

from gamaneh.bench.counts import Counts
from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.result import Load, SideSetup
from gamaneh.bench.run.measure import Key, Measured, Record, Stretch
from gamaneh.bench.run.plan import Plan
from gamaneh.bench.run.sides import Side, Sides
from gamaneh.bench.traffic import Answer, Ask, Delivery, Ending, RequestFailed
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


def make_plan(**changes: object) -> Plan:
    plan = Plan(
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


def make_sides(
    plain: FakeClient | None = None, speculative: FakeClient | None = None, asked: list[tuple[str, str]] | None = None
) -> Sides:
    """Both sides; with `asked`, one list of what either was asked."""
    clients = plain or FakeClient("plain"), speculative or FakeClient("speculative")
    if asked is not None:
        for client in clients:
            client.asked = asked
    return Sides(
        "offline",
        Side("plain", clients[0], True, SETUP),
        Side("speculative", clients[1], True, replace(SETUP, proposer="lookup")),
    )


def answer(sent: float, *deliveries: float, tokens: int | None = None, text: str = "abcd", **ending: object) -> Answer:
    """One answer with its times; one token with each delivery unless told otherwise."""
    return Answer(
        sent,
        list(deliveries),
        len(deliveries) if tokens is None else tokens,
        text,
        Ending(**ending),
    )


def records(answers: Sequence[Answer], number: int = 0, among: Sequence[Prompt] | None = None) -> list[Record]:
    """One record for each, of the prompts in turns."""
    asked = among or prompts()
    return [Record(Key(number, slot), asked[slot % len(asked)], each) for slot, each in enumerate(answers)]


def stretch(answers: Sequence[Answer], seconds: float, number: int = 0, **more: object) -> Stretch:
    """A turn that took so many seconds."""
    return Stretch(records(answers, number), seconds, more.get("counts"), more.get("cpu_seconds"))


def measured(plain: Sequence[Stretch], speculative: Sequence[Stretch], load: Load | None = None) -> Measured:
    """What was measured at one load."""
    return Measured(load or Load("closed", 1.0, 4, 1), {"plain": list(plain), "speculative": list(speculative)})
