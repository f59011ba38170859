"""Times of a request follow from its marks."""

from __future__ import annotations

import pytest

from gamaneh.core import FinishReason
from gamaneh.metrics.timeline import RequestTimeline


def timeline(**marks: object) -> RequestTimeline:
    return RequestTimeline("r", prompt_tokens=7, proposer="none", arrived=10.0, **marks)  # type: ignore[arg-type]


def full() -> RequestTimeline:
    """Waits 1 s, reads its prompt for 2 s, gets 1, 3 and 1 tokens, and ends a second after the last."""
    return timeline(scheduled=11.0, token_times=[13.0, 14.0, 14.0, 14.0, 17.0], finished=18.0)


def test_times_are_differences_of_marks() -> None:
    request = full()
    assert (request.queue_seconds, request.prefill_seconds, request.decode_seconds) == (1.0, 2.0, 4.0)
    assert (request.ttft, request.e2e) == (3.0, 8.0)


def test_time_per_output_token_leaves_the_first_token_out() -> None:
    assert full().tpot == pytest.approx((18.0 - 13.0) / 4)


def test_tokens_that_arrive_together_are_one_delivery() -> None:
    assert full().inter_token_latencies == [1.0, 3.0]


@pytest.mark.parametrize("tokens", [0, 1])
def test_time_per_output_token_needs_two_tokens(tokens: int) -> None:
    assert timeline(scheduled=11.0, token_times=[13.0] * tokens, finished=18.0).tpot is None


def test_a_request_that_never_ran_has_no_times_but_its_end() -> None:
    request = timeline(finished=12.0)
    assert [request.queue_seconds, request.prefill_seconds, request.decode_seconds, request.ttft] == [None] * 4
    assert (request.e2e, request.inter_token_latencies) == (2.0, [])


def test_a_request_that_still_runs_has_no_end() -> None:
    request = timeline(scheduled=11.0, token_times=[13.0, 14.0])
    assert (request.e2e, request.tpot) == (None, None)


def test_only_the_first_admission_counts() -> None:
    request = timeline()
    request.admit(16, at=11.0)
    request.preempt(at=12.0)
    request.admit(48, at=13.0)
    assert (request.scheduled, request.cached_tokens, len(request.preempted)) == (11.0, 16, 1)


def test_the_end_says_why() -> None:
    request = timeline()
    request.finish(FinishReason.ABORT, at=14.0)
    assert request.finish_reason is FinishReason.ABORT
    assert request.finished == 14.0
