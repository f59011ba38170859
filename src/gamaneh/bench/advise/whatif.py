"""What if: recorded answers replayed against proposers, and assumed acceptance for those that are not there.

A replay shows a proposer the text as it grew and counts what it would have guessed of it. The target is not
run: greedy answers would have been guessed just so. Proposers that read the target's hidden states cannot be
replayed. Speed-ups are those of decoding alone; prompts are left out.
"""

from __future__ import annotations

import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gamaneh.bench.advise.costs import Cell, Costs, Surface
from gamaneh.bench.advise.predict import Predictor, SpeedPrediction
from gamaneh.bench.advise.trace import Round, Trace
from gamaneh.bench.advise.workload import Encode, WorkloadRequest
from gamaneh.core import Draft, ProposalRow, Proposer
from gamaneh.errors import GamanehError, InvalidOption
from gamaneh.options import SamplingParams
from gamaneh.proposers.tree import walk
from gamaneh.sampling.pipeline import RequestSampler

FREE = Costs(Surface({(1, 0): (1.0,)}))
"""Every round takes as long as a plain one, whatever is drafted and verified: what speculation could bring at most."""

_SEED = 20250101


@dataclass(frozen=True, slots=True)
class Replayed:
    """The rounds that a proposer would have made, and the seconds of its drafts by depth, one request at a time."""

    traces: tuple[Trace, ...]
    draft_seconds: dict[Cell, list[float]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """One proposer, real or assumed, and what it would have brought.

    Args:
        replayed: its guesses were counted; else its acceptance was assumed.
        best: with the best draft length, one request at a time.
        by_k: for each draft length, one request at a time.
        by_batch: with the best draft length of each number of requests at once; empty without measured costs.
        by_category: with the draft length of `best`.
    """

    title: str
    replayed: bool
    best: SpeedPrediction
    by_k: tuple[SpeedPrediction, ...]
    by_batch: tuple[SpeedPrediction, ...]
    by_category: dict[str, SpeedPrediction]


def replay(
    proposer: Proposer, requests: Sequence[WorkloadRequest], k: int, vocab_size: int, encode: Encode
) -> Replayed:
    """Show a proposer the recorded answers, in their order.

    Args:
        k: longest drafts.
        vocab_size: of the target.
        encode: makes token ids of references.

    Raises:
        InvalidOption: the proposer reads hidden states of the target.
        GamanehError: the proposer fails.
    """
    if proposer.needs.hidden_layers:
        rule = "must be one that does without the target's hidden states; assume an acceptance instead"
        raise InvalidOption("proposer", rule, proposer.name)
    run = _Replay(proposer, k, vocab_size, encode)
    return Replayed(tuple(run.trace(request) for request in requests), run.seconds)


def assume(requests: Sequence[WorkloadRequest], acceptance: float, k: int) -> tuple[Trace, ...]:
    """Drafts whose every candidate is accepted with the same chance (Leviathan et al. 2023, definition 3.1)."""
    draws = random.Random(_SEED)
    return tuple(_trace(request, k, _assumed(len(request.answer) - 1, acceptance, k, draws)) for request in requests)


def replay_costs(steps: Surface | None, draft_seconds: dict[Cell, list[float]]) -> Costs:
    """Costs of a replayed proposer; its drafts for several requests are reckoned one after the other."""
    if steps is None:
        return FREE
    double = {(2 * batch, depth): [2 * one for one in seconds] for (batch, depth), seconds in draft_seconds.items()}
    return Costs(steps, Surface({**draft_seconds, **double}))


def assumed_costs(steps: Surface | None, share: float) -> Costs:
    """Costs of an assumed proposer, one candidate of which takes this share of a plain round, whatever the batch."""
    if steps is None:
        return Costs(FREE.step, Surface({(1, 0): (0.0,), (1, 1): (share,)}))
    return Costs(steps, Surface({(1, 0): (0.0,), (1, 1): (share * steps.seconds(1, 0),)}))


def scenario(
    title: str, traces: Sequence[Trace], costs: Costs, *, replayed: bool, batches: Sequence[int] = ()
) -> Scenario:
    """What this proposer would have brought; `batches` are numbers of requests at once to look at."""
    predictor = Predictor(traces, costs)
    best = predictor.predict(1)
    names = dict.fromkeys(trace.category for trace in traces)
    groups = {name: [trace for trace in traces if trace.category == name] for name in names}
    return Scenario(
        title=title,
        replayed=replayed,
        best=best,
        by_k=tuple(predictor.predict(1, k) for k in range(1, predictor.largest + 1)),
        by_batch=tuple(predictor.predict(batch) for batch in batches),
        by_category={name: predictor.predict(1, best.k, group) for name, group in groups.items()},
    )


class _Replay:
    """Follows the answers with one proposer."""

    def __init__(self, proposer: Proposer, k: int, vocab_size: int, encode: Encode) -> None:
        self.proposer, self.k, self.vocab_size, self.encode = proposer, k, vocab_size, encode
        self.seconds: dict[Cell, list[float]] = defaultdict(list)

    def trace(self, request: WorkloadRequest) -> Trace:
        try:
            return _trace(request, self.k, tuple(self._rounds(request)))
        except GamanehError:
            raise
        except Exception as error:  # whatever a proposer raises is its failure, and told as one
            raise GamanehError(f"{self.proposer.name} failed: {type(error).__name__}: {error}") from error
        finally:
            self.proposer.forget(request.id)

    def _rounds(self, request: WorkloadRequest) -> Iterator[Round]:
        """The first token comes from reading the prompt."""
        tokens, first = [*request.prompt, *request.answer[:1]], len(request.prompt)
        row = self._row(request, tokens)
        while (left := first + len(request.answer) - len(tokens)) > 0:
            row.max_depth = row.max_nodes = min(self.k, left - 1)
            draft = self._propose(row) if row.max_depth else Draft()
            coming = request.answer[len(tokens) - first :]
            path = walk(draft, coming)
            emitted = coming[: len(path) + 1]
            tokens += emitted
            yield Round(draft.depth, len(draft), len(path), len(emitted))

    def _propose(self, row: ProposalRow) -> Draft:
        started = time.perf_counter()
        draft = self.proposer.propose([row])[0].cut(row.max_depth)
        self.seconds[1, draft.depth].append(time.perf_counter() - started)
        return draft

    def _row(self, request: WorkloadRequest, tokens: list[int]) -> ProposalRow:
        sampler = RequestSampler(
            SamplingParams(), vocab_size=self.vocab_size, prompt=request.prompt, tokens=tokens, eos_ids=(), seed=0
        )
        reference = self.encode(request.reference) if request.reference else ()
        return ProposalRow(request.id, tokens, self.k, self.k, sampler, reference=reference)


def _assumed(tokens: int, acceptance: float, k: int, draws: random.Random) -> tuple[Round, ...]:
    rounds: list[Round] = []
    while tokens > 0:
        depth = min(k, tokens - 1)
        accepted = next((at for at in range(depth) if draws.random() >= acceptance), depth)
        rounds.append(Round(depth, depth, accepted, accepted + 1))
        tokens -= accepted + 1
    return tuple(rounds)


def _trace(request: WorkloadRequest, k: int, rounds: tuple[Round, ...]) -> Trace:
    return Trace(
        id=request.id,
        category=request.category,
        language=request.language,
        prompt_tokens=len(request.prompt),
        largest=k,
        rounds=rounds,
    )
