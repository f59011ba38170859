"""A server's stream is read as it comes, whatever kind of server it is, and what is broken says so."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import httpx
import pytest

from gamaneh.bench.measure import answer_one, answer_or_fail
from gamaneh.bench.record import Ask, Counts, Record, sum_counts
from gamaneh.bench.servers import (
    DIALECTS,
    OTHER,
    Dialect,
    HttpClient,
    ServerBroke,
    ServerRefused,
    ServerUnreachable,
    read_counters,
    recognise,
)
from gamaneh.bench.stats import speculation
from gamaneh.errors import InvalidOption
from gamaneh.metrics.collector import SpeculationStats
from gamaneh.metrics.prometheus import PrometheusMetrics
from gamaneh.options import SamplingParams

ASK = Ask("say something", SamplingParams(max_tokens=5, seed=3), speculate=True)


class FakeServer:
    """Answers as it is told, and keeps the bodies that it was sent."""

    def __init__(self, stream: str, owner: str = "", metrics: str | None = None, status: int = 200) -> None:
        self.stream, self.owner, self.metrics, self.status = stream, owner, metrics, status
        self.bodies: list[dict] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/v1/models":
            return httpx.Response(200, json={"data": [{"id": "tiny", "owned_by": self.owner}]})
        if request.url.path == "/metrics":
            return httpx.Response(404) if self.metrics is None else httpx.Response(200, text=self.metrics)
        self.bodies.append(json.loads(request.content))
        return httpx.Response(self.status, text=self.stream)


def connected(handler: Callable[[httpx.Request], httpx.Response], use, **options: object):
    async def go():
        async with HttpClient("http://server", transport=httpx.MockTransport(handler), **options) as client:
            return await use(client)

    return asyncio.run(go())


def answer(server: FakeServer, ask: Ask = ASK, **options: object) -> Record:
    return connected(server, lambda client: answer_one(client, ask), **options)


def events(*chunks: object, done: bool = True) -> str:
    lines = [json.dumps(chunk) if isinstance(chunk, dict) else str(chunk) for chunk in chunks]
    return "".join(f"data: {line}\n\n" for line in [*lines, *(["[DONE]"] if done else [])])


def said(text: str | None, **delta: object) -> dict:
    return {"choices": [{"index": 0, "delta": {"content": text, **delta}}]}


USAGE = {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 4}}


class TestReading:
    def test_text_is_joined_and_usage_tells_the_tokens(self) -> None:
        found = answer(FakeServer(events(said(""), said("one "), said("two"), said(None), USAGE)))
        assert (found.text, found.tokens, len(found.deliveries)) == ("one two", 4, 2)
        assert found.ending.prompt_tokens == 9

    def test_without_usage_each_delivery_counts_as_one_token(self) -> None:
        assert answer(FakeServer(events(said("one "), said("two")))).tokens == 2

    def test_thoughts_are_tokens_too(self) -> None:
        assert answer(FakeServer(events(said("", reasoning_content="hm"), said("yes")))).text == "hmyes"

    def test_comments_and_spaces_in_a_stream_are_passed_over(self) -> None:
        stream = ": wait\n\ndata:" + json.dumps(said("x")) + "\n\ndata: [DONE]\n\n"
        assert answer(FakeServer(stream)).text == "x"

    def test_gaps_between_likely_tokens_come_with_logprobs(self) -> None:
        tops = [{"logprob": -3.0}, {"logprob": -0.5}]
        chunk = said("x")
        chunk["choices"][0]["logprobs"] = {"content": [{"token": "x", "top_logprobs": tops}]}
        gaps = connected(FakeServer(events(chunk)), lambda client: _gaps(client))
        assert gaps == [2.5]

    def test_timings_of_llama_cpp_tell_prefill_and_drafts(self) -> None:
        timings = {"prompt_ms": 250.0, "predicted_n": 10, "draft_n": 8, "draft_n_accepted": 6}
        ending = answer(FakeServer(events(said("x"), {"choices": [], "timings": timings}))).ending
        assert ending.prefill == 0.25
        assert ending.counts is not None
        assert (ending.counts.accepted, ending.counts.drafted, ending.counts.rounds) == (6, 8, 4)

    def test_our_own_account_is_read(self) -> None:
        ours = {"rounds": 5, "drafts": 4, "drafted": 12, "accepted": 7, "emitted": 12}
        seconds = {"queued": 0.5, "prefill": 0.25}
        account = {"speculation": {**ours, "accepted_histogram": [1, 1, 0, 2], "seconds": seconds}}
        ending = answer(FakeServer(events(said("x"), {"choices": [], "gamaneh": account}), "gamaneh")).ending
        assert ending.counts is not None
        assert (ending.queue, ending.prefill, ending.counts.rounds) == (0.5, 0.25, 5)
        assert dict(ending.counts.accepted_at) == {0: 3, 1: 2, 2: 2}


async def _gaps(client: HttpClient) -> list[float]:
    ask = Ask("x", SamplingParams(logprobs=2))
    return [gap async for delivery in client.stream(ask) for gap in delivery.gaps]


class TestAsking:
    def test_only_what_differs_from_the_defaults_is_sent(self) -> None:
        server = FakeServer(events(said("x")))
        answer(server, Ask("hello", SamplingParams(max_tokens=5, top_k=7, ignore_eos=True, logprobs=2)))
        (body,) = server.bodies
        assert body["messages"] == [{"role": "user", "content": "hello"}]
        assert (body["max_tokens"], body["top_k"], body["ignore_eos"], body["temperature"]) == (5, 7, True, 0.0)
        assert (body["logprobs"], body["top_logprobs"]) == (True, 2)
        assert "min_p" not in body and "speculation" not in body

    @pytest.mark.parametrize("speculate", [True, False])
    def test_our_own_server_is_told_whether_to_speculate(self, speculate: bool) -> None:
        server = FakeServer(events(said("x")), owner="gamaneh")
        answer(server, Ask("hello", SamplingParams(), speculate))
        assert server.bodies[0]["speculation"] == {"enabled": speculate, "metrics": True}

    def test_a_server_without_a_switch_is_not_asked_to_be_plain(self) -> None:
        with pytest.raises(InvalidOption, match="must be a server that can be told not to speculate, got 'vLLM'"):
            answer(FakeServer(events(said("x")), owner="vllm"), Ask("x", SamplingParams(), speculate=False))

    @pytest.mark.parametrize(
        ("owner", "field", "value"),
        [("gamaneh", "cache_salt", "x"), ("vllm", "cache_salt", "x"), ("llamacpp", "cache_prompt", False)],
    )
    def test_a_salt_keeps_prompts_from_being_remembered(self, owner: str, field: str, value: object) -> None:
        server = FakeServer(events(said("x")), owner)
        answer(server, replace(ASK, salt="x"))
        answer(server, ASK)
        assert [body.get(field) for body in server.bodies] == [value, None]

    def test_extra_fields_are_sent(self) -> None:
        server = FakeServer(events(said("x")))
        answer(server, extra={"cache_prompt": False})
        assert server.bodies[0]["cache_prompt"] is False

    def test_the_kind_of_server_shows_in_its_series(self) -> None:
        server = FakeServer(events(said("x")), metrics="# HELP x\nllamacpp:n_decode_total 3\n")
        assert connected(server, _dialect) == "llama.cpp"


async def _dialect(client: HttpClient) -> str:
    return client.dialect.name


class TestFaults:
    @pytest.mark.parametrize(
        ("stream", "message"),
        [
            (events("{broken"), "an event that is not JSON: '{broken'"),
            (events("[1]"), "an event that is not an object"),
            (events({"choices": [{"index": 0}]}), "no part of an answer"),
            (events(said("half"), done=False), r"the stream ended without \[DONE\]"),
            ("<html>busy</html>", r"the stream ended without \[DONE\]"),
        ],
    )
    def test_a_malformed_stream_is_no_answer(self, stream: str, message: str) -> None:
        with pytest.raises(ServerBroke, match=message):
            answer(FakeServer(stream))

    def test_a_refusal_tells_status_and_text(self) -> None:
        with pytest.raises(ServerRefused, match="the server answered 429: busy"):
            answer(FakeServer("busy", status=429))

    def test_an_error_in_the_stream_is_raised(self) -> None:
        with pytest.raises(ServerRefused, match=r"broke the answer off.*too hot"):
            answer(FakeServer(events(said("one "), {"error": {"message": "too hot"}})))

    def test_what_came_before_a_break_is_kept(self) -> None:
        server = FakeServer(events(said("half"), done=False))
        found = connected(server, lambda client: answer_or_fail(client, ASK))
        assert (found.text, found.tokens) == ("half", 1)
        assert "ended without" in str(found.error)

    def test_a_connection_that_is_lost_is_a_break(self) -> None:
        def lose(request: httpx.Request) -> httpx.Response:
            if request.url.path == "/v1/models":
                return httpx.Response(200, json={"data": [{"id": "tiny"}]})
            raise httpx.ReadError("peer closed connection")

        with pytest.raises(ServerBroke, match="broke off: ReadError: peer closed connection"):
            connected(lose, lambda client: answer_one(client, ASK))

    @pytest.mark.parametrize("body", ["<html>", "[]", '{"data": []}', '{"data": [3]}'])
    def test_a_page_that_is_no_list_of_models_is_no_server(self, body: str) -> None:
        with pytest.raises(ServerUnreachable, match="http://server must be a server with OpenAI's API"):
            connected(lambda request: httpx.Response(200, text=body), _dialect)

    def test_nobody_at_the_address_is_told(self) -> None:
        def refuse(request: httpx.Request) -> httpx.Response:
            raise httpx.ConnectError("connection refused")

        with pytest.raises(ServerUnreachable, match="ConnectError: connection refused"):
            connected(refuse, _dialect)

    def test_a_wrong_key_is_told(self) -> None:
        with pytest.raises(ServerUnreachable, match="401"):
            connected(lambda request: httpx.Response(401, request=request), _dialect)


class TestCounting:
    """Tokens are counted by whoever can: the server, the target's tokenizer, or nobody, and the record says who."""

    WORDS = staticmethod(lambda text: len(text.split()))

    def test_usage_is_believed(self) -> None:
        found = answer(FakeServer(events(said("one "), said("two"), USAGE)), count=self.WORDS)
        assert (found.tokens, found.ending.tokens_from) == (4, "usage")

    @pytest.mark.parametrize("last", [(), (None,), (0,)], ids=["absent", "null", "zero beside text"])
    def test_a_server_that_does_not_count_is_counted_by_the_tokenizer(self, last: tuple[int | None, ...]) -> None:
        usage = [{"choices": [], "usage": {"completion_tokens": tokens}} for tokens in last]
        server = FakeServer(events(said("one two three "), said("four"), *usage))
        found = answer(server, count=self.WORDS)
        assert (found.tokens, found.ending.tokens_from) == (4, "tokenizer")

    @pytest.mark.parametrize("last", [(), (0,)])
    def test_without_a_tokenizer_each_delivery_counts_and_that_is_marked(self, last: tuple[int, ...]) -> None:
        usage = [{"choices": [], "usage": {"completion_tokens": tokens}} for tokens in last]
        found = answer(FakeServer(events(said("one two three "), said("four"), *usage)))
        assert (found.tokens, found.ending.tokens_from) == (2, "deliveries")

    def test_usage_in_each_event_is_a_running_count(self) -> None:
        chunks = [said("one ") | {"usage": {"completion_tokens": 2}}, said("two") | {"usage": {"completion_tokens": 5}}]
        assert answer(FakeServer(events(*chunks))).tokens == 5

    def test_a_usage_event_needs_no_choices(self) -> None:
        usage = {"usage": {"prompt_tokens": 9, "completion_tokens": 4}}
        assert answer(FakeServer(events(said("one"), usage, {**usage, "choices": None}))).tokens == 4

    def test_no_error_is_no_error(self) -> None:
        assert answer(FakeServer(events(said("x") | {"error": None}))).text == "x"


