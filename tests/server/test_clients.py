"""The clients that people use: OpenAI's library, LangChain, curl; over a scripted model and over a real one."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import openai
import pytest
from langchain_core.messages import HumanMessage, SystemMessage
from langchain_openai import ChatOpenAI
from openai import OpenAI
from pydantic import BaseModel, SecretStr
from served import MODEL, Running, engine_for, saying, serving

from gamaneh.engine.assembly import build_engine
from gamaneh.models.fetch import find
from gamaneh.models.loading import load
from gamaneh.options import EngineOptions, SpeculationOptions
from gamaneh.server.access import KeyRing
from gamaneh.testing import fixed_output

REAL = "smollm2-135m-instruct"
KEY = "sesame"
QUESTION = "Write the numbers from one to five."
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 16}


@pytest.fixture(scope="module")
def real() -> Iterator[Running]:
    """The real small model, guessing by lookup, adapting, with the same bits whatever the batch."""
    path = find(REAL)
    assert path is not None, f"{REAL} is not in the cache: run `gamaneh pull {REAL}`"
    loaded = load(path)
    options = EngineOptions(max_batch=8, max_context=1024, invariant=True)
    engine = build_engine(loaded, None, SpeculationOptions(proposer="lookup"), options)
    keys = KeyRing([f"tests={hashlib.sha256(KEY.encode()).hexdigest()}"])
    with serving(engine, keys=keys, tokenizer=loaded.tokenizer) as running:
        yield running


def client_of(running: Running, **options: Any) -> OpenAI:
    return OpenAI(base_url=f"{running.url}/v1", api_key=KEY, timeout=120, max_retries=0, **options)


@pytest.fixture(scope="module")
def client(real: Running) -> OpenAI:
    return client_of(real)


@pytest.fixture
def scripted(server: Running) -> OpenAI:
    return client_of(server)


def joined(stream: Any) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices)


def ask(client: OpenAI, content: str = QUESTION, **fields: Any) -> Any:
    return client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": content}], **{**GREEDY, **fields}
    )


class TestRealModel:
    def test_a_streamed_answer_is_the_one_that_comes_at_once(self, client: OpenAI) -> None:
        whole = ask(client)
        assert whole.choices[0].message.content
        assert joined(ask(client, stream=True)) == whole.choices[0].message.content
        assert whole.usage.completion_tokens == 16

    @pytest.mark.parametrize("sampling", [{"temperature": 0}, {"temperature": 0.8, "seed": 4}])
    def test_eight_at_once_are_answered_as_alone_without_speculation(
        self, client: OpenAI, sampling: dict[str, Any]
    ) -> None:
        asked = ["Say: one, two, one, two, one", "سلام! یک جمله بنویس.", "def add(a, b):", "Why is the sky blue?"]

        def answer(content: str, **speculation: Any) -> str:
            text: str = (
                ask(client, content, **sampling, extra_body={"speculation": speculation}).choices[0].message.content
            )
            return text

        plain = [answer(content, enabled=False) for content in asked]
        with ThreadPoolExecutor(8) as pool:
            assert list(pool.map(answer, asked * 2)) == plain * 2

    def test_structured_output_is_parsed(self, client: OpenAI) -> None:
        class Verdict(BaseModel):
            colour: Literal["red", "blue"]
            certain: bool

        answer = client.chat.completions.parse(
            model=MODEL,
            messages=[{"role": "user", "content": "Is the sky red or blue? Answer as JSON."}],
            response_format=Verdict,
            temperature=0,
            max_tokens=60,
        )
        assert isinstance(answer.choices[0].message.parsed, Verdict)

    def test_completions_continue_a_text(self, client: OpenAI) -> None:
        answer = client.completions.create(model=MODEL, prompt="one two three one two three one", logprobs=2, **GREEDY)
        assert answer.choices[0].text
        assert len(answer.choices[0].logprobs.tokens) == answer.usage.completion_tokens

    def test_speculation_explains_itself(self, client: OpenAI) -> None:
        answer = client.completions.create(
            model=MODEL,
            prompt="one two three one two three one two three one",
            extra_body={"speculation": {"draft_length": 4, "metrics": True}},
            **GREEDY,
        )
        metrics = answer.model_extra["gamaneh"]["speculation"]
        assert metrics["accepted"] > 0 and metrics["exact"]

    def test_langchain_answers_streams_and_batches(self, real: Running) -> None:
        chat = ChatOpenAI(
            base_url=f"{real.url}/v1",
            api_key=SecretStr(KEY),
            model=MODEL,
            temperature=0,
            max_completion_tokens=12,
            max_retries=0,
        )
        messages = [SystemMessage("Be brief."), HumanMessage(QUESTION)]
        answer = chat.invoke(messages)
        assert answer.content
        assert "".join(str(chunk.content) for chunk in chat.stream(messages)) == answer.content
        assert [each.content for each in chat.batch([messages] * 3)] == [answer.content] * 3
        assert 0 < answer.usage_metadata["output_tokens"] <= 12

    def test_curl_gets_an_answer_and_a_stream(self, real: Running) -> None:
        body = {"messages": [{"role": "user", "content": QUESTION}], **GREEDY}
        whole = json.loads(curl(real, body, f"Authorization: Bearer {KEY}"))
        lines = curl(real, {**body, "stream": True}, f"Authorization: Bearer {KEY}").strip().split("\n\n")
        assert lines[-1] == "data: [DONE]"
        chunks = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
        assert text == whole["choices"][0]["message"]["content"]

    def test_a_wrong_key_is_an_authentication_error(self, client: OpenAI) -> None:
        with pytest.raises(openai.AuthenticationError):
            ask(client.with_options(api_key="wrong"))


def curl(running: Running, body: dict[str, Any], *headers: str) -> str:
    program = shutil.which("curl")
    assert program is not None, "curl is not installed"
    given = [argument for header in ("Content-Type: application/json", *headers) for argument in ("-H", header)]
    command = [program, "-sS", "-N", "--max-time", "60", *given, "-d", json.dumps(body)]
    url = f"{running.url}/v1/chat/completions"
    return subprocess.run([*command, url], capture_output=True, text=True, check=True, timeout=90).stdout


class TestOpenAI:
    """What the library makes of everything else, over a scripted model."""

    def test_models_are_listed(self, scripted: OpenAI) -> None:
        assert [model.id for model in scripted.models.list()] == [MODEL]
        assert scripted.models.retrieve(MODEL).owned_by == "gamaneh"

    def test_usage_comes_last_in_a_stream(self, scripted: OpenAI) -> None:
        *chunks, last = ask(
            scripted, stream=True, stream_options={"include_usage": True}, extra_body={"ignore_eos": True}
        )
        assert last.choices == [] and last.usage.completion_tokens == 16
        assert all(chunk.usage is None for chunk in chunks)

    def test_several_answers_have_their_indexes(self, scripted: OpenAI) -> None:
        answer = ask(scripted, n=3, temperature=1, seed=1, extra_body={"ignore_eos": True})
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        assert len({choice.message.content for choice in answer.choices}) == 3

    def test_logprobs_are_typed(self, scripted: OpenAI) -> None:
        answer = ask(scripted, logprobs=True, top_logprobs=2, extra_body={"ignore_eos": True})
        content = answer.choices[0].logprobs.content
        assert len(content) == 16
        assert all(len(entry.top_logprobs) == 2 and entry.logprob <= 0 for entry in content)

    def test_text_completions_stream(self, scripted: OpenAI) -> None:
        asked: dict[str, Any] = {"model": MODEL, "prompt": "hello", **GREEDY}
        whole = scripted.completions.create(**asked).choices[0].text
        assert "".join(chunk.choices[0].text for chunk in scripted.completions.create(**asked, stream=True)) == whole

    def test_predicted_outputs_are_counted(self, start: Any) -> None:
        client = client_of(start(engine_for(saying("the same text", f"user: {QUESTION}\n"))))
        answer = ask(client, prediction={"type": "content", "content": "the same text"})
        assert answer.choices[0].message.content == "the same text"
        details = answer.usage.completion_tokens_details
        assert details.accepted_prediction_tokens > 0 <= details.rejected_prediction_tokens

    @pytest.mark.parametrize("stream", [False, True])
    def test_tools_are_called(self, start: Any, stream: bool) -> None:
        text = '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>'
        client = client_of(start(engine_for(saying(text, f"user: {QUESTION}\n"))))
        tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]
        asked: dict[str, Any] = {"tools": tools, "max_tokens": 100}
        if stream:
            calls = [
                call for chunk in ask(client, stream=True, **asked) for call in chunk.choices[0].delta.tool_calls or ()
            ]
            name = calls[0].function.name
            arguments = "".join(call.function.arguments for call in calls)
        else:
            (call,) = ask(client, **asked).choices[0].message.tool_calls
            name, arguments = call.function.name, call.function.arguments
        assert (name, json.loads(arguments)) == ("f", {"x": 1})

    def test_refusals_are_the_librarys_errors(self, scripted: OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as refusal:
            ask(scripted, temperature=-1)
        assert refusal.value.param == "temperature"
        with pytest.raises(openai.BadRequestError) as refusal:
            ask(scripted, "x" * 300)
        assert refusal.value.code == "context_length_exceeded"
        with pytest.raises(openai.NotFoundError):
            scripted.chat.completions.create(model="gpt-4", messages=[{"role": "user", "content": "x"}])

    def test_an_error_in_a_stream_is_raised(self, start: Any) -> None:
        def script(history: list[int]) -> Any:
            return fixed_output([97], 260, 0)(history) * (float("nan") if len(history) > 60 else 1.0)

        client = client_of(start(engine_for(script, k=None, accuracy=0.0)))
        plain: dict[str, Any] = {"extra_body": {"speculation": {"enabled": False}}}
        with pytest.raises(openai.APIError, match="must be finite"):
            joined(ask(client, stream=True, temperature=1, max_tokens=60, **plain))


def test_langchain_calls_tools(start: Any) -> None:
    text = '<tool_call>{"name": "add", "arguments": {"a": 1, "b": 2}}</tool_call>'
    running = start(engine_for(saying(text, f"user: {QUESTION}\n")))

    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    chat = ChatOpenAI(base_url=f"{running.url}/v1", api_key=SecretStr(KEY), model=MODEL, temperature=0)
    (call,) = chat.bind_tools([add]).invoke([HumanMessage(QUESTION)]).tool_calls
    assert (call["name"], call["args"]) == ("add", {"a": 1, "b": 2})
