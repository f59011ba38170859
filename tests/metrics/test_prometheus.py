"""What a scrape of a running engine says."""

from __future__ import annotations

import itertools
import re
import time
from collections import defaultdict

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from gamaneh.control.fallback import Fault
from gamaneh.core import BatchReport, FinishReason, Origin, ReasonCode, Request, StepReport
from gamaneh.metrics.prometheus import PrometheusMetrics
from gamaneh.metrics.timeline import RequestTimeline
from gamaneh.options import EngineOptions, SamplingParams, SpeculationOptions
from gamaneh.testing import ByteTokenizer, ScriptedProposer, ScriptedRunner, hashed, scripted_engine

VOCAB = 260

Samples = dict[str, dict[tuple[str, ...], float]]


def scrape(metrics: PrometheusMetrics) -> Samples:
    """Samples by name and label values, labels in alphabetical order, as a reader of the text format finds them."""
    samples: Samples = defaultdict(dict)
    for family in text_string_to_metric_families(metrics.render().decode()):
        for sample in family.samples:
            samples[sample.name][tuple(value for _, value in sorted(sample.labels.items()))] = sample.value
    return samples


def total(metrics: PrometheusMetrics, name: str) -> float:
    return scrape(metrics)[name][()]


def step(drafted: int, accepted: int, reason: ReasonCode = ReasonCode.PAYS) -> StepReport:
    proposer = "lookup" if drafted else "none"
    counts = (drafted, drafted, accepted, accepted + 1, 1, 30)
    return StepReport("secret-id", proposer, "match", *counts, 0.1, 0.2, 4, "secret words", reason)


def batch(**changes: object) -> BatchReport:
    report: dict[str, object] = {
        "requests": 3,
        "prompt_rows": 16,
        "draft_rows": 4,
        "rows": 22,
        "preempted": 1,
        "origins": {Origin.ACCEPTED: 2, Origin.BONUS: 1},
        "draft_seconds": {"lookup": 0.001},
        "verify_seconds": 0.05,
        "step_seconds": 0.06,
        "plain_seconds": 0.09,
    }
    return BatchReport(**(report | changes))  # type: ignore[arg-type]


def request(**changes: object) -> RequestTimeline:
    marks: dict[str, object] = {
        "arrived": 1.0,
        "scheduled": 1.5,
        "token_times": [2.0, 2.25, 2.25],
        "finished": 3.0,
        "cached_tokens": 16,
        "finish_reason": FinishReason.STOP,
    }
    return RequestTimeline("secret-id", 20, "lookup", **(marks | changes))  # type: ignore[arg-type]


def observed() -> PrometheusMetrics:
    """Everything that can be told was told."""
    metrics = PrometheusMetrics()
    metrics.observe_step(step(4, 2))
    metrics.observe_batch(batch())
    metrics.observe_request(request())
    metrics.observe_response("/v1/completions", 200)
    metrics.set_load(running=2, waiting=5, kv_used=30, kv_total=64)
    metrics.set_limits(max_batch=8, step_tokens=256)
    metrics.set_weights("target", 1000)
    metrics.set_build(version="1.2", model="tiny", dtype="float32", device="cpu")
    return metrics


class TestSpeculation:
    def test_drafts_are_counted_under_the_names_that_the_field_uses(self) -> None:
        metrics = PrometheusMetrics()
        for report in (step(4, 4), step(3, 1), step(0, 0)):
            metrics.observe_step(report)
        assert total(metrics, "gamaneh_spec_decode_num_drafts_total") == 2
        assert total(metrics, "gamaneh_spec_decode_num_draft_tokens_total") == 7
        assert total(metrics, "gamaneh_spec_decode_num_accepted_tokens_total") == 5

    def test_positions_count_from_zero(self) -> None:
        metrics = PrometheusMetrics()
        for report in (step(3, 3), step(3, 1), step(1, 0)):
            metrics.observe_step(report)
        samples = scrape(metrics)
        accepted = samples["gamaneh_spec_decode_num_accepted_tokens_per_pos_total"]
        offered = samples["gamaneh_spec_decode_num_draft_tokens_per_pos_total"]
        assert accepted == {("0",): 2, ("1",): 1, ("2",): 1}
        assert offered == {("0",): 3, ("1",): 2, ("2",): 2}

    def test_tokens_are_counted_by_proposer(self) -> None:
        metrics = PrometheusMetrics()
        for report in (step(4, 3), step(0, 0), step(0, 0)):
            metrics.observe_step(report)
        samples = scrape(metrics)
        assert samples["gamaneh_round_tokens_total"] == {("lookup",): 4, ("none",): 2}
        assert samples["gamaneh_draft_tokens_total"] == {("lookup",): 4}
        assert samples["gamaneh_accepted_tokens_total"] == {("lookup",): 3}

    def test_decisions_are_counted_by_reason_code(self) -> None:
        metrics = PrometheusMetrics()
        for reason in (ReasonCode.PAYS, ReasonCode.PAYS, ReasonCode.PROBE):
            metrics.observe_step(step(2, 0, reason))
        assert scrape(metrics)["gamaneh_decisions_total"] == {("lookup", "pays"): 2, ("lookup", "probe"): 1}

    def test_plain_rounds_have_a_draft_length_of_zero(self) -> None:
        metrics = PrometheusMetrics()
        for report in (step(4, 0), step(0, 0)):
            metrics.observe_step(report)
        buckets = scrape(metrics)["gamaneh_draft_length_tokens_bucket"]
        assert (buckets["0.0",], buckets["3.0",], buckets["4.0",]) == (1, 1, 2)

    def test_failures_are_those_of_the_engines_quarantine(self) -> None:
        engine = scripted_engine(ScriptedRunner(hashed(VOCAB), VOCAB), ByteTokenizer())
        metrics = PrometheusMetrics()
        metrics.attach(engine)
        for _ in range(2):
            engine.quarantine.report("lookup", "secret words", Fault.SLOW)
        assert scrape(metrics)["gamaneh_proposer_failures_total"] == {("slow", "lookup"): 2}


