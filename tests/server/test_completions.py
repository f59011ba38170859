"""`/v1/completions` over a target whose output is known."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from served import VOCAB, ChatBytes, Running, engine_for, saying, serving

from gamaneh.proposers.lookup import LookupProposer
from gamaneh.testing import ScriptedRunner, scripted_engine

GREEDY = {"temperature": 0, "ignore_eos": True}


def test_the_text_is_what_the_model_says_up_to_its_end_token(start) -> None:
    running = start(engine_for(saying("a rose is a rose", "hello")))
    answer = running.complete("hello", temperature=0)
    assert answer["object"] == "text_completion"
    assert answer["choices"] == [{"index": 0, "text": "a rose is a rose", "logprobs": None, "finish_reason": "stop"}]
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (5, 16)


class TestFirstToken:
    """CASES kind 07."""

    @pytest.mark.parametrize("max_tokens", [1, 2, 9])
    def test_it_is_there_cold_and_warm(self, start, max_tokens: int) -> None:
        running = start(engine_for(saying("FIRST and more", "a long enough prompt")))
        for _ in ("cold", "warm"):
            answer = running.complete("a long enough prompt", temperature=0, max_tokens=max_tokens)
            assert answer["choices"][0]["text"] == "FIRST and more"[:max_tokens]
            assert answer["usage"]["completion_tokens"] == max_tokens
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > 0

    def test_an_end_token_first_is_an_empty_answer(self, start) -> None:
        running = start(engine_for(saying("", "hello")))
        answer = running.complete("hello", speculation={"metrics": True})
        assert answer["choices"][0]["text"] == ""
        assert answer["choices"][0]["finish_reason"] == "stop"
        assert answer["gamaneh"]["speculation"]["drafts"] == 0


class TestPrompts:
    def test_ids_are_the_same_as_their_text(self, server: Running) -> None:
        assert server.text(list(b"hello"), max_tokens=9, **GREEDY) == server.text("hello", max_tokens=9, **GREEDY)

    @pytest.mark.parametrize("prompts", [["one", "two", "three"], [list(b"one"), list(b"two"), list(b"three")]])
    def test_each_of_a_list_gets_its_answers(self, server: Running, prompts: list) -> None:
        answer = server.complete(prompts, n=2, max_tokens=6, **GREEDY)
        alone = [server.text(prompt, max_tokens=6, **GREEDY) for prompt in prompts]
        assert [choice["text"] for choice in answer["choices"]] == [text for text in alone for _ in range(2)]
        assert [choice["index"] for choice in answer["choices"]] == list(range(6))
        assert answer["usage"]["prompt_tokens"] == len("onetwothree")
        assert answer["usage"]["completion_tokens"] == 6 * 6

    @pytest.mark.parametrize("prompt", ["", [], [[]], [[], [1]]])
    def test_an_empty_one_is_refused(self, server: Running, prompt: object) -> None:
        assert server.refusal(prompt=prompt)["param"] == "prompt"

    def test_ids_beyond_the_vocabulary_are_refused(self, server: Running) -> None:
        error = server.refusal(prompt=[1, VOCAB])
        assert (error["param"], error["message"]) == ("prompt", "prompt must hold token ids from 0 to 259, got 260")


class TestSampling:
    def test_the_same_seed_gives_the_same_text_with_and_without_speculation(self, server: Running) -> None:
        asked = {"max_tokens": 30, "seed": 11, "temperature": 1, "ignore_eos": True}
        texts = {server.text(**asked, speculation={"enabled": on, "rule": "match"}) for on in (True, False, True)}
        assert len(texts) == 1

    def test_several_answers_differ_and_each_can_be_had_alone(self, server: Running) -> None:
        asked = {"max_tokens": 12, "temperature": 1, "ignore_eos": True}
        texts = [choice["text"] for choice in server.complete(n=3, seed=5, **asked)["choices"]]
        assert texts == [server.text(seed=seed, **asked) for seed in (5, 6, 7)]
        assert len(set(texts)) == 3

    def test_without_a_seed_answers_differ(self, server: Running) -> None:
        assert server.text(max_tokens=20, ignore_eos=True) != server.text(max_tokens=20, ignore_eos=True)

    @pytest.mark.parametrize("stop", ["rose", ["rose", "zzz"]])
    def test_a_stop_text_ends_the_answer_and_is_not_in_it(self, start, stop: object) -> None:
        running = start(engine_for(saying("a rose is a rose", "hello")))
        choice = running.complete("hello", temperature=0, stop=stop)["choices"][0]
        assert (choice["text"], choice["finish_reason"]) == ("a ", "stop")

    def test_a_stop_token_ends_the_answer(self, start) -> None:
        running = start(engine_for(saying("a rose is a rose", "hello")))
        assert running.text("hello", temperature=0, stop_token_ids=[ord("s")]) == "a ro"

    def test_a_bad_word_is_never_said(self, start) -> None:
        running = start(engine_for(saying("a rose", "hello")))
        assert "o" not in running.text("hello", temperature=0, bad_words=["o"], max_tokens=6)


class TestBiasAtDraftPositions:
    """CASES kind 11."""

    @pytest.mark.parametrize("stream", [False, True])
    def test_a_banned_token_never_comes(self, start, stream: bool) -> None:
        the = list(b"the the the the the the")
        running = start(engine_for(saying("the the the the", "the the the the the the"), accuracy=1.0))
        fields = {"temperature": 0, "max_tokens": 15, "logit_bias": {str(ord("h")): -100}, "stream": stream}
        response = running.http.post("/v1/completions", json={"prompt": the, **fields})
        assert response.status_code == 200
        text = "".join(part.split('"')[0] for part in response.text.split('"text":"')[1:])
        assert "h" not in text and "t" in text

    def test_a_forced_token_always_comes(self, server: Running) -> None:
        bias = {str(ord("x")): 100}
        assert server.text(max_tokens=12, logit_bias=bias, temperature=1) == "x" * 12

    def test_the_other_row_is_not_biased(self, server: Running) -> None:
        asked = {"max_tokens": 12, **GREEDY}
        alone = server.text("other", **asked)
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(server.text, "other", **asked)
            biased = pool.submit(server.text, "biased", **asked, logit_bias={str(ord("x")): 100})
        assert (other.result(), biased.result()) == (alone, "x" * 12)

    @pytest.mark.parametrize("key", ["260", "-1", "x", "1.5", "9" * 400])
    def test_what_is_no_token_is_refused(self, server: Running, key: str) -> None:
        assert server.refusal(prompt="a", logit_bias={key: 1})["param"] == "logit_bias"


class TestLogprobs:
    def test_each_token_has_them(self, server: Running) -> None:
        logprobs = server.complete(max_tokens=8, logprobs=2, **GREEDY)["choices"][0]["logprobs"]
        assert {key: len(values) for key, values in logprobs.items()} == dict.fromkeys(
            ["tokens", "token_logprobs", "top_logprobs", "text_offset"], 8
        )
        assert all(
            top[token] == logprob == max(top.values())
            for token, logprob, top in zip(
                logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
            )
        )

    def test_they_are_those_of_plain_decoding(self, server: Running) -> None:
        asked = {"max_tokens": 20, "logprobs": 3, **GREEDY}
        with_drafts, plain = (
            server.complete(**asked, speculation={"enabled": on})["choices"][0]["logprobs"] for on in (True, False)
        )
        assert with_drafts == plain

    def test_too_many_are_refused(self, server: Running) -> None:
        assert server.refusal(prompt="a", logprobs=21)["param"] == "logprobs"


class TestEcho:
    """CASES kind 23."""

    @pytest.mark.parametrize("max_tokens", [0, 5])
    @pytest.mark.parametrize("length", [3, 150])
    def test_the_prompt_has_logprobs_but_for_its_first_token(
        self, server: Running, max_tokens: int, length: int
    ) -> None:
        prompt = "abcdefghij" * (length // 10) + "xyz"[: length % 10]
        answer = server.complete(prompt, echo=True, logprobs=1, max_tokens=max_tokens, **GREEDY)
        choice = answer["choices"][0]
        assert choice["text"].startswith(prompt)
        assert len(choice["logprobs"]["token_logprobs"]) == length + max_tokens
        assert [value is None for value in choice["logprobs"]["token_logprobs"]] == [True] + [False] * (
            length + max_tokens - 1
        )
        assert choice["logprobs"]["text_offset"][:length] == list(range(length))
        assert choice["finish_reason"] == "length"
        assert answer["usage"]["completion_tokens"] == max_tokens

    def test_the_values_are_those_of_plain_decoding(self, server: Running) -> None:
        asked = {"prompt": "a prompt", "echo": True, "logprobs": 2, "max_tokens": 5, **GREEDY}
        assert (
            server.complete(**asked)["choices"][0]
            == server.complete(**asked, speculation={"enabled": False})["choices"][0]
        )

    def test_without_logprobs_the_text_alone_comes_back(self, server: Running) -> None:
        choice = server.complete("a prompt", echo=True, max_tokens=0)["choices"][0]
        assert (choice["text"], choice["logprobs"]) == ("a prompt", None)

    def test_a_plain_request_works_after_it(self, server: Running) -> None:
        server.complete("a prompt", echo=True, logprobs=1, max_tokens=0)
        assert len(server.complete(max_tokens=4, logprobs=0, **GREEDY)["choices"][0]["logprobs"]["tokens"]) == 4

    def test_nothing_to_do_is_refused(self, server: Running) -> None:
        assert server.refusal(prompt="a", max_tokens=0)["param"] == "max_tokens"


@pytest.fixture(scope="module")
def narrow() -> Iterator[Running]:
    with serving(engine_for(k=16, max_context=64)) as running:
        yield running


class TestContextBorder:
    """CASES kind 09."""

    @pytest.mark.parametrize("length", range(40, 64, 3))
    def test_the_context_is_filled_exactly(self, narrow: Running, length: int) -> None:
        answer = narrow.complete([7] * length, **GREEDY)
        assert answer["usage"]["completion_tokens"] == 64 - length
        assert answer["choices"][0]["finish_reason"] == "length"
        plain = narrow.complete([7] * length, speculation={"enabled": False}, **GREEDY)
        assert answer["choices"] == plain["choices"]

    @pytest.mark.parametrize("length", [64, 65, 500])
    def test_a_prompt_without_room_for_an_answer_is_refused_with_the_limit(self, narrow: Running, length: int) -> None:
        error = narrow.refusal(prompt=[7] * length)
        assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
        assert "the context has 64 tokens" in error["message"] and f"got {length} tokens" in error["message"]


def test_a_prefix_is_shared_only_under_one_salt(server: Running) -> None:
    def cached(**fields: object) -> int:
        usage = server.complete("a prompt to be shared by some", max_tokens=1, **fields)["usage"]
        count: int = usage["prompt_tokens_details"]["cached_tokens"]
        return count

    assert [cached(cache_salt="one"), cached(cache_salt="two")] == [0, 0]
    assert cached(cache_salt="one") > 0


def test_a_prediction_is_drafted_from_and_counted(start) -> None:
    text = "the quick brown fox jumps over the lazy dog"
    runner = ScriptedRunner(saying(f"{text}!", "say: th"), VOCAB)
    running = start(scripted_engine(runner, ChatBytes(), proposer=LookupProposer(max_ngram=8, min_ngram=2)))
    fields = {"temperature": 0, "speculation": {"proposer": "lookup", "draft_length": 8}}
    with_it = running.complete("say: th", prediction={"type": "content", "content": text}, **fields)
    without = running.complete("say: th", **fields)
    assert with_it["choices"] == without["choices"]
    details = with_it["usage"]["completion_tokens_details"]
    assert details["accepted_prediction_tokens"] > 20 > details["rejected_prediction_tokens"]
    assert without["usage"]["completion_tokens_details"]["accepted_prediction_tokens"] == 0
