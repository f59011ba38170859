"""`gamaneh bench` against real servers on loopback: one that is told, two side by side, and broken ones."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from served import Running, engine_for
from typer.testing import CliRunner, Result

from gamaneh.bench.result import Run, read_run
from gamaneh.cli.bench import EXIT_PARTIAL
from gamaneh.cli.command import EXIT_ERROR
from gamaneh.cli.main import app

FEW = ("--prompts", "PROMPTS", "--rounds", "1", "-n", "6", "--ignore-eos")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    rows = [{"id": f"q{at}", "category": "ab"[at % 2], "language": "en", "prompt": f"question {at}"} for at in range(8)]
    path.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    return path


@pytest.fixture
def bench(prompts: Path, tmp_path: Path) -> Callable[..., tuple[Result, Run | None]]:
    """Runs the command and reads what it wrote."""

    def run(*arguments: str) -> tuple[Result, Run | None]:
        out = tmp_path / "run.json"
        given = [str(prompts) if argument == "PROMPTS" else argument for argument in (*FEW, *arguments)]
        result = CliRunner().invoke(app, ["bench", *given, "--out", str(out)], catch_exceptions=False)
        return result, read_run(out) if out.exists() else None

    return run


def test_our_own_server_is_told_with_each_request(server: Running, bench) -> None:
    result, run = bench("--url", server.url, "--concurrency", "1", "--concurrency", "4")
    assert result.exit_code == 0, result.stderr
    assert run is not None and run.complete and run.mode == "serving"
    assert (run.plain.dialect, run.plain.server) == ("gamaneh", server.url)
    assert run.equality is not None and run.equality.equal == run.equality.compared == 16
    whole = run.points[0].whole
    assert whole.plain.output_tokens == whole.speculative.output_tokens == 48
    assert whole.plain.speculation is not None and whole.plain.speculation.drafted == 0
    speculation = whole.speculative.speculation
    assert speculation is not None and speculation.drafted is not None and speculation.drafted > 0
    assert speculation.survival[0] > 0.3
    assert whole.speculative.split.queue is not None
    assert run.speculative_memory.peak_resident is not None
    assert "scripted" in run.speculative_memory.proposers


def test_two_servers_stand_side_by_side(start: Callable[..., Running], bench) -> None:
    plain, speculative = start(engine_for(k=0)), start(engine_for())
    result, run = bench("--url", speculative.url, "--plain-url", plain.url)
    assert result.exit_code == 0, result.stderr
    assert run is not None
    assert (run.plain.server, run.speculative.server) == (plain.url, speculative.url)
    assert run.equality is not None and run.equality.equal == 8


def test_requests_that_arrive_by_the_clock(server: Running, bench) -> None:
    _, run = bench("--url", server.url, "--rate", "40", "--arrivals", "gamma", "--burstiness", "0.5")
    assert run is not None
    assert (run.points[0].load.pattern, run.points[0].load.burstiness) == ("gamma", 0.5)
    assert run.points[0].saturation is not None


def test_a_recording_is_replayed(server: Running, bench, prompts: Path) -> None:
    rows = [{"prompt": f"question {at}", "at": 100 + at / 50} for at in range(6)]
    prompts.write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    _, run = bench("--url", server.url, "--replay")
    assert run is not None
    assert (run.points[0].load.pattern, run.points[0].load.level) == ("replay", pytest.approx(50))


def test_a_field_that_changes_sampling_on_one_side_is_refused(server: Running, bench) -> None:
    result, run = bench("--url", server.url, "--speculative-fields", '{"top_k": 3}')
    assert (result.exit_code, run) == (EXIT_ERROR, None)
    assert "sampling must be the same on both sides" in result.stderr


def test_it_is_flagged_where_that_is_allowed(server: Running, bench) -> None:
    _, run = bench("--url", server.url, "--speculative-fields", '{"top_k": 3}', "--allow-unequal")
    assert run is not None
    assert "different_sampling" in [caution.code for caution in run.cautions]


def test_nobody_at_the_address_is_an_error(bench) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    result, run = bench("--url", url)
    assert (result.exit_code, run) == (EXIT_ERROR, None)
    assert f"gamaneh: {url} must be a server with OpenAI's API" in result.stderr


class Broken(BaseHTTPRequestHandler):
    """Answers a number of requests and then sends `ending` in place of an answer."""

    left: int
    ending: bytes

    def do_GET(self) -> None:
        known = self.path == "/v1/models"
        body = json.dumps({"data": [{"id": "fragile", "owned_by": "somebody"}]}).encode() if known else b""
        self._send(200 if known else 404, body)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        kind = type(self)
        kind.left -= 1
        chunk = {"choices": [{"index": 0, "delta": {"content": "word"}}]}
        data = f"data: {json.dumps(chunk)}\n\n".encode()
        self._send(200, data * 2 + b"data: [DONE]\n\n" if kind.left >= 0 else data + kind.ending)

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        """Quiet."""


@contextmanager
def broken_server(answers: int, ending: bytes) -> Iterator[str]:
    handler = type("Fragile", (Broken,), {"left": answers, "ending": ending})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        (b"", "the server broke off: the stream ended without [DONE]"),
        (b"data: {half\n\n", "the server sent an event that is not JSON"),
        (b'data: {"error": {"message": "out of memory"}}\n\n', "the server broke the answer off"),
    ],
)
def test_a_server_that_dies_in_the_middle_leaves_what_was_measured(ending: bytes, message: str, bench) -> None:
    with broken_server(9, ending) as url:
        result, run = bench("--url", url, "--plain-url", url)
    assert result.exit_code == EXIT_PARTIAL
    assert message in result.stdout
    assert "stopped early (5 requests in a row failed" in result.stdout
    assert run is not None and not run.complete
    assert run.points[0].whole.plain.requests >= 3
    assert len(run.failures) >= 5


def test_one_server_that_cannot_be_told_is_refused(bench) -> None:
    with broken_server(99, b"") as url:
        result, _ = bench("--url", url)
    assert result.exit_code == EXIT_ERROR
    assert "--plain-url or --plain-fields must be given for a server that cannot be told" in result.stderr


def test_a_field_may_be_the_switch(bench) -> None:
    with broken_server(99, b"") as url:
        result, run = bench("--url", url, "--plain-fields", '{"speculate": false}')
    assert result.exit_code == 0, result.stderr
    assert run is not None and run.plain.fields == {"speculate": False}
    assert "draft_memory" in [caution.code for caution in run.cautions]
    assert "unknown_conditions" in [caution.code for caution in run.cautions]
