"""What both sides are asked, one way after the other: output of one request, prompts to read, many requests at once."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx

from gamaneh.bench.measure import Traffic, answer_one
from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.record import Ask, Record
from gamaneh.bench.servers import HttpClient
from gamaneh.errors import GamanehError
from gamaneh.options import SamplingParams
from tools.race.contestants import OURS, PLAIN, Way

DECODE, PROMPT, BATCH = "decode", "prompt", "batch"
EVENTS = (DECODE, PROMPT, BATCH)
KINDS = ("code", "editing", "chat", "summarising", "persian")
SEED = 7
TEMPLATE_TOKENS = 40
"""About what a chat template adds to a prompt."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Lap:
    """One measurement of one way.

    Args:
        event: one of `EVENTS`; group: category of the prompt, its tokens, or the requests at once.
        case, round: what is the same for all ways, so that ratios can be taken.
        speed: tokens/s: decode: after the first token; prompt: those of the prompt until the first token of the
            answer; batch: of all answers, from the first request to the last end.
        ttft: seconds to the first token, the mean where there are several requests.
    """

    event: str
    group: str
    temperature: float
    case: str
    round: int
    way: str
    speed: float
    ttft: float
    tokens: int
    prompt_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How much is asked.

    Args:
        prompts: of each kind.
        tokens: of each answer; batch_tokens: of each answer of a batch.
        lengths: tokens of prompts to be read; batches: requests at once.
        rounds: how often these two are asked. Other prompts are asked once at each temperature: their `ngram-mod`
            remembers answers, and would know them.
    """

    events: Sequence[str] = EVENTS
    kinds: Sequence[str] = KINDS
    temperatures: Sequence[float] = (0.0, 0.8)
    prompts: int = 3
    tokens: int = 96
    rounds: int = 2
    lengths: Sequence[int] = (512, 2048)
    batches: Sequence[int] = (1, 2, 4, 8, 16)
    batch_tokens: int = 48


QUICK = Course(
    kinds=("code", "chat"), temperatures=(0.0,), prompts=1, tokens=48, lengths=(512,), batches=(1, 8), batch_tokens=24
)
"""About four minutes on a model of 1.5 billion parameters."""


@dataclass
class Track:
    """Asks every way in turns; who begins changes from lap to lap.

    Args:
        prompts: to choose from.
        say: told how far it is.

    Attributes:
        first_ttft: way -> seconds of its first request, a short one, to the first token: what it put off until then.
    """

    ways: Sequence[Way]
    prompts: Sequence[Prompt]
    course: Course
    say: Say
    laps: list[Lap] = field(default_factory=list)
    first_ttft: dict[str, float] = field(default_factory=dict)
    _clients: dict[str, HttpClient] = field(default_factory=dict)
    _turns: Iterator[int] = field(default_factory=itertools.count)

    async def run(self) -> list[Lap]:
        """All events.

        Raises:
            GamanehError: a request was not answered.
        """
        events = {DECODE: self._decode, PROMPT: self._read_prompts, BATCH: self._batches}
        async with self._connected():
            for way in self.ways:
                answer = await self._ask(way, Ask("Say yes.", _params(4, 0.0), way.speculate, "warm-up"))
                self.first_ttft[way.name] = answer.ttft
            for number in range(self.course.rounds):
                for event in self.course.events:
                    if event != DECODE or number == 0:
                        await events[event](number)
        return self.laps

    async def _decode(self, number: int) -> None:
        for kind in self.course.kinds:
            for prompt in of_kind(self.prompts, kind)[: self.course.prompts]:
                for temperature in self.course.temperatures:
                    self.say(f"{prompt.id} at temperature {temperature:g}")
                    params = _params(self.course.tokens, temperature)
                    for way in self._in_turn(self.ways):
                        answer = await self._ask(way, Ask(prompt.prompt, params, way.speculate, self._salt(prompt.id)))
                        self._note(DECODE, kind, temperature, prompt.id, number, way, _decode_speed(answer), answer)

    async def _read_prompts(self, number: int) -> None:
        for length in self.course.lengths:
            text = await self._text_of(length)
            self.say(f"round {number + 1}: a prompt of {length} tokens")
            for way in self._in_turn(_plain(self.ways)):
                answer = await self._ask(way, Ask(text, _params(2, 0.0), way.speculate, self._salt(str(length))))
                speed = (answer.ending.prompt_tokens or length) / answer.ttft
                self._note(PROMPT, str(length), 0.0, str(length), number, way, speed, answer)

    async def _batches(self, number: int) -> None:
        for size in self.course.batches:
            self.say(f"round {number + 1}: {size} requests at once")
            chosen = list(itertools.islice(itertools.cycle(self._mixed()), size))
            params = _params(self.course.batch_tokens, 0.0)
            for way in self._in_turn(_batched(self.ways)):
                asks = [
                    Ask(prompt.prompt, params, way.speculate, self._salt(f"{at}")) for at, prompt in enumerate(chosen)
                ]
                traffic = Traffic()
                await traffic.closed_loop(self._clients[way.server.name], asks, size)
                answers = list(traffic.records.values())
                for error in (answer.error for answer in answers if answer.error is not None):
                    raise GamanehError(f"{way.name} must answer {size} requests at once: {error}")
                tokens = sum(answer.tokens for answer in answers)
                self.laps.append(
                    Lap(
                        *(BATCH, str(size), 0.0, str(size), number, way.name, tokens / traffic.seconds),
                        ttft=sum(answer.ttft for answer in answers) / size,
                        tokens=tokens,
                        prompt_tokens=None,
                    )
                )

    def _mixed(self) -> list[Prompt]:
        """Short prompts of all kinds, so that reading them does not hide the decoding."""
        short = [prompt for prompt in self.prompts if prompt.length == "short"]
        return [prompt for group in zip(*(of_kind(short, kind) for kind in KINDS), strict=False) for prompt in group]

    async def _text_of(self, length: int) -> str:
        """A text that is so many tokens in the chat template, by the peer's own tokenizer."""
        peer = next(way.server for way in self.ways if way.side != OURS)
        whole = "\n\n".join(prompt.prompt for prompt in self.prompts if prompt.language == "en")
        async with httpx.AsyncClient(base_url=peer.url, timeout=60.0) as http:
            tokens = (await http.post("/tokenize", json={"content": whole})).raise_for_status().json()["tokens"]
            kept = tokens[: max(length - TEMPLATE_TOKENS, 1)]
            text: str = (await http.post("/detokenize", json={"tokens": kept})).raise_for_status().json()["content"]
        return text

    async def _ask(self, way: Way, ask: Ask) -> Record:
        try:
            return await answer_one(self._clients[way.server.name], ask)
        except GamanehError as error:
            raise GamanehError(f"{way.name} must answer: {error}") from error

    def _note(
        self, event: str, group: str, temperature: float, case: str, number: int, way: Way, speed: float, answer: Record
    ) -> None:
        prompt_tokens = answer.ending.prompt_tokens
        self.laps.append(
            Lap(event, group, temperature, case, number, way.name, speed, answer.ttft, answer.tokens, prompt_tokens)
        )

    def _in_turn(self, ways: Sequence[Way]) -> list[Way]:
        first = next(self._turns) % len(ways)
        return [*ways[first:], *ways[:first]]

    def _salt(self, name: str) -> str:
        return f"race-{name}-{next(self._turns)}"

    @asynccontextmanager
    async def _connected(self) -> AsyncGenerator[None]:
        async with AsyncExitStack() as stack:
            servers: Mapping[str, str] = {way.server.name: way.server.url for way in self.ways}
            for name, url in servers.items():
                self._clients[name] = await stack.enter_async_context(HttpClient(url))
            yield


def of_kind(prompts: Sequence[Prompt], kind: str) -> list[Prompt]:
    """Those of a category in English, or all in Persian."""
    if kind == "persian":
        return [prompt for prompt in prompts if prompt.language == "fa"]
    return [prompt for prompt in prompts if prompt.language == "en" and prompt.category == kind]


def _plain(ways: Sequence[Way]) -> list[Way]:
    return [way for way in ways if way.name.endswith(f" {PLAIN}")]


def _batched(ways: Sequence[Way]) -> list[Way]:
    """Their other servers have room for one request."""
    return [way for way in ways if way.side == OURS or way.name.endswith(f" {PLAIN}")]


def _params(tokens: int, temperature: float) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=temperature, seed=SEED, ignore_eos=True)


def _decode_speed(answer: Record) -> float:
    """
    Raises:
        GamanehError: all tokens came at once.
    """
    if not answer.tpot:
        raise GamanehError(f"an answer must come in two deliveries or more to be timed, got {answer.tokens} tokens")
    return 1.0 / answer.tpot


def run(track: Track) -> list[Lap]:
    """The laps of a track, in an event loop of their own."""
    return asyncio.run(track.run())
