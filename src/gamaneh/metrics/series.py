"""The Prometheus series, by subject. Counts only: whoever reads them divides.

Every label has few values: names of proposers, reason codes, kinds of failure, draft positions. No
text of a request and no request id becomes a label.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import cache
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector
from prometheus_client.metrics_core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from gamaneh.core import BatchReport, Origin, StepReport
from gamaneh.metrics.memory import peak_device_bytes, peak_resident_bytes, private_bytes
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.sampling.rules import is_exact


def _decades(first: int, last: int, steps: tuple[float, ...]) -> tuple[float, ...]:
    """Bucket borders `step * 10^n` for n from `first` to `last`, both included."""
    return tuple(float(f"{step}e{power}") for power in range(first, last + 1) for step in steps)


STEP_SECONDS = _decades(-4, 0, (1, 1.5, 2.5, 4, 6.5))
REQUEST_SECONDS = _decades(-3, 2, (1, 2.5, 5))
LENGTHS = (0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 15, 20, 32, 64, 128)
COUNTS = tuple(float(2**power) for power in range(18))


class FailureCounts(Protocol):
    """Counts by proposer and kind of failure."""

    def items(self) -> Iterable[tuple[tuple[str, str], int]]: ...


def _labelled(counter: Counter) -> Callable[..., Counter]:
    """The series with given label values, looked up once each: finding one takes longer than counting."""
    return cache(counter.labels)


class SpeculationSeries:
    """What was drafted, what became of it, and why a request drafted or did not."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"gamaneh_{name}_total", text, labels, registry=registry)

        def length(name: str, text: str) -> Histogram:
            return Histogram(f"gamaneh_{name}_length_tokens", text, buckets=LENGTHS, registry=registry)

        verified, kept = "Candidates that were verified.", "Candidates that were kept."
        kept_at = "Drafts whose candidates up to this position were all kept; the first position is 0."
        verified_at = "Drafts with a candidate at this position; the first position is 0."
        asked = "Tokens emitted in rounds that this proposer was asked in, end tokens included; none is plain."

        self.num_drafts = counter("spec_decode_num_drafts", "Drafts that were verified.")
        self.num_draft_tokens = counter("spec_decode_num_draft_tokens", verified)
        self.num_accepted_tokens = counter("spec_decode_num_accepted_tokens", kept)
        self.num_accepted_at = _labelled(counter("spec_decode_num_accepted_tokens_per_pos", kept_at, "position"))
        self.num_offered_at = _labelled(counter("spec_decode_num_draft_tokens_per_pos", verified_at, "position"))
        self.drafted = _labelled(counter("draft_tokens", verified, "proposer"))
        self.accepted = _labelled(counter("accepted_tokens", kept, "proposer"))
        self.emitted = _labelled(counter("round_tokens", asked, "proposer"))
        self.decisions = _labelled(counter("decisions", "Rounds by what drafted and why.", "proposer", "reason"))
        judged = "Rounds by the rule that judged them; what one that is not exact lets through is approximate."
        self.judged = _labelled(counter("judged_rounds", judged, "rule", "exact"))
        self.draft_length = length("draft", "Candidates on the longest path of a draft; plain rounds have none.")
        self.accepted_length = length("accepted", "Candidates kept of a draft.")

    def add(self, report: StepReport) -> None:
        self.emitted(report.proposer).inc(report.emitted)
        self.decisions(report.proposer, report.reason_code).inc()
        self.judged(report.rule, str(is_exact(report.rule)).lower()).inc()
        self.draft_length.observe(report.depth)
        if report.drafted > 0:
            self._add_draft(report)

    def _add_draft(self, report: StepReport) -> None:
        self.num_drafts.inc()
        self.num_draft_tokens.inc(report.drafted)
        self.num_accepted_tokens.inc(report.accepted)
        for share in report.by_source:
            self.drafted(share.proposer).inc(share.drafted)
            self.accepted(share.proposer).inc(share.accepted)
        self.accepted_length.observe(report.accepted)
        for position in range(report.depth):
            self.num_offered_at(position).inc()
        for position in range(report.accepted):
            self.num_accepted_at(position).inc()


