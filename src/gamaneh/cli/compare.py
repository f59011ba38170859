"""`gamaneh compare`: plain and speculative decoding of a prompt set, alternated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from gamaneh.cli.command import command
from gamaneh.cli.options import ChatFlag, JsonFlag, ModelChoice, ProposerChoice, SamplingChoice
from gamaneh.cli.terminal import count_bar, output, print_json
from gamaneh.errors import InvalidOption

if TYPE_CHECKING:
    from gamaneh.bench.compare import Case
    from gamaneh.bench.comparison import Comparison
    from gamaneh.bench.prompt_set import Prompt
    from gamaneh.engine.llm import LLM
    from gamaneh.options import SamplingParams, SpeculationOptions

_SEED = 0


@command
def compare_modes(
    model: ModelChoice,
    proposer: ProposerChoice,
    sampling: SamplingChoice,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON Lines file of prompts.", show_default="20 prompts that come along")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Take this many prompts.", show_default="all")] = None,
    batch: Annotated[
        int | None,
        typer.Option(min=2, help="Answer all prompts once more, this many at a time.", show_default="do not"),
    ] = None,
    chat: ChatFlag = None,
    as_json: JsonFlag = False,
) -> None:
    """Hold speculative decoding against plain: are the tokens the same, and how much sooner do they come?

    Sampling without a seed takes seed 0 under the rule match, so that the outputs can be compared.
    """
    if proposer.plain:
        raise InvalidOption("--plain", "leaves nothing to compare: plain decoding is always one of the two", True)
    from gamaneh.bench.compare import compare
    from gamaneh.bench.prompt_set import load_prompts

    _seeded(sampling.params(), proposer.speculation())
    chosen = load_prompts(prompts)[:limit]

    from gamaneh.bench.setup import describe_setup
    from gamaneh.cli.session import open_llm
    from gamaneh.options import SpeculationOptions

    llm = open_llm(model, proposer, max_batch=batch or 1)
    params = _seeded(sampling.params(lambda word: llm.tokenizer.encode(word, special=False)), llm.speculation)
    cases = [_case(llm, prompt, chat) for prompt in chosen]
    setup = describe_setup(llm, params, model.model)
    plain = llm.with_speculation(SpeculationOptions())
    with count_bar("comparing") as tick:
        outcome = compare(plain, llm, cases, params, setup, batch=batch, tick=tick)
    output().print(_table(outcome))
    output().print(_verdict(outcome))
    if as_json:
        print_json(outcome.to_json())


def _seeded(params: SamplingParams, speculation: SpeculationOptions) -> SamplingParams:
    """Other rules keep no seed where draft lengths adapt, and never the tokens of plain decoding."""
    keeps = speculation.rule in ("auto", "match")
    return replace(params, seed=_SEED) if keeps and not params.greedy and params.seed is None else params


def _case(llm: LLM, prompt: Prompt, chat: bool | None) -> Case:
    from gamaneh.bench.compare import Case
    from gamaneh.bench.setup import as_tokens

    return Case(prompt.id, prompt.category, as_tokens(llm, prompt.prompt, chat), prompt.reference)


def _table(outcome: Comparison) -> Table:
    table = Table(
        "category",
        "prompts",
        "differ",
        "speed-up",
        "acceptance",
        "tokens / round",
        "plain tok/s",
        "spec. tok/s",
        box=None,
    )
    for row in outcome.categories:
        table.add_row(
            row.category,
            str(row.prompts),
            str(row.mismatches),
            _times(row.speedup),
            f"{row.acceptance_rate:.1%}",
            f"{row.tokens_per_round:.2f}",
            f"{row.plain_tokens_per_second:.1f}",
            f"{row.speculative_tokens_per_second:.1f}",
        )
    return table


def _verdict(outcome: Comparison) -> str:
    setup = outcome.setup
    lines = [
        f"identical: {'yes' if outcome.identical else 'no'} ({outcome.mismatches} of {outcome.prompts} outputs differ)",
        f"speed-up: {_times(outcome.speedup)} (95 % interval {_times(outcome.speedup_low)}"
        f" to {_times(outcome.speedup_high)}), geometric mean over prompts of plain / speculative time per token",
        f"rule {setup.rule} ({'exact' if setup.exact else 'approximate'}), proposer {setup.proposer},"
        f" k {'adapts' if setup.k is None else setup.k}, {setup.dtype} on {setup.device}, {setup.threads} threads,"
        f" peak memory {outcome.peak_memory_bytes / 1e6:.0f} MB",
    ]
    lines += _differences(outcome)
    return "\n".join(lines)


def _differences(outcome: Comparison) -> Sequence[str]:
    lines = [
        f"  {detail.prompt} differs at token {detail.position}: {detail.plain_token} plain,"
        f" {detail.speculative_token} speculative"
        + (f"; gap of the two largest logits {detail.logit_gap:.4f}" if detail.logit_gap is not None else "")
        for detail in outcome.mismatch_details
    ]
    lines += [f"  {failure.prompt} failed: {failure.error}" for failure in outcome.failures]
    if outcome.batch is not None:
        lines.append(f"in batches of {outcome.batch}: {outcome.batch_mismatches} of {outcome.prompts} outputs differ")
    if not outcome.identity_expected:
        lines.append(
            "this rule promises the same distribution, not the same tokens"
            if outcome.setup.exact
            else "this rule is approximate and promises no equality"
        )
    return lines


def _times(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}x"
