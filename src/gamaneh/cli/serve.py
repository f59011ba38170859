"""`gamaneh serve`: the OpenAI-compatible server."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, NoReturn

import typer
import yaml

from gamaneh import __version__
from gamaneh.cli.command import EXIT_ERROR, command
from gamaneh.cli.option_groups import ModelChoice, ProposerChoice, option_for
from gamaneh.errors import GamanehError
from gamaneh.options import EngineOptions
from gamaneh.server.server_options import LOG_LEVELS, ServerOptions

EXIT_FAILED = 1
"""Exit code when the engine failed, so that a supervisor starts the server again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """How much the engine does at once."""

    PANEL: ClassVar[str] = "Engine"

    max_batch: Annotated[int | None, option_for(EngineOptions, "max_batch", "Most answers made at once.")] = None
    step_tokens: Annotated[
        int | None, option_for(EngineOptions, "step_tokens", "Most token rows in one forward of the target.")
    ] = None
    block_size: Annotated[
        int | None, option_for(EngineOptions, "block_size", "Tokens in one block of the KV cache.")
    ] = None
    kv_blocks: Annotated[
        int | None, option_for(EngineOptions, "kv_blocks", "Blocks in the target's KV cache; none sizes it by memory.")
    ] = None
    prefix_cache: Annotated[
        bool | None,
        typer.Option("--prefix-cache/--no-prefix-cache", help="Reuse what prompts have in common.", show_default="on"),
    ] = None

    def given(self) -> dict[str, Any]:
        """Those that were said, as arguments of `EngineOptions`."""
        return {field.name: value for field in fields(self) if (value := getattr(self, field.name)) is not None}


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerChoice:
    """Where the server listens, whom it serves, and how much of it."""

    PANEL: ClassVar[str] = "Server"

    host: Annotated[str | None, option_for(ServerOptions, "host", "Address to listen at.")] = None
    port: Annotated[int | None, option_for(ServerOptions, "port", "Port to listen at; 0 takes a free one.")] = None
    served_model_name: Annotated[
        str | None, typer.Option(help="What clients call the model.", show_default="as --model")
    ] = None
    api_key: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SHA256", help="Name and SHA-256 of a key that is served; may be repeated."),
    ] = None
    max_waiting: Annotated[
        int | None, option_for(ServerOptions, "max_waiting", "Most answers that wait, beyond those made at once.")
    ] = None
    max_per_key: Annotated[
        int | None, option_for(ServerOptions, "max_per_key", "Most answers in the making for a key.")
    ] = None
    max_choices: Annotated[int | None, option_for(ServerOptions, "max_choices", "Most answers to one request.")] = None
    max_body_bytes: Annotated[int | None, option_for(ServerOptions, "max_body_bytes", "Longest body of a request.")] = (
        None
    )
    max_prompt_tokens: Annotated[int | None, option_for(ServerOptions, "max_prompt_tokens", "Longest prompt.")] = None
    max_output_tokens: Annotated[int | None, option_for(ServerOptions, "max_output_tokens", "Longest output.")] = None
    request_seconds: Annotated[
        float | None, option_for(ServerOptions, "request_seconds", "Longest time for one request, queueing included.")
    ] = None
    drain_seconds: Annotated[
        float | None,
        option_for(ServerOptions, "drain_seconds", "How long to go on with what there is, when told to end."),
    ] = None
    grace_seconds: Annotated[
        float | None,
        option_for(ServerOptions, "grace_seconds", "How long to listen and refuse at least, when told to end."),
    ] = None
    failure_seconds: Annotated[
        float | None, option_for(ServerOptions, "failure_seconds", "How long to report a failed engine before exiting.")
    ] = None
    stall_seconds: Annotated[
        float | None, option_for(ServerOptions, "stall_seconds", "A longer step makes the server unhealthy.")
    ] = None
    unknown_fields: Annotated[
        str | None,
        option_for(ServerOptions, "unknown_fields", "Fields that requests must not have: refuse, or warn and go on."),
    ] = None
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of web pages that may ask, * for all; may be repeated.")
    ] = None
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Another name that a server at this machine alone may be called by; may be repeated."),
    ] = None
    share_answers: Annotated[
        bool, typer.Option("--share-answers", help="Callers without a key may be shown guesses from others' answers.")
    ] = False
    log_level: Annotated[str | None, option_for(ServerOptions, "log_level", f"One of {', '.join(LOG_LEVELS)}.")] = None
    log_prompts: Annotated[
        bool, typer.Option("--log-prompts", help="Log prompts and outputs, which are left out by default.")
    ] = False

    def __post_init__(self) -> None:
        self.options()

    def options(self) -> ServerOptions:
        """
        Raises:
            InvalidOption: a value is out of range.
        """
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        given = {name: value for name, value in values.items() if value is not None}
        return ServerOptions(**given | {name: tuple(getattr(self, name) or ()) for name in _MANY})