class TestSteps:
    def test_a_step_is_timed_once_whatever_the_batch(self) -> None:
        metrics = PrometheusMetrics()
        metrics.observe_batch(batch())
        samples = scrape(metrics)
        assert samples["gamaneh_step_seconds_count"][()] == 1
        assert samples["gamaneh_verify_seconds_sum"][()] == pytest.approx(0.05)
        assert samples["gamaneh_draft_seconds_sum"]["lookup",] == pytest.approx(0.001)

    def test_rows_and_requests_show_how_full_a_step_is(self) -> None:
        metrics = observed()
        assert total(metrics, "gamaneh_step_rows_sum") / total(metrics, "gamaneh_max_step_rows") == 22 / 256
        assert total(metrics, "gamaneh_step_requests_sum") / total(metrics, "gamaneh_max_running_requests") == 3 / 8

    def test_tokens_are_counted_by_origin_and_origins_without_any_are_shown(self) -> None:
        metrics = PrometheusMetrics()
        metrics.observe_batch(batch())
        tokens = scrape(metrics)["gamaneh_emitted_tokens_total"]
        assert tokens == {("accepted",): 2, ("bonus",): 1, ("correction",): 0, ("plain",): 0}

    def test_the_estimated_gain_is_a_quotient_of_seconds(self) -> None:
        metrics = PrometheusMetrics()
        for report in (batch(), batch(plain_seconds=None)):
            metrics.observe_batch(report)
        assert total(metrics, "gamaneh_plain_equivalent_seconds_total") == pytest.approx(0.09)
        assert total(metrics, "gamaneh_decode_step_seconds_total") == pytest.approx(0.06)

    def test_preemptions_and_prompt_rows_are_counted(self) -> None:
        metrics = observed()
        assert (total(metrics, "gamaneh_preemptions_total"), total(metrics, "gamaneh_prompt_rows_total")) == (1, 16)


class TestRequests:
    @pytest.mark.parametrize(
        ("name", "seconds"),
        [
            ("time_to_first_token", 1.0),
            ("inter_token_latency", 0.25),
            ("time_per_output_token", 0.5),
            ("e2e_request_latency", 2.0),
            ("request_queue", 0.5),
            ("request_prefill", 0.5),
            ("request_decode", 0.25),
        ],
    )
    def test_times_go_to_their_histograms(self, name: str, seconds: float) -> None:
        metrics = PrometheusMetrics()
        metrics.observe_request(request())
        assert total(metrics, f"gamaneh_{name}_seconds_sum") == pytest.approx(seconds)
        assert total(metrics, f"gamaneh_{name}_seconds_count") == 1

    def test_a_request_that_never_ran_leaves_no_times_but_its_end(self) -> None:
        metrics = PrometheusMetrics()
        ended = request(scheduled=None, token_times=[], cached_tokens=0, finish_reason=FinishReason.ABORT)
        metrics.observe_request(ended)
        assert total(metrics, "gamaneh_time_to_first_token_seconds_count") == 0
        assert total(metrics, "gamaneh_e2e_request_latency_seconds_count") == 1
        assert scrape(metrics)["gamaneh_requests_total"] == {("abort", "lookup"): 1}

    def test_prefix_hits_are_counted_in_requests_and_tokens(self) -> None:
        metrics = PrometheusMetrics()
        metrics.observe_request(request(cached_tokens=16))
        metrics.observe_request(request(cached_tokens=0))
        assert (total(metrics, "gamaneh_prefix_hits_total"), total(metrics, "gamaneh_prefix_hit_tokens_total")) == (
            1,
            16,
        )

    def test_responses_are_counted_by_route_and_status(self) -> None:
        assert scrape(observed())["gamaneh_http_responses_total"] == {("/v1/completions", "200"): 1}