class TestKinds:
    """What goes wrong fails one request, by its kind."""

    @pytest.mark.parametrize(
        ("stream", "status", "reason"),
        [
            ("busy", 429, "refused"),
            ("oops", 500, "refused"),
            (events(said("one "), {"error": {"message": "too hot"}}), 200, "error"),
            (events({"choices": [{"delta": {"content": "one"}, "finish_reason": "error"}]}), 200, "error"),
            (events(said("half"), done=False), 200, "broken"),
            (events("{broken"), 200, "malformed"),
            (events(said("x"), {"choices": [], "usage": {"completion_tokens": "8"}}), 200, "malformed"),
            (events(said("x"), {"choices": [], "usage": [1]}), 200, "malformed"),
            (events(said("x"), {"choices": [], "usage": {"completion_tokens": -1}}), 200, "malformed"),
            (events(said("x"), {"choices": [], "timings": {"draft_n": 3}}), 200, "malformed"),
            (events(said("x"), {"choices": [], "gamaneh": {"speculation": {"rounds": 1}}}), 200, "malformed"),
            (events(said(""), USAGE), 200, "empty"),
            (events(), 200, "empty"),
        ],
    )
    def test_each_kind_has_a_name(self, stream: str, status: int, reason: str) -> None:
        found = connected(FakeServer(stream, status=status), lambda client: answer_or_fail(client, ASK))
        assert (found.reason, found.error is not None, found.whole) == (reason, True, False)

    def test_the_first_token_comes_with_the_first_text(self) -> None:
        server = FakeServer(events(said("", role="assistant"), said(None), said("text")))
        assert len(answer(server).deliveries) == 1


