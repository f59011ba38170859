"""`gamaneh compare`: plain and speculative decoding of a prompt set, one request at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from gamaneh.bench.time_limit import MINUTES, TimeLimit
from gamaneh.cli.bench import exit_early, interruptible
from gamaneh.cli.bench_options import CorePrompts, ShortSampling
from gamaneh.cli.bench_table import partial, percent, sign, times
from gamaneh.cli.command import command
from gamaneh.cli.option_groups import ChatFlag, JsonFlag, Minutes, ModelChoice, ProposerChoice
from gamaneh.cli.terminal import count_bar, output, print_json
from gamaneh.errors import InvalidOption

if TYPE_CHECKING:
    from gamaneh.bench.comparison import Comparison
    from gamaneh.options import SamplingParams, SpeculationOptions

_SEED = 0


@command
def compare_modes(
    model: ModelChoice,
    proposer: ProposerChoice,
    sampling: ShortSampling,
    prompts: CorePrompts,
    batch: Annotated[
        int | None,
        typer.Option(min=2, help="Answer all prompts once more, this many at a time.", show_default="do not"),
    ] = None,
    chat: ChatFlag = None,
    minutes: Minutes = MINUTES,
    as_json: JsonFlag = False,
) -> None:
    """Hold speculative decoding against plain: are the tokens the same, and how much sooner do they come?

    Sampling without a seed takes seed 0 under the rule match, so that the outputs can be compared. Ctrl-C, or the end
    of --minutes, ends the run with what there is so far; Ctrl-C with exit code 130.
    """
    limit = TimeLimit(minutes)
    if proposer.plain:
        raise InvalidOption("--plain", "leaves nothing to compare: plain decoding is always one of the two", True)

    proposer.speculation().verify_seed(_seeded(sampling.params(), proposer.speculation()))
    chosen = prompts.read().prompts

    from gamaneh.bench.comparison import compare
    from gamaneh.cli.session import open_llm

    with interruptible():
        llm = open_llm(model, proposer, max_batch=batch or 1)
        params = _seeded(sampling.params(lambda word: llm.tokenizer.encode(word, special=False)), llm.speculation)
        with count_bar("comparing", limit) as tick:
            outcome = compare(llm, chosen, params, model=model.model, chat=chat, batch=batch, tick=tick, limit=limit)
    output().print(_table(outcome))
    output().print("\n".join(_verdict(outcome, len(chosen))), markup=False)
    if as_json:
        print_json(outcome.to_json())
    exit_early(outcome.stopped)


def _seeded(params: SamplingParams, speculation: SpeculationOptions) -> SamplingParams:
    """Other rules keep no seed where draft lengths adapt, and never the tokens of plain decoding."""
    keeps = speculation.rule in ("auto", "match")
    return replace(params, seed=_SEED) if keeps and not params.greedy and params.seed is None else params


def _table(outcome: Comparison) -> Table:
    mark = sign(not outcome.setup.exact)
    ratios = (f"{mark}speed-up", f"{mark}acceptance", f"{mark}tokens / round")
    table = Table("category", "prompts", "differ", *ratios, "plain tok/s", f"{mark}spec. tok/s", box=None)
    for row in outcome.categories:
        table.add_row(
            row.category,
            str(row.prompts),
            str(row.mismatches),
            times(row.speedup),
            percent(row.acceptance_rate),
            f"{row.tokens_per_round:.2f}",
            f"{row.plain_tokens_per_second:.1f}",
            f"{row.speculative_tokens_per_second:.1f}",
        )
    return table


def _verdict(outcome: Comparison, planned: int) -> Iterator[str]:
    setup = outcome.setup
    mark = "" if setup.exact else "approximate "
    if outcome.identical is None:
        yield "outputs: sampled without a seed, so that no two can be compared"
    else:
        identical = "yes" if outcome.identical else "no"
        yield f"identical: {identical} ({outcome.mismatches} of {outcome.prompts} outputs differ)"
    yield (
        f"{mark}speed-up: {times(outcome.speedup)} (95 % interval {times(outcome.speedup_low)}"
        f" to {times(outcome.speedup_high)}), geometric mean over prompts of plain / speculative time per token"
    )
    yield (
        f"rule {setup.rule} ({'exact' if setup.exact else 'approximate'}), proposer {setup.proposer},"
        f" k {'adapts' if setup.k is None else setup.k}, {setup.dtype} on {setup.device}, {setup.threads} threads,"
        f" peak memory {outcome.peak_memory_bytes / 1e6:.0f} MB"
    )
    for detail in outcome.mismatch_details:
        gap = f"; gap of the two largest logits {detail.logit_gap:.4f}" if detail.logit_gap is not None else ""
        yield (
            f"  {detail.prompt} differs at token {detail.position}: {detail.plain_token} plain,"
            f" {detail.speculative_token} speculative{gap}"
        )
    for failure in outcome.failures:
        yield f"  {failure.prompt} failed ({failure.side}): {failure.error}"
    if outcome.left_out:
        yield f"left out: {', '.join(f'{reason} {count}' for reason, count in outcome.left_out.items())}"
    if outcome.batch is not None:
        yield f"in batches of {outcome.batch}: {outcome.batch_mismatches} of {outcome.prompts} outputs differ"
    if not outcome.identity_expected:
        yield (
            "this rule promises the same distribution, not the same tokens"
            if setup.exact
            else "~ this rule is approximate and promises no equality: the speculative outputs are other outputs"
        )
    if outcome.stopped is not None:
        yield partial(outcome.stopped, outcome.requests, planned, outcome.rounds)
