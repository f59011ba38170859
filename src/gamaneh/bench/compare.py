"""Plain against speculative decoding of the same prompts, alternated: the same tokens? how much sooner?

Formulas
    time per token  (E2E seconds - seconds to the first token) / (tokens - 1)
    ratio           plain time per token / speculative time per token, of one prompt
    speedup         geometric mean of the ratios, with a 95 % bootstrap interval over the prompts
    tokens/s        sum of (tokens - 1) / sum of (E2E seconds - seconds to the first token)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from gamaneh.bench.comparison import Comparison, Failure, Mismatch, Row, Setup
from gamaneh.bench.statistics import geometric_mean
from gamaneh.errors import InvalidRequest
from gamaneh.metrics.collector import SpeculationStats
from gamaneh.metrics.memory import peak_resident_bytes
from gamaneh.options import SamplingParams
from gamaneh.prefix import common_prefix

if TYPE_CHECKING:
    from gamaneh.engine.llm import Generation

_WARM_UP, _FIRST = "warm-up", "0"
"""Salts of the pair that is dropped, and of cases that come for the first time."""

Tick = Callable[[int, int], None]
"""Called with generations done and generations in all."""


class Generator(Protocol):
    """What is compared: an `LLM`, or anything that generates like one."""

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        params: SamplingParams,
        *,
        references: Sequence[str | None] | None = None,
        salt: str = "",
    ) -> list[Generation]: ...


@dataclass(frozen=True, slots=True)
class Case:
    """One prompt as it goes to the model: text or token ids."""

    id: str
    category: str
    prompt: str | Sequence[int]
    reference: str | None = None


@dataclass(frozen=True, slots=True)
class _Turn:
    """A case with the salt that it is asked under."""

    case: Case
    salt: str = _FIRST


@dataclass(frozen=True, slots=True)
class _Pair:
    case: Case
    plain: Generation
    speculative: Generation

    @property
    def error(self) -> str | None:
        return self.plain.error or self.speculative.error

    @property
    def differs(self) -> bool:
        return list(self.plain.tokens) != list(self.speculative.tokens)

    @property
    def ratio(self) -> float | None:
        plain, speculative = _seconds_per_token(self.plain), _seconds_per_token(self.speculative)
        return plain / speculative if plain and speculative else None


def compare(
    plain: Generator,
    speculative: Generator,
    cases: Sequence[Case],
    params: SamplingParams,
    setup: Setup,
    *,
    batch: int | None = None,
    tick: Tick = lambda done, total: None,
) -> Comparison:
    """Answer every prompt both ways and compare.

    The order within a pair is swapped from one prompt to the next, so that a drift of the
    machine's speed does not favour either. One pair runs before, as a warm-up, and is dropped. It has a
    salt of its own, as a case has that comes again: whatever remembers answers must not know them by heart.

    Args:
        params: should be greedy or carry a seed; otherwise no two outputs can be expected to agree.
        batch: also answer all prompts speculatively at once, this many at a time by the engine's own
            limit, and hold the outputs against the plain ones.
        tick: called after each generation.

    Raises:
        InvalidRequest: there is no prompt, or none could be answered.
    """
    if not cases:
        raise InvalidRequest("prompts", "must be at least one", 0)
    total = 2 * len(cases) + 2 + (len(cases) if batch else 0)
    pairs: list[_Pair] = []
    turns = [_Turn(cases[0], _WARM_UP), *_turns(cases)]
    for done, pair in enumerate(_alternate(plain, speculative, turns, params), start=1):
        pairs.append(pair)
        tick(2 * done, total)
    measured = [pair for pair in pairs[1:] if pair.error is None]
    failures = tuple(Failure(pair.case.id, pair.error) for pair in pairs[1:] if pair.error is not None)
    if not measured:
        raise InvalidRequest(f"prompt {failures[0].prompt}", "must be one the model can answer", failures[0].error)
    batch_mismatches = None if batch is None else _batched(speculative, measured, params)
    mismatches = tuple(_mismatch(plain, pair, params) for pair in measured if pair.differs)
    tick(total, total)
    return _summarise(measured, mismatches, failures, setup, params, batch, batch_mismatches)


def _turns(cases: Sequence[Case]) -> Iterator[_Turn]:
    """Each case, with a new salt whenever it comes again."""
    times: Counter[str] = Counter()
    for case in cases:
        yield _Turn(case, str(times[case.id]))
        times[case.id] += 1


def _alternate(
    plain: Generator, speculative: Generator, turns: Sequence[_Turn], params: SamplingParams
) -> Iterator[_Pair]:
    for number, turn in enumerate(turns):
        if number % 2 == 0:
            first = _answer(plain, turn, params)
            yield _Pair(turn.case, first, _answer(speculative, turn, params))
        else:
            first = _answer(speculative, turn, params)
            yield _Pair(turn.case, _answer(plain, turn, params), first)


def _answer(generator: Generator, turn: _Turn, params: SamplingParams) -> Generation:
    case = turn.case
    return generator.generate([case.prompt], params, references=[case.reference], salt=turn.salt)[0]


def _batched(speculative: Generator, pairs: Sequence[_Pair], params: SamplingParams) -> int:
    """Outputs that differ from plain when all prompts are answered at once."""
    cases = [pair.case for pair in pairs]
    answers = speculative.generate(
        [case.prompt for case in cases], params, references=[case.reference for case in cases], salt=_FIRST
    )
    return sum(list(answer.tokens) != list(pair.plain.tokens) for answer, pair in zip(answers, pairs, strict=True))


def _mismatch(plain: Generator, pair: _Pair, params: SamplingParams) -> Mismatch:
    ours, theirs = pair.plain.tokens, pair.speculative.tokens
    position = common_prefix(ours, theirs)
    return Mismatch(
        prompt=pair.case.id,
        position=position,
        plain_token=ours[position] if position < len(ours) else None,
        speculative_token=theirs[position] if position < len(theirs) else None,
        logit_gap=_logit_gap(plain, pair.case, params, position),
    )


def _logit_gap(plain: Generator, case: Case, params: SamplingParams, position: int) -> float | None:
    """Difference of the two largest logits at an output position, asked again after the timing."""
    answer = _answer(plain, _Turn(case), replace(params, max_tokens=position + 1, min_tokens=0, logprobs=2))
    if len(answer.logprobs) <= position:
        return None
    best, second, *_ = sorted((logprob for _, logprob in answer.logprobs[position].top), reverse=True)
    return best - second


def _summarise(
    pairs: Sequence[_Pair],
    mismatches: tuple[Mismatch, ...],
    failures: tuple[Failure, ...],
    setup: Setup,
    params: SamplingParams,
    batch: int | None,
    batch_mismatches: int | None,
) -> Comparison:
    ratios = _ratios(pairs)
    interval = geometric_mean(ratios) if ratios else None
    stats = _speculation(pairs)
    return Comparison(
        identical=not mismatches and not failures and not batch_mismatches,
        identity_expected=(params.greedy and setup.exact) or setup.rule == "match",
        mismatches=len(mismatches),
        prompts=len(pairs),
        speedup=None if interval is None else interval.value,
        speedup_low=None if interval is None else interval.low,
        speedup_high=None if interval is None else interval.high,
        acceptance_rate=stats.acceptance_rate,
        tokens_per_round=stats.tokens_per_round,
        plain_tokens_per_second=_tokens_per_second([pair.plain for pair in pairs]),
        speculative_tokens_per_second=_tokens_per_second([pair.speculative for pair in pairs]),
        setup=setup,
        categories=tuple(_rows(pairs)),
        mismatch_details=mismatches,
        failures=failures,
        batch=batch,
        batch_mismatches=batch_mismatches,
        peak_memory_bytes=peak_resident_bytes(),
    )


def _rows(pairs: Sequence[_Pair]) -> Iterator[Row]:
    for category in dict.fromkeys(pair.case.category for pair in pairs):
        chosen = [pair for pair in pairs if pair.case.category == category]
        ratios, stats = _ratios(chosen), _speculation(chosen)
        yield Row(
            category=category,
            prompts=len(chosen),
            mismatches=sum(pair.differs for pair in chosen),
            speedup=geometric_mean(ratios).value if ratios else None,
            acceptance_rate=stats.acceptance_rate,
            tokens_per_round=stats.tokens_per_round,
            plain_tokens_per_second=_tokens_per_second([pair.plain for pair in chosen]),
            speculative_tokens_per_second=_tokens_per_second([pair.speculative for pair in chosen]),
        )


def _ratios(pairs: Sequence[_Pair]) -> list[float]:
    return [pair.ratio for pair in pairs if pair.ratio is not None]


def _speculation(pairs: Sequence[_Pair]) -> SpeculationStats:
    stats = SpeculationStats()
    for pair in pairs:
        for report in pair.speculative.reports:
            stats.add(report)
    return stats


def _decode_seconds(answer: Generation) -> float:
    return answer.seconds - answer.first_token_seconds


def _seconds_per_token(answer: Generation) -> float | None:
    """None when there is nothing to divide: fewer than two tokens, or all of them in one step."""
    return _decode_seconds(answer) / (len(answer.tokens) - 1) if len(answer.tokens) > 1 else None


def _tokens_per_second(answers: Sequence[Generation]) -> float:
    """0 when nothing was decoded after the first tokens."""
    seconds = sum(map(_decode_seconds, answers))
    tokens = sum(max(len(answer.tokens) - 1, 0) for answer in answers)
    return tokens / seconds if seconds > 0 else 0.0