def read_config(context: typer.Context, path: Path | None) -> Path | None:
    """Take the values of a file as defaults of the options; what stands on the command line goes first.

    Raises:
        BadParameter: the file cannot be read, or names an option that there is not.
    """
    if path is not None:
        context.default_map = _checked(
            _load(path), {parameter.name for parameter in context.command.get_params(context)} - {"help"}
        )
    return path


def _load(path: Path) -> Mapping[str, Any]:
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise typer.BadParameter(f"{path} must be a YAML file: {error}") from error
    if not isinstance(values, dict):
        raise typer.BadParameter(f"{path} must map options to values, got {values!r}")
    return values


def _checked(values: Mapping[str, Any], known: set[str]) -> dict[str, Any]:
    for name, value in values.items():
        if name not in known - {"config"}:
            raise typer.BadParameter(f"{name} is not an option of serve; known: {', '.join(sorted(known))}")
        if not all(isinstance(each, str | int | float) for each in _listed(value)):
            raise typer.BadParameter(f"{name} must be a value or a list of values, got {value!r}")
    return {name: _listed(value) if name in _LISTS else value for name, value in values.items()}


_MANY = ("api_key", "allow_origin", "allow_host")
_LISTS = frozenset({*_MANY, "heads"})
"""Options that may be given several times."""


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def refuse_start(error: GamanehError) -> NoReturn:
    """End the program with the error as a line of the log, which is JSON, and exit code 2."""
    from gamaneh.server.logs import configure, log

    configure("info")
    log("cannot start", logging.ERROR, error=str(error))
    raise typer.Exit(EXIT_ERROR) from error


@partial(command, refuse=refuse_start)
def serve_model(
    model: ModelChoice,
    proposer: ProposerChoice,
    limits: EngineLimits,
    server: ServerChoice,
    config: Annotated[
        Path | None,
        typer.Option(help="YAML file of options, named as here, with _ for -.", callback=read_config, is_eager=True),
    ] = None,
) -> None:
    """Serve a model over HTTP, as OpenAI's clients expect it, with speculation that adapts to each request."""
    options = server.options()
    model.engine(**limits.given())
    from gamaneh.cli.session import open_engine
    from gamaneh.engine.async_engine import AsyncEngine
    from gamaneh.server.access import KeyRing
    from gamaneh.server.lifecycle import Server, bind
    from gamaneh.server.logs import configure, progress
    from gamaneh.server.service import Service

    keys = KeyRing.from_environment(options.api_key)
    bound = bind(options.host, options.port)
    configure(options.log_level)
    loaded, engine = open_engine(model, proposer, progress, **limits.given())
    service = Service(AsyncEngine(engine), loaded.tokenizer, model.model, options, keys)
    service.metrics.set_build(
        version=__version__,
        model=service.model,
        dtype=str(loaded.dtype).removeprefix("torch."),
        device=str(loaded.device),
    )
    if not Server(service).serve_on(bound):
        raise typer.Exit(EXIT_FAILED)
