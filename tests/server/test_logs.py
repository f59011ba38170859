"""What is logged about requests, and what is not."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from served import engine_for, saying, until

from gamaneh.server import logs
from gamaneh.server.server_options import ServerOptions


class Log:
    """The lines that were logged, as objects."""

    def __init__(self) -> None:
        self.text = io.StringIO()

    def requests(self) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.text.getvalue().splitlines()]
        return [line for line in lines if line["message"] == "request"]

    def one(self) -> dict[str, Any]:
        until(lambda: len(self.requests()) == 1)
        return self.requests()[0]


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    handler = logging.StreamHandler(log.text)
    handler.setFormatter(logs.JsonLines())
    logs.LOGGER.addHandler(handler)
    logs.LOGGER.setLevel("INFO")
    yield log
    logs.LOGGER.removeHandler(handler)


def test_a_request_is_one_line_without_its_text(start, log: Log) -> None:
    running = start(engine_for(saying("an answer", "a secret")))
    running.complete("a secret", temperature=0, user="u-17")
    line = log.one()
    expected = {"route": "/v1/completions", "status": 200, "client": None, "user": "u-17", "stream": False}
    assert {key: line[key] for key in expected} == expected
    assert (line["prompt_tokens"], line["output_tokens"], line["level"]) == (8, 9, "info")
    assert line["seconds"] > 0 and line["id"].startswith("cmpl-")
    assert "secret" not in log.text.getvalue() and "answer" not in log.text.getvalue()


def test_text_is_logged_where_that_is_wished_for(start, log: Log) -> None:
    running = start(engine_for(saying("an answer", "a question")), ServerOptions(log_prompts=True))
    running.complete("a question", temperature=0)
    assert (log.one()["prompts"], log.one()["outputs"]) == (["a question"], ["an answer"])


def test_refusals_say_what_was_wrong(start, log: Log) -> None:
    start(engine_for()).refusal(prompt="a", temperature=-1)
    assert (log.one()["status"], log.one()["param"]) == (400, "temperature")


def test_an_exception_is_in_its_line() -> None:
    try:
        raise ValueError("a fault")
    except ValueError:
        record = logs.LOGGER.makeRecord("x", logging.ERROR, "f", 1, "it broke", (), sys.exc_info())
    line = json.loads(logs.JsonLines().format(record))
    assert (line["level"], line["message"]) == ("error", "it broke")
    assert "ValueError: a fault" in line["exception"]
