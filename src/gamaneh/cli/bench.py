"""`gamaneh bench`: plain against speculative decoding, measured as it should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gamaneh.bench.time_limit import INTERRUPTED, MINUTES, TimeLimit
from gamaneh.cli.bench_options import BenchServers, LoadChoice, Objectives, PromptChoice, ShortSampling, TargetChoice
from gamaneh.cli.bench_table import report
from gamaneh.cli.command import EXIT_INTERRUPTED, command
from gamaneh.cli.option_groups import JsonFlag, Minutes, ProposerChoice
from gamaneh.cli.terminal import count_bar, notices, output, print_json
from gamaneh.errors import InvalidOption

if TYPE_CHECKING:
    from gamaneh.bench.measure import BenchPlan
    from gamaneh.bench.result import ModelMark, Run
    from gamaneh.bench.servers import Servers
    from gamaneh.models.loading import LoadedModel

    Keep = Callable[[Run], None]

EXIT_PARTIAL = 1
"""Exit code when something was measured, but not everything went well."""


@command
def run_bench(
    model: TargetChoice,
    proposer: ProposerChoice,
    server: BenchServers,
    sampling: ShortSampling,
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
    minutes: Minutes = MINUTES,
    as_json: JsonFlag = False,
) -> None:
    """Measure plain against speculative decoding: the same requests, in turns, with intervals and warnings.

    Exit code 1: not everything was answered, or outputs differ that must not. Ctrl-C, or the end of
    --minutes, ends the run with what there is so far; Ctrl-C with exit code 130. Loads share the minutes.
    """
    limit = TimeLimit(minutes)
    from gamaneh.bench.answer import went_wrong
    from gamaneh.bench.conduct import rounded

    servers = server.servers()
    _refuse_mixtures(servers, model, proposer, sampling)
    plan = _plan(prompts, load, objectives, sampling)
    keep = _keeper(out, csv)
    with interruptible():
        run = (
            _in_process(plan, model, proposer, sampling, name, keep, limit, allow_unequal=allow_unequal)
            if servers is None
            else _over_http(plan, servers, name, keep, limit, allow_unequal=allow_unequal)
        )
    keep(run)
    report(output(), run)
    if as_json:
        print_json(rounded(run.to_json()))
    exit_early(run.stopped)
    if went_wrong(run):
        raise typer.Exit(EXIT_PARTIAL)


@contextmanager
def interruptible() -> Iterator[None]:
    """End the program with exit code 130 and one line when it is interrupted before anything was measured."""
    try:
        yield
    except KeyboardInterrupt:
        notices().print("gamaneh: interrupted before anything was measured", markup=False)
        raise typer.Exit(EXIT_INTERRUPTED) from None


def exit_early(stopped: str | None) -> None:
    """End the program with exit code 130 if a run was interrupted."""
    if stopped == INTERRUPTED:
        raise typer.Exit(EXIT_INTERRUPTED)


def _plan(prompts: PromptChoice, load: LoadChoice, objectives: Objectives, sampling: ShortSampling) -> BenchPlan:
    from gamaneh.bench.measure import BenchPlan

    file = prompts.read()
    return BenchPlan(
        source=file.source,
        prompts=file.prompts,
        params=sampling.params(),
        loads=load.loads(file),
        sweep=load.sweep,
        warmups=load.warmups,
        seed=load.order_seed,
        recorded=file.recorded,
        slo=objectives.slo(),
        price=objectives.dated_price(),
    )


def _refuse_mixtures(
    servers: Servers | None, model: TargetChoice, proposer: ProposerChoice, sampling: ShortSampling
) -> None:
    if proposer.plain:
        raise InvalidOption("--plain", "leaves nothing to compare: plain decoding is always one of the two", True)
    proposer.speculation().verify_seed(sampling.params())
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
    plan: BenchPlan,
    model: TargetChoice,
    proposer: ProposerChoice,
    sampling: ShortSampling,
    name: str | None,
    keep: Keep,
    limit: TimeLimit,
    *,
    allow_unequal: bool,
) -> Run:
    from gamaneh.bench.conduct import conduct
    from gamaneh.bench.engines import Contestant, engine_ways
    from gamaneh.cli.session import open_engine

    target, engine = open_engine(model, proposer, max_batch=model.max_batch or _largest(plan))
    plan = replace(plan, params=sampling.params(lambda word: target.tokenizer.encode(word, special=False)))
    contestant = Contestant(target, engine, proposer.speculation())
    title = name or f"{model.model}, {contestant.speculation.proposer}"
    models = _models(target, proposer)
    with count_bar("measuring", limit) as tick:
        return conduct(
            lambda: engine_ways(contestant, plan),
            plan,
            title,
            models,
            tick,
            keep,
            allow_unequal=allow_unequal,
            limit=limit,
        )


def _over_http(
    plan: BenchPlan, servers: Servers, name: str | None, keep: Keep, limit: TimeLimit, *, allow_unequal: bool
) -> Run:
    from gamaneh.bench.conduct import conduct
    from gamaneh.bench.servers import server_ways

    title = name or servers.url
    with count_bar("measuring", limit) as tick:
        return conduct(
            lambda: server_ways(servers, plan),
            plan,
            title,
            (),
            tick,
            keep,
            allow_unequal=allow_unequal,
            limit=limit,
        )


def _largest(plan: BenchPlan) -> int:
    """As many at once as a closed loop asks for; what arrives by the clock is served as `serve` does."""
    from gamaneh.options import EngineOptions

    closed = [int(load.level) for load in plan.loads if load.pattern == "closed"]
    return max(closed, default=EngineOptions().max_batch)


def _models(target: LoadedModel, proposer: ProposerChoice) -> list[ModelMark]:
    from gamaneh.bench.machine import hash_model
    from gamaneh.bench.result import ModelMark
    from gamaneh.cli.session import file_or_name
    from gamaneh.heads.locate import locate_heads
    from gamaneh.models.loading import resolve

    dtype = str(target.dtype).removeprefix("torch.")
    marks = [ModelMark("target", target.name, hash_model(target.path), dtype)]
    if proposer.draft_model is not None:
        path = resolve(file_or_name(proposer.draft_model))
        marks.append(ModelMark("draft_model", proposer.draft_model, hash_model(path), dtype))
    heads = proposer.heads or ()
    return [*marks, *(ModelMark("heads", name, hash_model(locate_heads(name)), dtype) for name in heads)]


def _keeper(out: Path | None, csv: Path | None) -> Keep:
    """Saves what there is after each load, so that nothing is lost when a later one fails."""
    from gamaneh.bench.conduct import check_folder, write_csv, write_json

    writers = [(path, write) for path, write in ((out, write_json), (csv, write_csv)) if path is not None]
    for path, _ in writers:
        check_folder(path)

    def keep(run: Run) -> None:
        for path, write in writers:
            write(run, path)

    return keep
