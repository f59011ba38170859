"""What speculation did for one request, for whoever asks in the field `speculation`."""

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
from gamaneh.server.events import Event
from gamaneh.server.tokens import SupportsTokens, finite, shown
from gamaneh.server.usage import by_origin, total


def speculation_metrics(streams: Sequence[RequestStream], origins: Counter[Origin]) -> dict[str, Any]:
    """The object `gamaneh.speculation` of a response: sums over its answers, which must have ended.

    Seconds of draft and verify are shares of what the batch took, so that sums are wall time.
    """
    stats = [stream.stats for stream in streams]
    rounds = [each for one in stats for each in one.by_proposer.values()]
    rules = rules_of(streams)
    return {
        **_counts(rounds),
        "accepted_histogram": accepted_histogram(rounds),
        "tokens_by_origin": by_origin(origins),
        "proposers": _by_proposer(stats),
        "rules": rules,
        "exact": all(map(is_exact, rules)),
        "seconds": _seconds(streams, rounds),
        "estimated_speedup": _speedup(stats),
        "reasons": _reasons(rounds),
    }


def rules_of(streams: Sequence[RequestStream]) -> list[str]:
    """The rules that judged."""
    return sorted({rule for stream in streams for rule in stream.stats.rules})


def approximation(streams: Sequence[RequestStream]) -> dict[str, Any]:
    """What is told of every answer that a rule made approximate, whether it was asked or not; nothing of others."""
    rules = [rule for rule in rules_of(streams) if not is_exact(rule)]
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
        "queued": total([timeline.queue_seconds for timeline in timelines]),
        "prefill": total([timeline.prefill_seconds for timeline in timelines]),
        "decode": total([timeline.decode_seconds for timeline in timelines]),
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


class TokenDetails:
    """The object `gamaneh.tokens`: each token of one answer, with what was refused in its place.

    The texts of all tokens joined are the text of the output: a token that is a part of a character is
    empty, and the one that completes it holds all of it.
    """

    def __init__(self, tokenizer: SupportsTokens) -> None:
        self._tokenizer = tokenizer

    def entries(self, event: Event) -> list[dict[str, Any]]:
        """Of one event's tokens."""
        output = event.output
        told = zip(output.texts, output.origins, output.logprobs, output.refused, strict=True)
        return [
            {
                "text": text,
                "origin": origin.value,
                "logprob": finite(entry.logprob),
                "refused": [shown(self._tokenizer, candidate) for candidate in refused],
            }
            for text, origin, entry, refused in told
        ]
