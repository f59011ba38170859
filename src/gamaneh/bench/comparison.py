"""`gamaneh compare`: a bench of one request at a time, as one flat object with the tokens that differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gamaneh.bench.answer import differs
from gamaneh.bench.conduct import conduct
from gamaneh.bench.engines import Contestant, describe_setup, engine_ways
from gamaneh.bench.measure import Bench, BenchPlan, Tick, Traffic
from gamaneh.bench.prompt_set import Prompt
from gamaneh.bench.result import FailedRequest, Group, Load, Run, Setup
from gamaneh.bench.time_limit import TimeLimit
from gamaneh.engine.llm import LLM
from gamaneh.errors import InvalidRequest
from gamaneh.metrics.memory import peak_resident_bytes
from gamaneh.options import SamplingParams


@dataclass(frozen=True, slots=True)
class Mismatch:
    """Where plain and speculative output of one prompt part.

    Args:
        position: first output position that differs.
        plain_token, speculative_token: None where that output had ended.
        logit_gap: between the target's two most likely tokens there; None if it could not be asked.
    """

    prompt: str
    position: int | None
    plain_token: int | None
    speculative_token: int | None
    logit_gap: float | None


@dataclass(frozen=True, slots=True)
class CategoryRow:
    """The numbers of one category."""

    category: str
    prompts: int
    mismatches: int
    speedup: float | None
    acceptance_rate: float
    tokens_per_round: float
    plain_tokens_per_second: float
    speculative_tokens_per_second: float


@dataclass(frozen=True, slots=True)
class Comparison:
    """The verdict over all prompts.

    Args:
        identical: every speculative output, batched ones too, is token for token the plain one; None for samples
            without a seed, which cannot be compared.
        identity_expected: the rule promises that; otherwise it promises the same distribution, or (not
            `exact`) neither.
        mismatches: answers that differ, `mismatch_details` says where.
        requests: answered by both sides.
        rounds: of the speculative side: what the figures rest on.
        speedup, speedup_low, speedup_high: None when no output had two tokens.
        left_out: reason -> requests that are in no figure, on both sides together.
        stopped: why the run ended before its time.
        batch, batch_mismatches: requests that ran at once in the batched check, and outputs that
            differed from plain in it; None without that check.
        peak_memory_bytes: largest resident size of the process.
    """

    identical: bool | None
    identity_expected: bool
    mismatches: int
    prompts: int
    requests: int
    rounds: int
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    acceptance_rate: float
    tokens_per_round: float
    plain_tokens_per_second: float
    speculative_tokens_per_second: float
    setup: Setup
    categories: tuple[CategoryRow, ...]
    mismatch_details: tuple[Mismatch, ...]
    failures: tuple[FailedRequest, ...]
    left_out: dict[str, int]
    stopped: str | None
    batch: int | None
    batch_mismatches: int | None
    peak_memory_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return plain data; the fields of `setup` stand beside the numbers."""
        values = asdict(self)
        return {**values.pop("setup"), **values}


def compare(
    llm: LLM,
    prompts: Sequence[Prompt],
    params: SamplingParams,
    *,
    model: str | None = None,
    chat: bool | None = None,
    rounds: int = 1,
    batch: int | None = None,
    tick: Tick = lambda done, total: None,
    limit: TimeLimit | None = None,
) -> Comparison:
    """Answer every prompt plainly and as `llm` speculates, in turns, and compare.

    Args:
        params: should be greedy or carry a seed; otherwise no two outputs can be expected to agree.
        model: what the user calls the target.
        chat: put prompts into the model's chat template; None does so if there is one.
        batch: also answer all prompts speculatively at once, this many at a time, and hold the outputs
            against the plain ones.
        limit: of the whole run; None sets none.

    Raises:
        InvalidRequest: there is no prompt, or none could be answered.
        KeyboardInterrupt: before anything was measured.
    """
    if not prompts:
        raise InvalidRequest("prompts", "must be at least one", 0)
    load = Load("closed", 1.0, len(prompts), rounds)
    plan = BenchPlan(source="prompts", prompts=prompts, params=params, loads=[load])
    contestant = Contestant(llm.loaded, llm.engine, llm.speculation, chat)
    mismatches: list[int] = []

    async def answer_together(bench: Bench) -> None:
        if batch is not None and bench.stopped is None and plan.comparable:
            mismatches.append(await _batched(bench, batch))

    run = conduct(
        lambda: engine_ways(contestant, plan), plan, "compare", (), tick, afterwards=answer_together, limit=limit
    )
    setup = describe_setup(llm, params, model)
    return summarise(run, setup, prompts, batch if mismatches else None, next(iter(mismatches), None))


