"""`gamaneh serve`: options, the file of options, and what becomes of them. Nothing is served here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gamaneh import testing
from gamaneh.cli import session
from gamaneh.cli.main import app
from gamaneh.cli.serve import ServerChoice
from gamaneh.engine.assembly import build_engine
from gamaneh.options import EngineOptions
from gamaneh.server import lifecycle
from gamaneh.server.access import VARIABLE
from gamaneh.server.server_options import ServerOptions
from gamaneh.server.service import Service

DIGEST = "ab" * 32
REAL_OPEN = session.open_engine


class Opened:
    """What would have been served."""

    service: Service
    address: tuple[str, int]
    healthy = True


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> Iterator[Opened]:
    opened = Opened()

    def open_tiny(model: Any, proposer: Any, bar: Any, **limits: Any) -> Any:
        loaded = testing.tiny_model()
        return loaded, build_engine(loaded, None, proposer.speculation(), model.engine(**limits))

    def serve_on(server: lifecycle.Server, bound: object) -> bool:
        opened.service = server.service
        return opened.healthy

    def bind(host: str, port: int) -> None:
        opened.address = (host, port)

    monkeypatch.setattr(session, "open_engine", open_tiny)
    monkeypatch.setattr(lifecycle, "bind", bind)
    monkeypatch.setattr(lifecycle.Server, "serve_on", serve_on)
    monkeypatch.delenv(VARIABLE, raising=False)
    yield opened


def serve(*arguments: str, status: int = 0) -> Result:
    result = CliRunner().invoke(app, ["serve", *arguments], catch_exceptions=False)
    assert result.exit_code == status, result.stderr
    return result


def test_defaults_are_those_of_the_options_objects(opened: Opened) -> None:
    serve("--model", "tiny")
    assert opened.service.options == ServerOptions()
    assert opened.service.engine.engine.options == EngineOptions()
    assert opened.service.engine.engine.speculation.proposer == "lookup"
    assert (opened.service.model, opened.address) == ("tiny", ("127.0.0.1", 8000))


def test_every_option_of_the_server_can_be_set() -> None:
    assert {field.name for field in fields(ServerChoice)} == {field.name for field in fields(ServerOptions)}


def test_options_reach_server_and_engine(opened: Opened) -> None:
    serve("--model", "tiny", "--port", "9", "--max-batch", "3", "--plain", "--request-seconds", "2.5", "--log-prompts")
    assert (opened.address[1], opened.service.options.request_seconds, opened.service.options.log_prompts) == (
        9,
        2.5,
        True,
    )
    assert opened.service.engine.engine.options.max_batch == 3
    assert opened.service.engine.engine.speculation.proposer == "none"


class TestFile:
    def test_its_values_are_taken_and_the_command_line_goes_first(self, opened: Opened, tmp_path: Path) -> None:
        path = tmp_path / "server.yaml"
        path.write_text(
            "model: tiny\nport: 9001\nmax_waiting: 7\nprefix_cache: false\nlog_level: error\ndraft_length: 2\n"
        )
        serve("--config", str(path), "--port", "9002")
        assert (opened.address[1], opened.service.options.max_waiting) == (9002, 7)
        assert (opened.service.options.log_level, opened.service.engine.engine.options.prefix_cache) == ("error", False)
        assert opened.service.engine.engine.speculation.draft_length == 2

    def test_options_that_proposers_declare_are_taken(self, opened: Opened, tmp_path: Path) -> None:
        path = tmp_path / "server.yaml"
        path.write_text("model: tiny\nproposer: suffix\nsuffix_depth: 9\n")
        serve("--config", str(path))
        assert opened.service.engine.engine.speculation.proposer_options["suffix_depth"] == 9

    @pytest.mark.parametrize("value", [f"alice={DIGEST}", [f"alice={DIGEST}"]])
    def test_keys_are_a_value_or_a_list(self, opened: Opened, tmp_path: Path, value: object) -> None:
        path = tmp_path / "server.yaml"
        path.write_text(f"model: tiny\napi_key: {value}\n")
        serve("--config", str(path))
        assert len(opened.service.keys) == 1

    @pytest.mark.parametrize(
        ("text", "named"),
        [
            ("model: tiny\nprot: 9\n", "prot is not an option of serve"),
            ("model: tiny\nport: {a: 1}\n", "port must be a value or a list of values"),
            ("model: tiny\nport: hot\n", "--port"),
            ("model: tiny\nport: 99999\n", "port must be from 0 to 65535, got 99999"),
            ("model: tiny\nconfig: other.yaml\n", "config is not an option of serve"),
            ("- model\n", "must map options to values"),
            ("model: [tiny\n", "must be a YAML file"),
            ("port: 9\n", "--model"),
        ],
    )
    def test_what_is_wrong_in_it_is_named(self, tmp_path: Path, text: str, named: str) -> None:
        path = tmp_path / "server.yaml"
        path.write_text(text)
        assert named in " ".join(serve("--config", str(path), status=2).stderr.replace("│", " ").split())

    def test_a_file_that_is_not_there_is_named(self) -> None:
        assert "absent.yaml" in serve("--config", "absent.yaml", status=2).stderr


def test_keys_come_from_the_environment_too(opened: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, f"bob={DIGEST}, carol={DIGEST}")
    serve("--model", "tiny", "--api-key", f"alice={DIGEST}")
    assert len(opened.service.keys) == 3


@pytest.mark.parametrize("key", ["alice", f"={DIGEST}", "alice=secret", f"alice={DIGEST}0"])
def test_a_key_that_is_no_hash_is_refused_and_not_repeated(key: str) -> None:
    message = serve("--model", "tiny", "--api-key", key, status=2).stderr
    assert "api_key must be NAME=SHA256" in message and "secret" not in message


def test_an_engine_that_failed_ends_the_process_with_an_error(opened: Opened) -> None:
    opened.healthy = False
    serve("--model", "tiny", status=1)


def log_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("flags", [["--api-key", "alice"], ["--draft-length", "999"]])
def test_a_start_that_fails_is_a_line_of_the_log(flags: list[str]) -> None:
    (line,) = log_lines(serve("--model", "tiny", *flags, status=2).stderr)
    assert (line["level"], line["message"]) == ("error", "cannot start")
    assert line["error"].startswith(("api_key must be", "draft_length must be"))


class TestOpening:
    """The models themselves are tiny here; what is told while they are opened is real."""

    @pytest.fixture(autouse=True)
    def tiny(self, monkeypatch: pytest.MonkeyPatch, opened: Opened) -> None:
        monkeypatch.setattr(session, "open_engine", REAL_OPEN)
        monkeypatch.setattr(session, "open_for", lambda model, backend, role=None: Path(model))
        monkeypatch.setattr(session, "load", lambda model, **options: testing.tiny_model())

    def test_progress_is_in_the_log(self) -> None:
        lines = log_lines(serve("--model", "tiny").stderr)
        assert [(line["message"], line["doing"]) for line in lines] == [
            ("starting", "loading tiny"),
            ("started", "loading tiny"),
            ("starting", "measuring costs"),
            ("started", "measuring costs"),
        ]

    def test_a_context_that_is_cut_is_told(self) -> None:
        lines = log_lines(serve("--model", "tiny", "--max-context", "9999999").stderr)
        (told,) = [line["message"] for line in lines if line["level"] == "warning"]
        assert re.fullmatch(r"max_context is cut to \d+, .*; 9999999 was asked for", told)

    def test_a_proposer_that_there_is_not_is_found_before_anything_is_loaded(self) -> None:
        (line,) = log_lines(serve("--model", "tiny", "--proposer", "ghost", status=2).stderr)
        assert line["error"].startswith("proposer must be one of none, auto,")
