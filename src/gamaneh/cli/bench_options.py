"""Options of `gamaneh bench`, by subject."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from gamaneh.cli.option_groups import ModelChoice, SamplingChoice
from gamaneh.errors import InvalidOption

if TYPE_CHECKING:
    from gamaneh.bench.prompt_set import PromptFile
    from gamaneh.bench.result import Load, Pattern, Price, Slo
    from gamaneh.bench.servers import Servers

FEW_PROMPTS, FEW_TOKENS = 16, 64
"""Taken unless more is asked for: a first look ends in minutes on a small model and two slow cores."""

PATTERNS: Sequence[Pattern] = ("constant", "poisson", "gamma")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetChoice(ModelChoice):
    """The target in this process; left out where a server has it."""

    model: Annotated[
        str,
        typer.Option(
            "--model",
            "-m",
            help="A Hugging Face folder or id, a .gguf file, or a name of `gamaneh models`.",
            show_default="none",
        ),
    ] = ""
    max_batch: Annotated[
        int | None, typer.Option(help="Most answers made at once.", show_default="as many as the loads ask for")
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchServers:
    """Servers to measure in place of a model."""

    PANEL: ClassVar[str] = "Servers"

    url: Annotated[str | None, typer.Option(help="Server with OpenAI's API that speculates.")] = None
    plain_url: Annotated[
        str | None,
        typer.Option(help="The same server without speculation.", show_default="--url, told with each request"),
    ] = None
    key: Annotated[str | None, typer.Option(help="API key of the servers.")] = None
    plain_fields: Annotated[
        str | None, typer.Option(metavar="JSON", help="Sent in each plain request, to switch speculation off.")
    ] = None
    speculative_fields: Annotated[
        str | None, typer.Option(metavar="JSON", help="Sent in each speculative request.")
    ] = None
    tokenizer: Annotated[
        str | None, typer.Option(help="The target's, to count tokens where a server does not: as for --model.")
    ] = None

    def servers(self) -> Servers | None:
        """
        Raises:
            InvalidOption: an option belongs to servers, and there is none; or is no JSON object.
        """
        from gamaneh.bench.servers import Servers

        if self.url is None:
            for name in ("plain_url", "key", "plain_fields", "speculative_fields", "tokenizer"):
                if getattr(self, name) is not None:
                    raise InvalidOption(f"--{name.replace('_', '-')}", "needs --url", getattr(self, name))
            return None
        return Servers(
            url=self.url,
            plain_url=self.plain_url,
            key=self.key,
            plain_fields=_fields("--plain-fields", self.plain_fields),
            speculative_fields=_fields("--speculative-fields", self.speculative_fields),
            count=None if self.tokenizer is None else _counting(self.tokenizer),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChoice:
    """What is asked."""

    PANEL: ClassVar[str] = "Prompts"

    prompts: Annotated[
        str,
        typer.Option(help="core, full, or a file: our own lines, Spec-Bench, MT-Bench, ShareGPT, plain or a trace."),
    ] = "full"
    category: Annotated[list[str] | None, typer.Option(help="Only prompts of this category; may be repeated.")] = None
    language: Annotated[list[str] | None, typer.Option(help="Only prompts in this language; may be repeated.")] = None
    limit: Annotated[
        int | None,
        typer.Option(
            min=1, help="Take this many prompts, evenly spread.", show_default="16 of core or full, all of a file"
        ),
    ] = None

    def read(self) -> PromptFile:
        """
        Raises:
            InvalidOption: no prompt is left.
        """
        from gamaneh.bench.prompt_set import SETS, read_prompts, select

        usual = FEW_PROMPTS if self.prompts in SETS else None
        return select(read_prompts(self.prompts), self.category or (), self.language or (), self.limit or usual)


@dataclass(frozen=True, slots=True, kw_only=True)
class CorePrompts(PromptChoice):
    """What is asked, by default from the short set."""

    prompts: Annotated[
        str, typer.Option(help="core, full, or a file: our own lines, Spec-Bench, MT-Bench, ShareGPT or plain.")
    ] = "core"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortSampling(SamplingChoice):
    """How tokens are chosen, in answers that are short unless asked for."""

    max_tokens: Annotated[int | None, typer.Option("--max-tokens", "-n", help="Most tokens to emit.")] = FEW_TOKENS


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadChoice:
    """How requests arrive, and how often everything is measured."""

    PANEL: ClassVar[str] = "Load"

    concurrency: Annotated[
        list[int] | None,
        typer.Option(help="Requests under way at any time; may be repeated.", show_default="1"),
    ] = None
    rate: Annotated[
        list[float] | None, typer.Option(help="Requests a second that arrive by the clock; may be repeated.")
    ] = None
    arrivals: Annotated[str, typer.Option(help=f"With --rate: {', '.join(PATTERNS)}.")] = "poisson"
    burstiness: Annotated[float, typer.Option(help="Of gamma: 1 is Poisson, less is burstier.")] = 1.0
    sweep: Annotated[bool, typer.Option("--sweep", help="Double the last --rate until neither side keeps up.")] = False
    replay: Annotated[bool, typer.Option("--replay", help="Send the prompts of a trace when they were sent.")] = False
    requests: Annotated[
        int | None, typer.Option(help="Requests of each round.", show_default="one for each prompt")
    ] = None
    rounds: Annotated[int, typer.Option(help="Measured rounds on each side.")] = 1
    warmups: Annotated[int, typer.Option(help="Requests of each side and load that are dropped.")] = 1
    order_seed: Annotated[int, typer.Option(help="Of the order of the prompts and the arrivals.")] = 0

    def loads(self, file: PromptFile) -> list[Load]:
        """
        Raises:
            InvalidOption: options exclude each other, or a value is out of range.
        """
        from gamaneh.bench.measure import closed_loads, open_loads, replay_load

        if self.requests is not None and self.requests < 1:
            raise InvalidOption("--requests", "must be at least 1", self.requests)
        requests = self.requests or len(file.prompts)
        self._refuse_mixtures()
        if self.replay:
            return [replay_load(file.recorded, self.rounds)]
        if self.rate:
            return open_loads(self._pattern(), self.rate, requests, self.rounds, self.burstiness, sweep=self.sweep)
        return closed_loads(self.concurrency or [1], requests, self.rounds)

    def _refuse_mixtures(self) -> None:
        ways = {"--concurrency": self.concurrency, "--rate": self.rate, "--replay": self.replay}
        given = [name for name, value in ways.items() if value]
        if len(given) > 1:
            raise InvalidOption(given[1], f"cannot be used together with {given[0]}", ways[given[1]])
        if self.sweep and not self.rate:
            raise InvalidOption("--sweep", "needs --rate, to begin with", True)
        if self.burstiness != 1.0 and self.arrivals != "gamma":
            raise InvalidOption("--burstiness", "needs --arrivals gamma", self.burstiness)

    def _pattern(self) -> Pattern:
        for pattern in PATTERNS:
            if pattern == self.arrivals:
                return pattern
        raise InvalidOption("--arrivals", f"must be one of {', '.join(PATTERNS)}", self.arrivals)


@dataclass(frozen=True, slots=True, kw_only=True)
class Objectives:
    """What is good enough, and what it costs."""

    PANEL: ClassVar[str] = "Objectives"

    slo_ttft: Annotated[float | None, typer.Option(help="Seconds to the first token, for goodput.")] = None
    slo_tpot: Annotated[float | None, typer.Option(help="Seconds per output token, for goodput.")] = None
    slo_e2e: Annotated[float | None, typer.Option(help="Seconds of the whole answer, for goodput.")] = None
    price: Annotated[float | None, typer.Option(help="Price of an hour of the machine.")] = None
    price_date: Annotated[str | None, typer.Option(metavar="YYYY-MM-DD", help="When the price was so.")] = None
    currency: Annotated[str, typer.Option(help="Of the price.")] = "EUR"

    def slo(self) -> Slo | None:
        """
        Raises:
            InvalidOption: an objective is not above 0.
        """
        from gamaneh.bench.result import Slo

        limits = {"ttft": self.slo_ttft, "tpot": self.slo_tpot, "e2e": self.slo_e2e}
        for name, limit in limits.items():
            if limit is not None and not 0 < limit < float("inf"):
                raise InvalidOption(f"--slo-{name}", "must be seconds above 0", limit)
        return Slo(**limits) if any(limit is not None for limit in limits.values()) else None

    def dated_price(self) -> Price | None:
        """
        Raises:
            InvalidOption: the price is not above 0, or has no date.
        """
        from gamaneh.bench.conduct import make_price

        if self.price is None:
            if self.price_date is not None:
                raise InvalidOption("--price-date", "needs --price", self.price_date)
            return None
        return make_price(self.price, self.currency, self.price_date)


def _counting(name: str) -> Callable[[str], int]:
    """
    Raises:
        ModelError: there is no such model, or it has no tokenizer.
    """
    from gamaneh.cli.session import file_or_name
    from gamaneh.models.gguf_file import GgufFile
    from gamaneh.models.loading import resolve
    from gamaneh.models.tokenizer import Tokenizer

    path = resolve(file_or_name(name))
    tokenizer = Tokenizer.from_gguf(GgufFile(path), ()) if path.is_file() else Tokenizer.from_folder(path, ())
    return lambda text: len(tokenizer.encode(text, special=False))


def _fields(option: str, text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        values = json.loads(text)
    except ValueError as error:
        raise InvalidOption(option, "must be a JSON object", text) from error
    if not isinstance(values, dict):
        raise InvalidOption(option, "must be a JSON object", text)
    return values
