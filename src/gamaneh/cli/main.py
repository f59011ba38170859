"""The command line: one file per command, put together here."""

from __future__ import annotations

import typer

from gamaneh.cli.advise import give_advice
from gamaneh.cli.audit import audit_losslessness
from gamaneh.cli.bench import run_bench
from gamaneh.cli.compare import compare_modes
from gamaneh.cli.demo import show_demo
from gamaneh.cli.generate import generate_text
from gamaneh.cli.inspect import inspect_heads
from gamaneh.cli.models import list_models
from gamaneh.cli.pull import pull_model
from gamaneh.cli.report import report_runs
from gamaneh.cli.serve import serve_model
from gamaneh.cli.train import train
from gamaneh.cli.what_if import replay_traffic

app = typer.Typer(
    name="gamaneh",
    help="Exact speculative decoding of language models: faster answers, the same answers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
app.command("pull")(pull_model)
app.command("models")(list_models)
app.command("generate")(generate_text)
app.command("inspect")(inspect_heads)
app.command("serve")(serve_model)
app.command("compare")(compare_modes)
app.command("bench")(run_bench)
app.command("advise")(give_advice)
app.command("what-if")(replay_traffic)
app.command("audit")(audit_losslessness)
app.command("report")(report_runs)
app.command("demo")(show_demo)
app.add_typer(train)


def main() -> None:
    """Entry point of the `gamaneh` program."""
    app()
