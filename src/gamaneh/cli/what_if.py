"""`gamaneh what-if`: what speculation would have done for recorded requests, without running the target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gamaneh.cli.advise import encoder, load_target
from gamaneh.cli.command import command
from gamaneh.cli.option_groups import ChatFlag, JsonFlag, ModelChoice
from gamaneh.cli.terminal import notices, output, print_json
from gamaneh.errors import GamanehError, InvalidOption

if TYPE_CHECKING:
    from gamaneh.bench.advise.costs import Surface
    from gamaneh.bench.advise.whatif import Scenario
    from gamaneh.bench.advise.workload import WorkloadRequest
    from gamaneh.engine.llm import LLM
    from gamaneh.models.loading import LoadedModel

DRAFT_COST = 0.1
LARGEST_K = 15


@command
def replay_traffic(
    traffic: Annotated[
        Path, typer.Argument(metavar="TRAFFIC", help="JSON Lines file of prompts and answers.", show_default=False)
    ],
    model: ModelChoice,
    draft_model: Annotated[str | None, typer.Option(help="Replay this draft model as well.")] = None,
    method: Annotated[
        list[str] | None,
        typer.Option(help="Replay these proposers only; may be repeated.", show_default="all that can be replayed"),
    ] = None,
    acceptance: Annotated[
        list[float] | None,
        typer.Option(
            help="Assume a proposer with this chance of each candidate; may be repeated.", show_default="none"
        ),
    ] = None,
    draft_cost: Annotated[
        float, typer.Option(min=0.0, help="Of an assumed proposer: time of a candidate, in plain rounds.")
    ] = DRAFT_COST,
    costs: Annotated[
        Path | None,
        typer.Option(
            help="Advice of `gamaneh advise --out`, for what rounds cost.", show_default="every round as a plain one"
        ),
    ] = None,
    batch: Annotated[
        list[int] | None,
        typer.Option(min=1, help="With --costs: requests at once; may be repeated.", show_default="1"),
    ] = None,
    largest_k: Annotated[int, typer.Option(min=1, max=64, help="Longest drafts.")] = LARGEST_K,
    chat: ChatFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Replay recorded requests against proposers: what would they have guessed, and what would it have brought?

    Speed-ups are those of decoding, prompts left out. Without --costs they are what speculation could bring at
    most: drafts and their verification are taken to cost nothing.
    """
    _check(acceptance or (), batch or (), costs)
    from gamaneh.bench.advise.advice import read_steps
    from gamaneh.bench.advise.workload import as_requests, read_traffic
    from gamaneh.cli.advice_tables import show_scenarios

    exchanges = read_traffic(traffic)
    steps = None if costs is None else read_steps(costs)
    target = load_target(model)
    longest = min(target.config.max_context, model.max_context or target.config.max_context)
    requests = as_requests(
        exchanges,
        encoder(target, chat),
        lambda text: target.tokenizer.encode(text, special=False),
        max_tokens=longest,
        max_context=longest,
    )
    scenarios = [
        *_replayed(
            _open(target, draft_model, model, method or ()), method or (), requests, largest_k, steps, batch or ()
        ),
        *_assumed(requests, acceptance or (), draft_cost, largest_k, steps, batch or ()),
    ]
    if not scenarios:
        raise InvalidOption("--method", "must leave a proposer that can be replayed, or --acceptance be given", method)
    show_scenarios(output(), scenarios, batch or ())
    if as_json:
        print_json({"requests": len(requests), "scenarios": [asdict(one) for one in scenarios]})


def _check(acceptance: Sequence[float], batches: Sequence[int], costs: Path | None) -> None:
    for chance in acceptance:
        if not 0.0 <= chance <= 1.0:
            raise InvalidOption("--acceptance", "must be from 0 to 1", chance)
    if batches and costs is None:
        raise InvalidOption("--batch", "needs --costs: what more requests at once cost has to be measured", batches)


def _open(target: LoadedModel, draft_model: str | None, model: ModelChoice, methods: Sequence[str]) -> LLM:
    """An engine with the proposers that are to be replayed."""
    from gamaneh.bench.advise.candidate import asking_for
    from gamaneh.cli.session import file_or_name
    from gamaneh.engine.llm import LLM
    from gamaneh.options import SpeculationOptions

    draft = None if draft_model is None else file_or_name(draft_model)
    options = model.engine(max_batch=1)
    llm = LLM(target, draft_model=draft, speculation=SpeculationOptions(), options=options)
    for name in methods:
        if name not in llm.engine.proposers:
            llm = LLM(target, draft_model=llm.draft, speculation=asking_for(name), options=options)
    return llm


def _replayed(
    llm: LLM,
    methods: Sequence[str],
    requests: Sequence[WorkloadRequest],
    k: int,
    steps: Surface | None,
    batches: Sequence[int],
) -> Iterator[Scenario]:
    """Those that cannot be replayed are named."""
    from gamaneh.bench.advise.whatif import replay, replay_costs, scenario

    engine = llm.engine
    for name in methods or engine.proposers:
        try:
            found = replay(engine.proposers[name], requests, k, engine.backend.caps.vocab_size, _references(llm))
        except GamanehError as error:
            if methods:
                raise
            notices().print(f"{name} is left out: {error}")
            continue
        costs = replay_costs(steps, found.draft_seconds)
        yield scenario(name, found.traces, costs, replayed=True, batches=batches)


def _references(llm: LLM) -> Any:
    return lambda text: llm.tokenizer.encode(text, special=False)


def _assumed(
    requests: Sequence[WorkloadRequest],
    acceptance: Sequence[float],
    draft_cost: float,
    k: int,
    steps: Surface | None,
    batches: Sequence[int],
) -> Iterator[Scenario]:
    from gamaneh.bench.advise.whatif import assume, assumed_costs, scenario

    costs = assumed_costs(steps, draft_cost)
    for chance in acceptance:
        yield scenario(f"acceptance {chance:g}", assume(requests, chance, k), costs, replayed=False, batches=batches)
