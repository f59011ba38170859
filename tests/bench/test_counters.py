"""Counters of every kind of server are read, and what lies between two readings is what was counted."""

from __future__ import annotations

from collections import Counter

import pytest

from gamaneh.bench.counters import difference, read_counters
from gamaneh.bench.counts import Counts, total
from gamaneh.bench.dialects import DIALECTS, GAMANEH, LLAMA_CPP, OTHER, SGLANG, TGI, VLLM, Dialect, recognise
from gamaneh.metrics.collector import SpeculationStats
from gamaneh.metrics.prometheus import PrometheusMetrics

VLLM_TEXT = """# HELP vllm:spec_decode_num_drafts_total Number of drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="m"} 10.0
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="m"} 30.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="m"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="0"} 7.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="m",position="1"} 5.0
process_cpu_seconds_total 3.5
process_resident_memory_bytes 1.0e+09
"""
LLAMA_TEXT = """llamacpp:tokens_predicted_total 26
llamacpp:spec_decode_num_draft_tokens_total 48
llamacpp:spec_decode_num_accepted_tokens_total 6
llamacpp:spec_decode_num_drafts_total 6
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 4
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 2
"""
SGLANG_TEXT = """sglang:spec_verify_calls_total{model_name="m"} 40.0
sglang:generation_tokens_total{model_name="m"} 100.0
"""
TGI_TEXT = """tgi_request_skipped_tokens_sum 60
tgi_request_skipped_tokens_count 40
"""


@pytest.mark.parametrize(
    ("dialect", "text", "accepted", "drafts", "drafted", "rounds"),
    [
        (VLLM, VLLM_TEXT, 12, 10, 30, None),
        (LLAMA_CPP, LLAMA_TEXT, 6, 6, 48, None),
        (SGLANG, SGLANG_TEXT, 60, None, None, 40),
        (TGI, TGI_TEXT, 60, None, None, 40),
    ],
)
def test_drafts_are_counted_by_what_each_kind_of_server_says(
    dialect: Dialect, text: str, accepted: int, drafts: int | None, drafted: int | None, rounds: int | None
) -> None:
    counters = read_counters(text, dialect.series)
    assert counters is not None and counters.counts is not None
    counts = counters.counts
    assert (counts.accepted, counts.drafts, counts.drafted, counts.rounds) == (accepted, drafts, drafted, rounds)


def test_survival_follows_from_positions() -> None:
    counters = read_counters(VLLM_TEXT, VLLM.series)
    assert counters is not None and counters.counts is not None
    assert counters.counts.survival == (0.7, 0.5)
    assert (counters.cpu_seconds, counters.resident) == (3.5, 10**9)


def test_a_server_that_does_not_draft_counts_nothing() -> None:
    counters = read_counters("process_cpu_seconds_total 1\n", VLLM.series)
    assert counters is not None and counters.counts is None


def test_what_is_no_text_of_prometheus_is_no_reading() -> None:
    assert read_counters("<html>{}</html>", VLLM.series) is None


def test_our_own_series_have_the_names_that_are_read() -> None:
    text = PrometheusMetrics().render().decode()
    counters = read_counters(text, GAMANEH.series)
    assert counters is not None and counters.counts is not None
    assert (counters.counts.accepted, counters.counts.drafted) == (0, 0)
    assert counters.resident is not None and counters.cpu_seconds is not None


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
def test_a_kind_of_server_is_told_by_owner_or_series(dialect: Dialect) -> None:
    assert recognise(dialect.owner, "") is dialect
    assert recognise("somebody", f"# HELP\n{dialect.prefix}x 1\n") is dialect


def test_an_unknown_server_is_only_compatible() -> None:
    assert recognise("somebody", "http_requests_total 3\n") is OTHER


class TestCounts:
    BEFORE = Counts(5, rounds=10, drafts=6, drafted=18, emitted=15, accepted_at=Counter({0: 4, 1: 1}))
    AFTER = Counts(9, rounds=16, drafts=9, drafted=27, emitted=25, accepted_at=Counter({0: 6, 1: 3}))

    def test_the_difference_is_what_was_counted_between(self) -> None:
        between = difference(self.BEFORE, self.AFTER)
        assert between == Counts(4, 6, 3, 9, 10, Counter({0: 2, 1: 2}))

    def test_a_server_that_had_counted_nothing_began_at_nothing(self) -> None:
        assert difference(None, self.AFTER) == self.AFTER
        assert difference(self.BEFORE, None) is None

    def test_a_sum_knows_no_more_than_its_parts(self) -> None:
        summed = total([self.BEFORE, Counts(1, rounds=2)])
        assert (summed.accepted, summed.rounds, summed.drafted) == (6, 12, None)
        assert summed.acceptance_rate is None

    def test_ratios_are_those_of_the_collector(self) -> None:
        stats = SpeculationStats(rounds=4, drafts=3, drafted=9, accepted=5, emitted=9)
        stats.accepted_at.update({0: 3, 1: 2})
        stats.offered_at.update({0: 3, 1: 3, 2: 3})
        counts = Counts.of([stats])
        assert counts.acceptance_rate == stats.acceptance_rate
        assert counts.tokens_per_round == stats.tokens_per_round
        assert list(counts.survival) == stats.survival()