class FailureSeries(Collector):
    """Failures of proposers, read where they are counted."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.counts: FailureCounts = {}
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(
            "gamaneh_proposer_failures", "Failures of a proposer.", labels=["proposer", "kind"]
        )
        for (proposer, kind), count in list(self.counts.items()):
            family.add_metric([proposer, kind], count)
        yield family


class StepSeries:
    """What the engine's steps held and where their time went."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def seconds(name: str, text: str, *labels: str) -> Histogram:
            return Histogram(f"gamaneh_{name}_seconds", text, labels, buckets=STEP_SECONDS, registry=registry)

        self.step = seconds("step", "Duration of a whole step.")
        self.verify = seconds("verify", "Duration of the target's forward in a step.")
        self.draft = seconds("draft", "Duration of a proposer's drafts in a step, all requests together.", "proposer")
        self.requests = Histogram(
            "gamaneh_step_requests", "Requests with a part in a step.", buckets=COUNTS[:13], registry=registry
        )
        self.rows = Histogram("gamaneh_step_rows", "Token rows of a step.", buckets=COUNTS, registry=registry)
        self.prompt_rows = Counter(
            "gamaneh_prompt_rows_total",
            "Token rows fed to read prompts, also again after preemption.",
            registry=registry,
        )
        self.preemptions = Counter(
            "gamaneh_preemptions_total", "Times that a request had to give its blocks back.", registry=registry
        )
        self.decode_seconds = Counter(
            "gamaneh_decode_step_seconds_total",
            "Duration of the steps that read no prompt.",
            registry=registry,
        )
        self.plain_seconds = Counter(
            "gamaneh_plain_equivalent_seconds_total",
            "What plain decoding would have taken for the tokens of those steps, by the measured costs.",
            registry=registry,
        )
        self.emitted = Counter(
            "gamaneh_emitted_tokens_total", "Tokens handed out, by where they came from.", ["origin"], registry=registry
        )
        for origin in Origin:
            self.emitted.labels(origin)

    def add(self, report: BatchReport) -> None:
        self.step.observe(report.step_seconds)
        self.verify.observe(report.verify_seconds)
        for proposer, seconds in report.draft_seconds.items():
            self.draft.labels(proposer).observe(seconds)
        self.requests.observe(report.requests)
        self.rows.observe(report.rows)
        self.prompt_rows.inc(report.prompt_rows)
        self.preemptions.inc(report.preempted)
        if report.plain_seconds is not None:
            self.decode_seconds.inc(report.step_seconds)
            self.plain_seconds.inc(report.plain_seconds)
        for origin, count in report.origins.items():
            self.emitted.labels(origin).inc(count)


class RequestSeries:
    """Requests that ended: how long what took."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def seconds(name: str, text: str, buckets: tuple[float, ...] = REQUEST_SECONDS) -> Histogram:
            return Histogram(f"gamaneh_{name}_seconds", text, buckets=buckets, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"gamaneh_{name}_total", text, labels, registry=registry)

        def tokens(name: str, text: str) -> Histogram:
            return Histogram(f"gamaneh_{name}_tokens", text, buckets=COUNTS, registry=registry)

        self.ended = counter("requests", "Requests that ended.", "proposer", "finish_reason")
        self.responses = counter("http_responses", "HTTP responses.", "route", "status")
        self.prompt_tokens = tokens("request_prompt", "Tokens of a prompt.")
        self.output_tokens = tokens("request_output", "Tokens handed out for a request.")
        self.prefix_hits = counter("prefix_hits", "Requests that found a part of their prompt in the prefix cache.")
        self.prefix_hit_tokens = counter("prefix_hit_tokens", "Prompt tokens that the prefix cache held.")
        self.ttft = seconds("time_to_first_token", "First token - arrived.")
        self.itl = seconds("inter_token_latency", "Gaps between deliveries of tokens.", STEP_SECONDS)
        self.tpot = seconds("time_per_output_token", "(End - first token) / (tokens - 1), by request.", STEP_SECONDS)
        self.e2e = seconds("e2e_request_latency", "End - arrived.")
        self.queue = seconds("request_queue", "First in the batch - arrived.")
        self.prefill = seconds("request_prefill", "First token - first in the batch.")
        self.decode = seconds("request_decode", "Last token - first token.")

    def add(self, timeline: RequestTimeline) -> None:
        self.ended.labels(timeline.proposer, timeline.finish_reason).inc()
        self.prompt_tokens.observe(timeline.prompt_tokens)
        self.output_tokens.observe(timeline.output_tokens)
        self.prefix_hits.inc(timeline.cached_tokens > 0)
        self.prefix_hit_tokens.inc(timeline.cached_tokens)
        self._add_times(timeline)

    def _add_times(self, timeline: RequestTimeline) -> None:
        for histogram, seconds in (
            (self.ttft, timeline.ttft),
            (self.tpot, timeline.tpot),
            (self.e2e, timeline.e2e),
            (self.queue, timeline.queue_seconds),
            (self.prefill, timeline.prefill_seconds),
            (self.decode, timeline.decode_seconds),
        ):
            if seconds is not None:
                histogram.observe(seconds)
        for gap in timeline.inter_token_latencies:
            self.itl.observe(gap)


class StateSeries:
    """How things are at this moment."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"gamaneh_{name}", text, labels, registry=registry)

        self.running = gauge("running_requests", "Requests in the batch.")
        self.waiting = gauge("waiting_requests", "Requests that wait for a place in the batch.")
        self.max_requests = gauge("max_running_requests", "Most requests that the batch can hold.")
        self.max_rows = gauge("max_step_rows", "Most token rows that a step can hold.")
        self.kv_used = gauge("kv_used_blocks", "Blocks of the target's KV cache in use.")
        self.kv_total = gauge("kv_total_blocks", "Blocks of the target's KV cache.")
        self.model_bytes = gauge("model_memory_bytes", "Weights and caches of the target and of proposers.", "model")
        gauge("process_peak_memory_bytes", "Largest resident size so far.").set_function(peak_resident_bytes)
        gauge("process_private_memory_bytes", "Resident size without files, and without keys and values.").set_function(
            private_bytes
        )
        gauge("device_peak_memory_bytes", "Most accelerator memory held so far.").set_function(peak_device_bytes)
        self.build = Info("gamaneh_build", "What is running.", registry=registry)
        ProcessCollector(namespace="gamaneh", registry=registry)
