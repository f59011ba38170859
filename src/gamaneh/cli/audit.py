"""`gamaneh audit`: does speculation change what this target writes?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from gamaneh.bench.time_limit import MINUTES, TimeLimit
from gamaneh.cli.bench import exit_early, interruptible
from gamaneh.cli.command import command
from gamaneh.cli.option_groups import ChatFlag, JsonFlag, Minutes, ModelChoice, ProposerChoice, SamplingChoice
from gamaneh.cli.terminal import Tick, count_bar, output, print_json
from gamaneh.errors import InvalidOption

if TYPE_CHECKING:
    from gamaneh.bench.audit.findings import Audit, AuditCheck
    from gamaneh.bench.audit.subject import Case
    from gamaneh.bench.prompt_set import Prompt
    from gamaneh.engine.llm import LLM

_EXIT_CODES = {"fail": 1, "inconclusive": 3}
"""Beside 0 for pass and 2 for a mistake in what was asked."""

_DRAFT_LENGTH = 4
_MAX_TOKENS = 64
_TEMPERATURE = 1.0
_LISTED_DIFFERENCES = 5


@command
def audit_losslessness(
    model: ModelChoice,
    proposer: ProposerChoice,
    sampling: SamplingChoice,
    prompts: Annotated[
        Path | None, typer.Option(help="JSON Lines file of prompts.", show_default="prompts that come along")
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Take this many prompts, spread over the set.")] = 8,
    samples: Annotated[int, typer.Option(min=2, help="Draws of each prompt for the statistical test.")] = 64,
    sample_tokens: Annotated[int, typer.Option(min=2, help="Tokens of each draw.")] = 8,
    batch: Annotated[int, typer.Option(min=2, help="Most requests that run at once.")] = 16,
    chat: ChatFlag = None,
    minutes: Minutes = MINUTES,
    as_json: JsonFlag = False,
) -> None:
    """Check that speculation changes nothing of what the target writes, and show the evidence.

    Three checks: greedy tokens equal those of plain decoding; seeded tokens do; sampled output follows the
    target's own probabilities. Each is run once more with a fault planted on purpose, which it must find.
    Unless set, temperature is 1, drafts have 4 candidates and outputs at most 64 tokens. Where
    --minutes do not suffice, fewer samples are drawn. The exit code is 0 for pass, 1 for fail, 3 when the evidence
    does not suffice. Ctrl-C ends the run with the checks that are done and exit code 130.
    """
    time_limit = TimeLimit(minutes)
    if proposer.plain:
        raise InvalidOption("--plain", "leaves nothing to audit", True)
    from gamaneh.bench.prompt_set import load_prompts

    proposer, sampling = _with_drafts(proposer), _with_defaults(sampling)
    sampling.params()
    chosen = _spread(load_prompts(prompts), limit)

    from gamaneh.bench.audit.lossless import AuditEffort, audit
    from gamaneh.bench.audit.subject import Subject
    from gamaneh.bench.engines import describe_setup
    from gamaneh.cli.session import open_llm
    from gamaneh.options import SpeculationOptions

    effort = AuditEffort(samples, sample_tokens)
    with interruptible():
        llm = open_llm(model, proposer, max_batch=batch)
        params = sampling.params(lambda word: llm.tokenizer.encode(word, special=False))
        plain = llm.with_speculation(SpeculationOptions())
        cases = [_case(llm, prompt, chat) for prompt in chosen]
        with count_bar("auditing", time_limit) as tick:
            count = _Count(tick, effort.answers(len(cases), not params.greedy))
            subject = Subject(plain.engine, llm.engine, cases, sampling.seed or 0, count)
            outcome = audit(subject, params, describe_setup(llm, params, model.model), effort, time_limit)
            count.finish()
    output().print(_table(outcome))
    output().print("\n".join(_evidence(outcome)))
    if as_json:
        print_json(outcome.to_json())
    exit_early(outcome.stopped)
    if outcome.verdict in _EXIT_CODES:
        raise typer.Exit(_EXIT_CODES[outcome.verdict])


class _Count:
    """Tells a progress bar that one more answer is there."""

    def __init__(self, tick: Tick, total: int) -> None:
        self._tick, self._total, self._done = tick, total, 0

    def __call__(self) -> None:
        self._done += 1
        self._tick(self._done, self._total)

    def finish(self) -> None:
        """Fewer answers were needed than at most."""
        self._tick(self._total, self._total)


def _with_drafts(proposer: ProposerChoice) -> ProposerChoice:
    """A fixed draft length: one that adapts may seldom draft, and then little is put to the test."""
    if proposer.draft_length is not None:
        return proposer
    longest = proposer.max_draft_length or _DRAFT_LENGTH
    return replace(proposer, draft_length=min(_DRAFT_LENGTH, longest))


def _with_defaults(sampling: SamplingChoice) -> SamplingChoice:
    return replace(
        sampling,
        temperature=_TEMPERATURE if sampling.temperature is None else sampling.temperature,
        max_tokens=_MAX_TOKENS if sampling.max_tokens is None else sampling.max_tokens,
    )


def _spread(prompts: Sequence[Prompt], limit: int) -> list[Prompt]:
    """At most `limit` prompts, from all over the set, as its categories stand in groups."""
    count = min(limit, len(prompts))
    return [prompts[at * len(prompts) // count] for at in range(count)]


def _case(llm: LLM, prompt: Prompt, chat: bool | None) -> Case:
    from gamaneh.bench.audit.subject import Case
    from gamaneh.bench.engines import as_tokens

    reference = llm.tokenizer.encode(prompt.reference, special=False) if prompt.reference else []
    return Case(prompt.id, as_tokens(llm.tokenizer, prompt.prompt, chat), reference)


def _table(outcome: Audit) -> Table:
    table = Table("check", "rule", "outcome", "tokens", "drafted", "accepted", "planted fault", box=None)
    for check in outcome.checks:
        seen = check.exposure
        counts = map(str, (seen.tokens, seen.drafted, seen.accepted))
        table.add_row(check.name, check.rule or "-", check.outcome, *counts, _planted(check))
    return table


def _planted(check: AuditCheck) -> str:
    if check.planted is None:
        return "-"
    return "found" if check.planted.found else "not found"


def _evidence(outcome: Audit) -> Iterator[str]:
    for check in outcome.checks:
        yield f"{check.name}: {check.outcome}: {check.reason}"
        yield from _tests(check)
        yield from _differences(check)
    setup = outcome.setup
    yield (
        f"{setup.proposer} for {setup.model}, k {setup.k}, {setup.dtype} on {setup.device},"
        f" {'shape-invariant' if setup.invariant else 'free shapes'}, seeds from {outcome.seed}"
    )
    if outcome.stopped is not None:
        seen = [check.exposure for check in outcome.checks]
        rounds, answers = sum(one.rounds for one in seen), sum(one.outputs for one in seen)
        yield f"partial: stopped early ({outcome.stopped}); rests on {answers} answers, {rounds} rounds"
    yield f"verdict: {outcome.verdict}"


def _tests(check: AuditCheck) -> Iterator[str]:
    for test in check.tests:
        sign = "below" if test.failed else "above"
        yield f"  {test.name}: p {test.p_value:.2g}, {sign} the bound {test.bound:.2g} ({test.count} values)"
    if check.impossible:
        yield f"  tokens to which the target gives no probability: {check.impossible}"


def _differences(check: AuditCheck) -> Iterator[str]:
    for part in check.differences[:_LISTED_DIFFERENCES]:
        margin = "unknown" if part.margin is None else f"{part.margin:.4f}"
        yield (
            f"  {part.prompt}, {part.way}: differs at token {part.position}: {part.plain_token} plain,"
            f" {part.speculative_token} speculative; margin {margin}{', a tie' if part.tie else ''}"
            + (f"; failed: {part.error}" if part.error else "")
        )
    if len(check.differences) > _LISTED_DIFFERENCES:
        yield f"  and {len(check.differences) - _LISTED_DIFFERENCES} more"
    if check.rounding is not None:
        yield f"  plain decoding's own margins change by up to {check.rounding:.4f} when its batch changes"