async def _batched(bench: Bench, batch: int) -> int:
    """Return how many outputs differ from plain when all prompts are answered at once."""
    way, plan = bench.ways[-1], bench.plan
    plain = [record for record, _ in bench.measured[0].pairs() if record.key.round == 0]
    asks = [plan.ask(record.asked, record.key.slot, speculate=True, salt="together") for record in plain]
    traffic = Traffic()
    await traffic.closed_loop(way.client, asks, batch)
    return sum(differs(record, traffic.records[at]) for at, record in enumerate(plain))


def summarise(
    run: Run, setup: Setup, prompts: Sequence[Prompt], batch: int | None = None, batch_mismatches: int | None = None
) -> Comparison:
    """Return the flat view of a run of one load whose outputs can be compared.

    Raises:
        InvalidRequest: no prompt was answered by both sides.
    """
    (point,) = run.points
    whole, equality = point.whole, run.equality
    if not whole.plain.requests:
        failure = run.failures[0]
        raise InvalidRequest(f"prompt {failure.prompt}", "must be one the model can answer", failure.error)
    differences = () if equality is None else equality.differences
    category_of = {prompt.id: prompt.category for prompt in prompts}
    differing = Counter(category_of[each.prompt] for each in differences)
    groups = {group.name: group for group in point.by("category")} or {prompts[0].category: whole}
    drafts = whole.speculative.speculation
    return Comparison(
        identical=None if equality is None else not differences and not run.failures and not batch_mismatches,
        identity_expected=equality is not None and equality.expected,
        mismatches=len(differences),
        prompts=whole.prompts,
        requests=whole.speculative.requests,
        rounds=(drafts.rounds if drafts else None) or 0,
        speedup=None if whole.speedup is None else whole.speedup.value,
        speedup_low=None if whole.speedup is None else whole.speedup.low,
        speedup_high=None if whole.speedup is None else whole.speedup.high,
        acceptance_rate=(drafts.acceptance_rate if drafts else None) or 0.0,
        tokens_per_round=(drafts.tokens_per_round if drafts else None) or 0.0,
        plain_tokens_per_second=whole.plain.decode_tokens_per_second or 0.0,
        speculative_tokens_per_second=whole.speculative.decode_tokens_per_second or 0.0,
        setup=setup,
        categories=tuple(_row(name, group, differing[name]) for name, group in groups.items()),
        mismatch_details=tuple(
            Mismatch(each.prompt, each.token_position, each.plain_token, each.speculative_token, each.gap)
            for each in differences
        ),
        failures=run.failures,
        left_out=_left_out(whole),
        stopped=run.stopped,
        batch=batch,
        batch_mismatches=batch_mismatches,
        peak_memory_bytes=peak_resident_bytes(),
    )


def _left_out(whole: Group) -> dict[str, int]:
    names = sorted({*whole.plain.left_out, *whole.speculative.left_out})
    return {name: whole.plain.left_out.get(name, 0) + whole.speculative.left_out.get(name, 0) for name in names}


def _row(category: str, group: Group, mismatches: int) -> CategoryRow:
    drafts = group.speculative.speculation
    return CategoryRow(
        category=category,
        prompts=group.prompts,
        mismatches=mismatches,
        speedup=None if group.speedup is None else group.speedup.value,
        acceptance_rate=(drafts.acceptance_rate if drafts else None) or 0.0,
        tokens_per_round=(drafts.tokens_per_round if drafts else None) or 0.0,
        plain_tokens_per_second=group.plain.decode_tokens_per_second or 0.0,
        speculative_tokens_per_second=group.speculative.decode_tokens_per_second or 0.0,
    )