class TestState:
    def test_load_is_what_was_last_said(self) -> None:
        metrics = observed()
        metrics.set_load(running=1, waiting=0, kv_used=3, kv_total=64)
        assert total(metrics, "gamaneh_running_requests") == 1
        assert total(metrics, "gamaneh_waiting_requests") == 0
        assert (total(metrics, "gamaneh_kv_used_blocks"), total(metrics, "gamaneh_kv_total_blocks")) == (3, 64)

    def test_memory_of_the_process_is_read_at_the_scrape(self) -> None:
        metrics = PrometheusMetrics()
        assert total(metrics, "gamaneh_process_peak_memory_bytes") > 1_000_000
        resident = total(metrics, "gamaneh_process_resident_memory_bytes")
        assert resident > total(metrics, "gamaneh_process_private_memory_bytes") > 1_000_000

    def test_what_runs_is_told(self) -> None:
        families = text_string_to_metric_families(observed().render().decode())
        build = next(family for family in families if family.name == "gamaneh_build_info")
        assert build.samples[0].labels == {"version": "1.2", "model": "tiny", "dtype": "float32", "device": "cpu"}


class TestNames:
    UNITS = re.compile(r"_(total|seconds|bytes|tokens|rows|requests|blocks|info|fds)$")

    def test_every_name_has_the_prefix_and_ends_in_a_unit(self) -> None:
        names = {metric.name for metric in observed().registry.collect()} - {"gamaneh_build"}
        counters = {metric.name for metric in observed().registry.collect() if metric.type == "counter"}
        for name in names - counters:
            assert name.startswith("gamaneh_")
            assert self.UNITS.search(name), name

    def test_counters_end_in_total(self) -> None:
        for family in text_string_to_metric_families(observed().render().decode()):
            if family.type == "counter":
                assert all(sample.name.endswith("_total") for sample in family.samples), family.name

    def test_every_series_is_described(self) -> None:
        for family in text_string_to_metric_families(observed().render().decode()):
            assert family.documentation, family.name
            assert family.type != "unknown", family.name

    def test_nothing_of_a_request_becomes_a_label(self) -> None:
        assert b"secret" not in observed().render()

    def test_creation_times_are_left_out(self) -> None:
        assert b"_created" not in observed().render()

    def test_two_engines_can_share_a_process(self) -> None:
        first, second = PrometheusMetrics(), PrometheusMetrics(CollectorRegistry())
        first.observe_step(step(4, 2))
        assert total(second, "gamaneh_spec_decode_num_drafts_total") == 0


class TestRunningEngine:
    @pytest.fixture
    def metrics(self, monkeypatch: pytest.MonkeyPatch) -> PrometheusMetrics:
        """Three requests of 12 tokens went through an engine with a clock that ticks at every look."""
        monkeypatch.setattr(time, "perf_counter", map(float, itertools.count()).__next__)
        script = hashed(VOCAB)
        engine = scripted_engine(
            ScriptedRunner(script, VOCAB),
            ByteTokenizer(),
            proposer=ScriptedProposer(script, VOCAB, accuracy=0.7),
            speculation=SpeculationOptions(proposer="scripted", draft_length=3),
            options=EngineOptions(max_batch=4, step_tokens=64),
        )
        metrics = PrometheusMetrics()
        metrics.attach(engine)
        for start in range(3):
            engine.add(Request(list(range(start, start + 10)), SamplingParams(max_tokens=12, ignore_eos=True)))
        while engine.has_work:
            engine.step()
        return metrics

    def test_series_agree_with_each_other(self, metrics: PrometheusMetrics) -> None:
        samples = scrape(metrics)
        assert sum(samples["gamaneh_emitted_tokens_total"].values()) == 36
        assert samples["gamaneh_request_output_tokens_sum"][()] == 36
        assert samples["gamaneh_requests_total"] == {("length", "scripted"): 3}
        drafted = samples["gamaneh_spec_decode_num_draft_tokens_per_pos_total"]
        assert sum(drafted.values()) == samples["gamaneh_spec_decode_num_draft_tokens_total"][()]
        accepted = samples["gamaneh_spec_decode_num_accepted_tokens_total"][()]
        assert samples["gamaneh_emitted_tokens_total"]["accepted",] <= accepted

    def test_parts_of_a_step_are_shorter_than_the_step(self, metrics: PrometheusMetrics) -> None:
        samples = scrape(metrics)
        parts = samples["gamaneh_verify_seconds_sum"][()] + samples["gamaneh_draft_seconds_sum"]["scripted",]
        assert 0 < parts < samples["gamaneh_step_seconds_sum"][()]
