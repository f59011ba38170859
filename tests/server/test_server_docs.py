"""docs/server.md says what there is: every option, field and code; its examples work."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import typer
from served import MODEL, Running

from gamaneh.cli.main import app
from gamaneh.server.schemas import ChatRequest, CompletionRequest, Sampling, SpeculationFields
from gamaneh.server.server_options import ServerOptions

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
ADDRESS = "http://localhost:8000"


def names(table: str) -> set[str]:
    """What stands in backquotes in the first cells of a table."""
    cells = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}


def table_after(title: str) -> set[str]:
    return names(PAGE.split(f"| {title} |")[1].split("\n\n")[0])


def example(title: str) -> str:
    match = re.search(rf"^```text {re.escape(title)}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert match is not None, title
    return match[1]


def test_every_option_is_documented_and_no_other() -> None:
    serve: Any = typer.main.get_group(app).commands["serve"]
    parameters = serve.get_params(typer.Context(serve))  # those of proposers are found when they are asked for
    assert table_after("option | default") == {parameter.opts[0] for parameter in parameters} - {"--help"}


def test_defaults_of_the_server_are_the_documented_ones() -> None:
    for name in ("max_waiting", "max_choices", "max_body_bytes", "request_seconds", "drain_seconds", "failure_seconds"):
        assert (
            f"| `--{name.replace('_', '-')}` | {getattr(ServerOptions(), name):g} |".replace("4.1943e+06", "4194304")
            in PAGE
        )


@pytest.mark.parametrize(
    ("title", "fields"),
    [
        ("field of both", Sampling.model_fields),
        ("field of `/v1/completions`", CompletionRequest.model_fields.keys() - Sampling.model_fields.keys()),
        ("field of `/v1/chat/completions`", ChatRequest.model_fields.keys() - Sampling.model_fields.keys()),
        ("field of `speculation`", SpeculationFields.model_fields),
    ],
)
def test_every_field_is_documented_and_no_other(title: str, fields: Iterable[str]) -> None:
    assert table_after(title) == set(fields)


def test_every_code_of_an_error_is_documented() -> None:
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/gamaneh/server").glob("*.py"))
    codes = {*re.findall(r'code="(\w+)"', sources), *re.findall(r'invalid\(.*, "(\w+)"\)', sources)}
    assert {"queue_full", "context_length_exceeded"} <= codes
    assert codes <= set(re.findall(r"`(\w+)`", PAGE.split("## Errors")[1]))


def test_what_is_told_about_speculation_is_documented(server: Running) -> None:
    told = server.complete(max_tokens=9, speculation={"metrics": True, "tokens": True})["gamaneh"]
    assert table_after("`gamaneh.speculation`") == set(told["speculation"])
    assert table_after("`gamaneh.tokens`") == set(told["tokens"][0])


def test_the_example_of_the_client_works(server: Running) -> None:
    program = example("client.py").replace(ADDRESS, server.url).replace("smollm2-135m-instruct", MODEL)
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "client.py", "exec"), {})
    assert re.search(r"\d+ \d\.\d+", printed.getvalue())


def test_the_example_of_curl_works(server: Running) -> None:
    command = shlex.split(example("curl").replace(ADDRESS, server.url).replace("\\\n", " "))
    answer = subprocess.run([*command, "-sS", "--max-time", "30"], capture_output=True, text=True, check=True)
    assert '"chat.completion"' in answer.stdout
