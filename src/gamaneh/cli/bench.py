"""`gamaneh bench`: plain against speculative decoding, measured as it should be."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gamaneh.cli.bench_table import report
from gamaneh.cli.command import command
from gamaneh.cli.options import JsonFlag, ModelChoice, ProposerChoice, SamplingChoice
from gamaneh.cli.terminal import count_bar, output
from gamaneh.errors import InvalidOption

if TYPE_CHECKING:
    from gamaneh.bench.formats import PromptFile
    from gamaneh.bench.result import Load, ModelMark, Pattern, Price, Run, Slo
    from gamaneh.bench.run.over_http import Servers
    from gamaneh.bench.run.plan import Plan
    from gamaneh.models.loading import LoadedModel

    Keep = Callable[[Run], None]

EXIT_PARTIAL = 1
"""Exit code when something was measured, but not everything went well."""

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
    prefix_cache: Annotated[
        bool, typer.Option("--prefix-cache", help="Reuse prompts that come back; hides what reading them takes.")
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChoice:
    """Servers to measure in place of a model."""

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

    def servers(self) -> Servers | None:
        """
        Raises:
            InvalidOption: an option belongs to servers, and there is none; or is no JSON object.
        """
        from gamaneh.bench.run.over_http import Servers

        if self.url is None:
            for name in ("plain_url", "key", "plain_fields", "speculative_fields"):
                if getattr(self, name) is not None:
                    raise InvalidOption(f"--{name.replace('_', '-')}", "needs --url", getattr(self, name))
            return None
        return Servers(
            url=self.url,
            plain_url=self.plain_url,
            key=self.key,
            plain_fields=_fields("--plain-fields", self.plain_fields),
            speculative_fields=_fields("--speculative-fields", self.speculative_fields),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptChoice:
    """What is asked."""

    prompts: Annotated[
        str,
        typer.Option(help="core, full, or a file: our own lines, Spec-Bench, MT-Bench, ShareGPT, plain or a trace."),
    ] = "full"
    category: Annotated[list[str] | None, typer.Option(help="Only prompts of this category; may be repeated.")] = None
    language: Annotated[list[str] | None, typer.Option(help="Only prompts in this language; may be repeated.")] = None
    limit: Annotated[
        int | None, typer.Option(min=1, help="Take this many prompts, evenly spread.", show_default="all")
    ] = None

    def read(self) -> PromptFile:
        """
        Raises:
            InvalidOption: no prompt is left.
        """
        from gamaneh.bench.formats import read_prompts, select

        return select(read_prompts(self.prompts), self.category or (), self.language or (), self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadChoice:
    """How requests arrive, and how often everything is measured."""

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
    rounds: Annotated[int, typer.Option(help="Measured rounds on each side.")] = 2
    warmups: Annotated[int, typer.Option(help="Requests of each side and load that are dropped.")] = 1
    order_seed: Annotated[int, typer.Option(help="Of the order of the prompts and the arrivals.")] = 0

    def loads(self, file: PromptFile) -> list[Load]:
        """
        Raises:
            InvalidOption: options exclude each other, or a value is out of range.
        """
        from gamaneh.bench.run.plan import closed_loads, open_loads, replay_load

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
        from gamaneh.bench.run.plan import make_price

        if self.price is None:
            if self.price_date is not None:
                raise InvalidOption("--price-date", "needs --price", self.price_date)
            return None
        return make_price(self.price, self.currency, self.price_date)


@command
def run_bench(
    model: TargetChoice,
    proposer: ProposerChoice,
    server: ServerChoice,
    sampling: SamplingChoice,
    prompts: PromptChoice,
    load: LoadChoice,
    objectives: Objectives,
    name: Annotated[
        str | None, typer.Option(help="What to call this run in reports.", show_default="by what it is")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the run to this JSON file.")] = None,
    csv: Annotated[Path | None, typer.Option("--csv", help="Write a table to this CSV file.")] = None,
    allow_unequal: Annotated[
        bool, typer.Option("--allow-unequal", help="Flag conditions that differ between the sides, and go on.")
    ] = False,
    as_json: JsonFlag = False,
) -> None:
    """Measure plain against speculative decoding: the same requests, in turns, with intervals and warnings.

    Exit code 1: not everything was answered, or outputs differ that must not.
    """
    servers = server.servers()
    _refuse_mixtures(servers, model, proposer, sampling)
    file = prompts.read()
    loads = load.loads(file)

    from gamaneh.bench.run.export import to_text, write_csv, write_json
    from gamaneh.bench.run.plan import Plan

    plan = Plan(
        source=file.source,
        prompts=file.prompts,
        params=sampling.params(),
        loads=loads,
        sweep=load.sweep,
        warmups=load.warmups,
        seed=load.order_seed,
        recorded=file.recorded,
        slo=objectives.slo(),
        price=objectives.dated_price(),
    )
    keep = _keeper(out)
    run = (
        _in_process(plan, model, proposer, sampling, name, keep, allow_unequal=allow_unequal)
        if servers is None
        else _over_http(plan, servers, name, keep, allow_unequal=allow_unequal)
    )
    report(output(), run)
    if csv is not None:
        write_csv(run, csv)
    if out is not None:
        write_json(run, out)
    if as_json:
        print(to_text(run), flush=True)
    if went_wrong(run):
        raise typer.Exit(EXIT_PARTIAL)


def went_wrong(run: Run) -> bool:
    """Whether something is missing from the figures, or an output is not what it must be."""
    unexplained = run.equality is not None and run.equality.expected and _unexplained(run) > 0
    failed = any(caution.code == "proposer_failed" for caution in run.cautions)
    return not run.complete or failed or unexplained


def _unexplained(run: Run) -> int:
    assert run.equality is not None, "asked only where outputs were compared"
    return run.equality.compared - run.equality.equal - run.equality.ties


def _refuse_mixtures(
    servers: Servers | None, model: TargetChoice, proposer: ProposerChoice, sampling: SamplingChoice
) -> None:
    if proposer.plain:
        raise InvalidOption("--plain", "leaves nothing to compare: plain decoding is always one of the two", True)
    if servers is None:
        if not model.model:
            raise InvalidOption("--model", "must be given, or --url", None)
        return
    for given, usual in ((model, TargetChoice()), (proposer, ProposerChoice())):
        for entry in fields(given):
            if getattr(given, entry.name) != getattr(usual, entry.name):
                rule = "cannot be used together with --url: a server has its own"
                raise InvalidOption(f"--{entry.name.replace('_', '-')}", rule, getattr(given, entry.name))
    if sampling.bad_word:
        raise InvalidOption("--bad-word", "cannot be used together with --url", sampling.bad_word)


def _in_process(
    plan: Plan,
    model: TargetChoice,
    proposer: ProposerChoice,
    sampling: SamplingChoice,
    name: str | None,
    keep: Keep,
    *,
    allow_unequal: bool,
) -> Run:
    from gamaneh.bench.run.conduct import conduct
    from gamaneh.bench.run.document import Writer
    from gamaneh.bench.run.in_process import Contestant, engine_sides
    from gamaneh.cli.session import open_engine

    target, engine = open_engine(
        model, proposer, max_batch=model.max_batch or _largest(plan), prefix_cache=model.prefix_cache
    )
    plan = replace(plan, params=sampling.params(lambda word: target.tokenizer.encode(word, special=False)))
    contestant = Contestant(target, engine, proposer.speculation())
    title = name or f"{model.model}, {contestant.speculation.proposer}"
    writer = Writer(title, _models(target, proposer), prefix_cache=model.prefix_cache)
    with count_bar("measuring") as tick:
        return conduct(lambda: engine_sides(contestant, plan), plan, writer, tick, keep, allow_unequal=allow_unequal)


def _over_http(plan: Plan, servers: Servers, name: str | None, keep: Keep, *, allow_unequal: bool) -> Run:
    from gamaneh.bench.run.conduct import conduct
    from gamaneh.bench.run.document import Writer
    from gamaneh.bench.run.over_http import server_sides

    writer = Writer(name or servers.url, (), prefix_cache=True)
    with count_bar("measuring") as tick:
        return conduct(lambda: server_sides(servers, plan), plan, writer, tick, keep, allow_unequal=allow_unequal)


def _largest(plan: Plan) -> int:
    """As many at once as a closed loop asks for; what arrives by the clock is served as `serve` does."""
    from gamaneh.options import EngineOptions

    closed = [int(load.level) for load in plan.loads if load.pattern == "closed"]
    return max(closed, default=EngineOptions().max_batch)


def _models(target: LoadedModel, proposer: ProposerChoice) -> list[ModelMark]:
    from gamaneh.bench.result import ModelMark
    from gamaneh.bench.run.provenance import hash_model
    from gamaneh.cli.session import file_or_name
    from gamaneh.models.loading import resolve

    dtype = str(target.dtype).removeprefix("torch.")
    marks = [ModelMark("target", target.name, hash_model(target.path), dtype)]
    if proposer.draft_model is not None:
        path = resolve(file_or_name(proposer.draft_model))
        marks.append(ModelMark("draft_model", proposer.draft_model, hash_model(path), dtype))
    return [*marks, *(ModelMark("heads", heads, hash_model(Path(heads)), dtype) for heads in proposer.heads or ())]


def _keeper(out: Path | None) -> Keep:
    """Saves what there is after each load, so that nothing is lost when a later one fails."""
    from gamaneh.bench.run.export import write_json

    return (lambda run: None) if out is None else (lambda run: write_json(run, out))


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
