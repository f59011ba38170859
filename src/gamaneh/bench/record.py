"""The nouns of a measurement: one request, what came back for it and when, and all that one load brought.

round (of a plan)   every request of a load once
turn                the requests that one way answers before the next way has its turn
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, Protocol

from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.result import Load, SideSetup, TokenSource
from gamaneh.errors import GamanehError
from gamaneh.metrics.collector import SpeculationStats
from gamaneh.options import SamplingParams

PLAIN_SIDE, SPECULATIVE_SIDE = "plain", "speculative"


class RequestFailed(GamanehError):
    """A request was not answered to its end. `reason` is the kind of failure, as in `FailedRequest`."""

    reason = "error"


class EmptyAnswer(RequestFailed):
    """An answer ended well and holds nothing."""

    reason = "empty"


@dataclass(frozen=True, slots=True)
class Counts:
    """What was drafted and what became of it; None where whoever counts does not say.

    Args:
        rounds: verifications of one request; drafts: those with a draft.
        accepted_at: accepted_at[i] counts drafts whose first i + 1 candidates were all accepted; those behind the
            end of an output are among them where whoever counts knows them, for they tell how good a draft was.
        offered_at: offered_at[i] counts drafts with at least i + 1 candidates on their longest path.
    """

    accepted: int
    rounds: int | None = None
    drafts: int | None = None
    drafted: int | None = None
    emitted: int | None = None
    accepted_at: Counter[int] = field(default_factory=Counter)
    offered_at: Counter[int] = field(default_factory=Counter)

    @classmethod
    def of(cls, stats: Iterable[SpeculationStats]) -> Counts:
        """Return the sum over proposers."""
        return sum_counts(
            cls(
                accepted=each.accepted,
                rounds=each.rounds,
                drafts=each.drafts,
                drafted=each.drafted,
                emitted=each.emitted,
                accepted_at=each.survived_at,
                offered_at=each.offered_at,
            )
            for each in stats
        )

    def since(self, before: Counts | None) -> Counts:
        """Return what was counted between two readings; a server that had counted nothing began at 0."""
        start = before or Counts(0, 0, 0, 0, 0)
        known = {name: _minus(getattr(self, name), getattr(start, name)) for name in _OPTIONAL}
        return Counts(
            accepted=self.accepted - start.accepted,
            accepted_at=self.accepted_at - start.accepted_at,
            offered_at=self.offered_at - start.offered_at,
            **known,
        )


_OPTIONAL = ("rounds", "drafts", "drafted", "emitted")


def _minus(later: int | None, earlier: int | None) -> int | None:
    return None if later is None else later - (earlier or 0)


def sum_counts(counts: Iterable[Counts]) -> Counts:
    """Return the sum. What one of them does not know, the sum does not know either."""
    known = list(counts)
    if not known:
        return Counts(0, 0, 0, 0, 0)
    accepted_at: Counter[int] = Counter()
    offered_at: Counter[int] = Counter()
    for each in known:
        accepted_at.update(each.accepted_at)
        offered_at.update(each.offered_at)
    sums = {name: _sum([getattr(each, name) for each in known]) for name in _OPTIONAL}
    return Counts(sum(each.accepted for each in known), accepted_at=accepted_at, offered_at=offered_at, **sums)


def _sum(values: Sequence[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


@dataclass(frozen=True, slots=True)
class Ask:
    """One request.

    Args:
        text: what the user says.
        speculate: as the engine does by default; False asks for plain decoding.
        salt: requests with different salts share no cached prefixes and no texts to guess from.
        reference: text that the answer is likely to repeat. A server is not told.
    """

    text: str
    params: SamplingParams
    speculate: bool = True
    salt: str = ""
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class Ending:
    """What whoever answered says about the whole answer; None where it says nothing.

    Args:
        tokens, prompt_tokens: of output and prompt.
        tokens_from: who counted `tokens`.
        counts: what was drafted.
        queue: seconds before the request was in the batch.
        prefill: seconds from there to the first token.
        draft, verify: seconds of the rounds that the request had a part in, whole and not shared out.
    """

    tokens: int | None = None
    prompt_tokens: int | None = None
    counts: Counts | None = None
    queue: float | None = None
    prefill: float | None = None
    draft: float | None = None
    verify: float | None = None
    tokens_from: TokenSource | None = None


NOTHING_SAID = Ending()


@dataclass(frozen=True, slots=True)
class Delivery:
    """Tokens that arrived together.

    Args:
        ending: comes with the last delivery, if at all.
        gaps: for each token, the difference of the log-probabilities of the target's two most likely
            ones; for requests that ask for `logprobs` of at least 2.
        ids: the tokens, where they are known.
    """

    text: str
    tokens: int
    ending: Ending | None = None
    gaps: tuple[float, ...] = ()
    ids: tuple[int, ...] = ()


class Key(NamedTuple):
    """Tells which records of the two sides belong together."""

    round: int
    slot: int


FIRST = Key(0, 0)


@dataclass(slots=True)
class Record:
    """What came back for one request, and when, in seconds of one clock.

    Args:
        deliveries: when tokens arrived.
        tokens: of the output, as `ending.tokens_from` counted them.
        ids: the tokens; empty where only the text is known.
        error, reason: why the request was not answered to its end, and which kind of failure that is.
        prompt, key: which request it was.
    """

    sent: float
    deliveries: list[float] = field(default_factory=list)
    tokens: int = 0
    text: str = ""
    ending: Ending = NOTHING_SAID
    error: str | None = None
    reason: str | None = None
    ids: list[int] = field(default_factory=list)
    prompt: Prompt | None = None
    key: Key = FIRST

    def take(self, delivery: Delivery, now: float) -> None:
        """Add what arrived."""
        self.text += delivery.text
        self.tokens += delivery.tokens
        self.ids += delivery.ids
        if delivery.tokens:
            self.deliveries.append(now)
        if delivery.ending is not None:
            self.ending = delivery.ending
            self.tokens = self.tokens if delivery.ending.tokens is None else delivery.ending.tokens

    @property
    def asked(self) -> Prompt:
        """The prompt of a record that belongs to a plan."""
        assert self.prompt is not None, "a record of a plan has a prompt"
        return self.prompt

    @property
    def whole(self) -> bool:
        """Whether it was answered to its end, with at least one token."""
        return self.error is None and bool(self.deliveries)

    @property
    def ttft(self) -> float:
        """Return the first delivery - request sent."""
        return self.deliveries[0] - self.sent

    @property
    def e2e(self) -> float:
        """Return the last delivery - request sent."""
        return self.deliveries[-1] - self.sent

    @property
    def gaps(self) -> list[float]:
        """Return the times between one delivery and the next (ITL)."""
        return [later - earlier for earlier, later in pairwise(self.deliveries)]

    @property
    def tpot(self) -> float | None:
        """Return (last delivery - first delivery) / (tokens - 1); None if nothing came after the first delivery."""
        if self.tokens < 2 or len(self.deliveries) < 2:
            return None
        return (self.deliveries[-1] - self.deliveries[0]) / (self.tokens - 1)


class BenchClient(Protocol):
    """Whoever answers requests."""

    def stream(self, ask: Ask) -> AsyncGenerator[Delivery]:
        """Yield deliveries until the answer ends; closing it stops the request.

        Raises:
            RequestFailed: the request was not answered to its end.
        """
        ...


@dataclass(frozen=True, slots=True)
class Counters:
    """One reading of what a server, or this process, counts about itself; None where it does not say.

    Args:
        counts: of all drafts so far.
        cpu_seconds, resident, private, device: of the process.
        models: bytes of weights and caches, by model; target_kv: those of the target's cache.
        kv_used: blocks of that cache in use.
    """

    counts: Counts | None
    cpu_seconds: float | None
    resident: int | None
    device: int | None
    models: Mapping[str, int]
    target_kv: int | None = None
    kv_used: int | None = None
    private: int | None = None


async def _nothing() -> Counters | None:
    return None


@dataclass(frozen=True, slots=True)
class Way:
    """One of the ways of answering that a measurement alternates.

    Args:
        speculate: what its requests say.
        reads_anew: prompts that come back in another round are read again.
        counters: reads what whoever answers counts about itself.
        faults: failures of its proposers so far, by name.
    """

    name: str
    client: BenchClient
    speculate: bool
    setup: SideSetup
    reads_anew: bool = True
    counters: Callable[[], Awaitable[Counters | None]] = _nothing
    faults: Callable[[], Mapping[str, int]] = field(default=dict)


class Ways(NamedTuple):
    """The two ways that a document compares."""

    plain: Way
    speculative: Way


@dataclass(frozen=True, slots=True)
class Stretch:
    """What one way did in one turn.

    Args:
        counts, cpu_seconds: what its counters say; None where it has none.
    """

    records: Sequence[Record]
    seconds: float
    counts: Counts | None = None
    cpu_seconds: float | None = None


@dataclass(slots=True)
class MeasuredLoad:
    """Everything of one load."""

    load: Load
    stretches: dict[str, list[Stretch]]

    def records(self, side: str) -> list[Record]:
        """Return its records in the order of the requests, failed ones too."""
        records = [record for stretch in self.stretches[side] for record in stretch.records]
        return sorted(records, key=lambda record: record.key)

    def pairs(self) -> Iterator[tuple[Record, Record]]:
        """Yield plain and speculative records of the same request, where both are whole."""
        plain = {record.key: record for record in self.records(PLAIN_SIDE) if record.whole}
        for record in self.records(SPECULATIVE_SIDE):
            if record.whole and record.key in plain:
                yield plain[record.key], record

    @property
    def begun(self) -> bool:
        """Whether every way had a turn."""
        return all(self.stretches.values())
