"""Shared by the engine tests: engines over scripted and tiny targets, and a way to run them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from under_test import BACKENDS, TORCH, running

from gamaneh.core import FinishReason, Request, StepOutput
from gamaneh.engine.engine import Engine
from gamaneh.options import SamplingParams


@dataclass
class Answer:
    tokens: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: FinishReason | None = None
    error: str | None = None
    outputs: list[StepOutput] = field(default_factory=list)

    @property
    def outcome(self) -> tuple[list[int], str, FinishReason | None]:
        return self.tokens, self.text, self.finish_reason


def drain(engine: Engine) -> dict[str, Answer]:
    """Step until nothing is left, checking the books after each step."""
    answers: dict[str, Answer] = {}
    for _ in range(20_000):
        if not engine.has_work:
            return answers
        for output in engine.step():
            answer = answers.setdefault(output.request_id, Answer())
            answer.tokens += output.tokens
            answer.text += output.text
            answer.outputs.append(output)
            if output.finish_reason:
                answer.finish_reason, answer.error = output.finish_reason, output.error
        engine.check_integrity()
    raise AssertionError("the engine does not come to an end")


def run(engine: Engine, requests: Mapping[str, tuple[Sequence[int], SamplingParams]]) -> dict[str, Answer]:
    """Add the requests and drain the engine."""
    for request_id, (prompt, params) in requests.items():
        engine.add(Request(prompt, params, id=request_id))
    return drain(engine)


def assert_idle(engine: Engine) -> None:
    """Nothing is held when nothing runs, but for the reusable prefixes."""
    assert engine.backend.kv.pool.in_use == 0
    engine.check_integrity()


@pytest.fixture(params=[1, 3, 8], ids=lambda k: f"k{k}")
def draft_length(request: pytest.FixtureRequest) -> int:
    value: int = request.param
    return value


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Equivalence tests run over each backend."""
    if metafunc.module.__name__.startswith("test_equivalence"):
        metafunc.parametrize("backend_under_test", BACKENDS, indirect=True)


@pytest.fixture(autouse=True)
def backend_under_test(request: pytest.FixtureRequest) -> Iterator[str]:
    """The backend that tiny models are loaded for; a test that is not parametrised has torch."""
    name: str = getattr(request, "param", TORCH)
    with running(name):
        yield name
