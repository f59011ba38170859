"""The command line: one file per command, put together here."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import typer

from gamaneh.cli.advise import give_advice
from gamaneh.cli.audit import audit_losslessness
from gamaneh.cli.bench import run_bench
from gamaneh.cli.compare import compare_modes
from gamaneh.cli.demo import show_demo
from gamaneh.cli.generate import generate_text
from gamaneh.cli.inspect import inspect_artifact
from gamaneh.cli.models import list_models
from gamaneh.cli.pull import pull_model
from gamaneh.cli.refusal import Command
from gamaneh.cli.report import report_runs
from gamaneh.cli.serve import serve_model
from gamaneh.cli.talk import hold_chat
from gamaneh.cli.train import train
from gamaneh.cli.what_if import replay_traffic

COMMANDS: Mapping[str, Callable[..., None]] = {
    "pull": pull_model,
    "models": list_models,
    "generate": generate_text,
    "inspect": inspect_artifact,
    "chat": hold_chat,
    "serve": serve_model,
    "compare": compare_modes,
    "bench": run_bench,
    "advise": give_advice,
    "what-if": replay_traffic,
    "audit": audit_losslessness,
    "report": report_runs,
    "demo": show_demo,
}

app = typer.Typer(
    name="gamaneh",
    help="Exact speculative decoding of language models: faster answers, the same answers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
for _name, _run in COMMANDS.items():
    app.command(_name, cls=Command)(_run)
app.add_typer(train)


def main() -> None:
    """Run the command that the arguments of the program name."""
    app()
