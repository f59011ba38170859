"""Counts of one request: the usage of its tokens, and what speculation did for it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from gamaneh.core import Origin
from gamaneh.engine.async_engine import RequestStream
from gamaneh.engine.request_stats import RequestStats, accepted_histogram
from gamaneh.metrics.collector import SpeculationStats, Why
from gamaneh.sampling.rules import is_exact
from gamaneh.server.choice import Choice


def usage_of(choices: Sequence[Choice], per_prompt: int) -> dict[str, Any]:
    """The object `usage` of a response.

    Args:
        per_prompt: answers to each prompt; a prompt counts once.
    """
    firsts = choices[::per_prompt]
    prompt_tokens, output_tokens = sum(len(choice.job.prompt) for choice in firsts), output_tokens_of(choices)
    timelines = [choice.stream.timeline for choice in firsts if choice.stream is not None]
    return {
        "prompt_tokens": prompt_tokens,
        "completion_tokens": output_tokens,
        "total_tokens": prompt_tokens + output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": sum(timeline.cached_tokens for timeline in timelines if timeline is not None)
        },
        "completion_tokens_details": {
            "reasoning_tokens": sum(choice.reasoning_tokens for choice in choices),
            "accepted_prediction_tokens": sum(choice.prediction.accepted for choice in choices),
            "rejected_prediction_tokens": sum(choice.prediction.rejected for choice in choices),
        },
    }


def output_tokens_of(choices: Iterable[Choice]) -> int:
    """Tokens that were emitted so far."""
    return sum(choice.emitted.total() for choice in choices)


def speculation_metrics(choices: Sequence[Choice]) -> dict[str, Any]:
    """The object `gamaneh.speculation` of a response: sums over its answers, which must have ended.

    Seconds of draft and verify are shares of what the batch took, so that sums are wall time.
    """
    streams, origins = streams_of(choices), Counter[Origin]()
    for choice in choices:
        origins.update(choice.emitted)
    stats = [stream.stats for stream in streams]
    rounds = [each for one in stats for each in one.by_proposer.values()]
    rules = rules_of(choices)
    return {
        **_counts(rounds),
        "accepted_histogram": accepted_histogram(rounds),
        "tokens_by_origin": {origin.value: origins[origin] for origin in Origin},
        "proposers": _by_proposer(stats),
        "rules": rules,
        "exact": all(map(is_exact, rules)),
        "seconds": _seconds(streams, rounds),
        "estimated_speedup": _speedup(stats),
        "reasons": _reasons(rounds),
    }


def streams_of(choices: Iterable[Choice]) -> list[RequestStream]:
    """What the engine brings for those that have begun."""
    return [choice.stream for choice in choices if choice.stream is not None]


def rules_of(choices: Iterable[Choice]) -> list[str]:
    """The rules that judged."""
    return sorted({rule for stream in streams_of(choices) for rule in stream.stats.rules})


def approximation(choices: Iterable[Choice]) -> dict[str, Any]:
    """What is told of every answer that a rule made approximate, whether it was asked or not; nothing of others."""
    rules = [rule for rule in rules_of(choices) if not is_exact(rule)]
    return {"exact": False, "rules": rules} if rules else {}


def _counts(rounds: Sequence[SpeculationStats]) -> dict[str, Any]:
    names = ("rounds", "drafts", "drafted", "accepted", "emitted")
    counts: dict[str, Any] = {name: sum(getattr(each, name) for each in rounds) for name in names}
    counts["acceptance_rate"] = counts["accepted"] / counts["drafted"] if counts["drafted"] else None
    counts["tokens_per_round"] = counts["emitted"] / counts["rounds"] if counts["rounds"] else None
    return counts


def _by_proposer(stats: Iterable[RequestStats]) -> dict[str, Any]:
    rounds: dict[str, list[SpeculationStats]] = {}
    for one in stats:
        for name, each in one.by_proposer.items():
            rounds.setdefault(name, []).append(each)
    return {name: _counts(each) for name, each in rounds.items()}


def _seconds(streams: Sequence[RequestStream], rounds: Iterable[SpeculationStats]) -> dict[str, float | None]:
    timelines = [stream.timeline for stream in streams if stream.timeline is not None]
    return {
        "queued": _total([timeline.queue_seconds for timeline in timelines]),
        "prefill": _total([timeline.prefill_seconds for timeline in timelines]),
        "decode": _total([timeline.decode_seconds for timeline in timelines]),
        "draft": sum(each.draft_seconds for each in rounds),
        "verify": sum(each.verify_seconds for each in rounds),
    }


def _speedup(stats: Sequence[RequestStats]) -> float | None:
    plain = [one.plain_seconds for one in stats]
    spent = sum(one.round_seconds for one in stats)
    return None if None in plain or not spent else sum(filter(None, plain)) / spent


def _reasons(rounds: Iterable[SpeculationStats]) -> list[dict[str, Any]]:
    """Why rounds were as they were, the most frequent first."""
    decisions: Counter[Why] = Counter()
    for each in rounds:
        decisions.update(each.decisions)
    return [
        {**why._asdict(), "details": asdict(why.details), "rounds": count} for why, count in decisions.most_common()
    ]


def _total(values: Sequence[float | None]) -> float | None:
    """Sum of what is known; None if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None