GAMANEH, VLLM, SGLANG, LLAMA_CPP, TGI = DIALECTS

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
    assert speculation(counters.counts, "server").survival == (0.7, 0.5)
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
        between = self.AFTER.since(self.BEFORE)
        assert between == Counts(4, 6, 3, 9, 10, Counter({0: 2, 1: 2}))

    def test_a_server_that_had_counted_nothing_began_at_nothing(self) -> None:
        assert self.AFTER.since(None) == self.AFTER

    def test_a_sum_knows_no_more_than_its_parts(self) -> None:
        summed = sum_counts([self.BEFORE, Counts(1, rounds=2)])
        assert (summed.accepted, summed.rounds, summed.drafted) == (6, 12, None)
        assert speculation(summed, "server").acceptance_rate is None

    def test_ratios_are_those_of_the_collector(self) -> None:
        stats = SpeculationStats(rounds=4, drafts=3, drafted=9, accepted=5, emitted=9)
        stats.survived_at.update({0: 3, 1: 2})
        stats.offered_at.update({0: 3, 1: 3, 2: 3})
        told = speculation(Counts.of([stats]), "requests")
        assert told.acceptance_rate == stats.acceptance_rate
        assert told.tokens_per_round == stats.tokens_per_round
        assert told.mean_accepted_length == stats.mean_accepted_length
        assert list(told.survival) == stats.survival()
