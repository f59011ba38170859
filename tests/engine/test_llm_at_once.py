"""Several answers of one `LLM` at the same time, and an engine that is driven beside it."""

from __future__ import annotations

from gamaneh import LLM, EngineOptions, SamplingParams
from gamaneh.core import Request
from gamaneh.testing import tiny_model

PARAMS = SamplingParams(max_tokens=12, ignore_eos=True)


def tiny() -> LLM:
    return LLM(tiny_model("llama"), options=EngineOptions(max_batch=4, kv_blocks=64, invariant=True))


def text_of(llm: LLM, prompt: list[int]) -> list[int]:
    return llm.generate(prompt, PARAMS)[0].tokens


def test_interleaved_streams_lose_nothing() -> None:
    expected = [text_of(tiny(), prompt) for prompt in ([1, 2, 3], [4, 5])]
    llm = tiny()
    streams = [llm.stream(prompt, PARAMS) for prompt in ([1, 2, 3], [4, 5])]
    found: list[list[int]] = [[], []]
    while any(streams):
        for at, stream in enumerate(streams):
            output = next(stream, None) if stream else None
            if output is None:
                streams[at] = None  # type: ignore[call-overload]
            else:
                found[at] += output.tokens
    assert found == expected


def test_generate_beside_an_open_stream_answers_both() -> None:
    expected = [text_of(tiny(), prompt) for prompt in ([1, 2, 3], [4, 5])]
    llm = tiny()
    stream = llm.stream([1, 2, 3], PARAMS)
    first = next(stream)
    assert text_of(llm, [4, 5]) == expected[1]
    assert [*first.tokens, *(token for output in stream for token in output.tokens)] == expected[0]


def test_requests_of_an_engine_driven_directly_leave_nothing_in_the_llm() -> None:
    llm = tiny()
    llm.engine.add(Request([1, 2, 3], PARAMS))
    while llm.engine.has_work:
        llm.engine.step()
    assert llm._open == {}
