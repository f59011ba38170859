"""Options of the server, each with one default. Checked here, before a model is loaded."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from gamaneh.errors import InvalidOption

UNKNOWN_FIELDS = ("refuse", "warn")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/\s]+")
LOG_LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Where the server listens, whom it serves, and how much of it.

    Args:
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        served_model_name: what clients call the model; None for the name it was loaded by.
        api_key: `NAME=SHA256` of each key that is served; with none, here and in the environment, everybody is.
        max_waiting: most answers that wait, beyond those that the engine makes at once.
        max_per_key: most answers in the making for one key; None for no such bound.
        max_choices: most answers to one request, over all its prompts.
        max_body_bytes: longest body of a request.
        max_prompt_tokens: longest prompt; None leaves it to the context.
        max_output_tokens: longest output; a request that asks for more, or for no number, gets this many.
            None leaves it to the context.
        request_seconds: longest time for one request, queueing included.
        drain_seconds: how long a server that is told to end goes on with what it has.
        grace_seconds: how long a server that a signal told to end goes on listening at least, to refuse with 503.
        failure_seconds: how long a server whose engine failed says so before it exits.
        stall_seconds: a step that takes longer makes the server unhealthy.
        unknown_fields: `refuse` refuses a request with a field that there is not; `warn` logs it and goes on.
        allow_origin: origins of web pages that may ask, such as `https://example.org`; `*` for all.
        allow_host: further names by which a server that is bound to this machine alone may be called.
        share_answers: callers without a key and without a `cache_salt` may be shown guesses from each other's answers.
        log_level: least important of what is logged.
        log_prompts: log prompts and outputs, too.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    served_model_name: str | None = None
    api_key: tuple[str, ...] = ()
    max_waiting: int = 128
    max_per_key: int | None = None
    max_choices: int = 16
    max_body_bytes: int = 4 << 20
    max_prompt_tokens: int | None = None
    max_output_tokens: int | None = None
    request_seconds: float = 600.0
    drain_seconds: float = 30.0
    grace_seconds: float = 1.0
    failure_seconds: float = 5.0
    stall_seconds: float = 120.0
    unknown_fields: str = "refuse"
    allow_origin: tuple[str, ...] = ()
    allow_host: tuple[str, ...] = ()
    share_answers: bool = False
    log_level: str = "info"
    log_prompts: bool = False

    def __post_init__(self) -> None:
        for name, (rule, holds) in _CHECKS.items():
            value = getattr(self, name)
            if value is not None and not holds(value):
                raise InvalidOption(name, rule, value)


def _at_least(low: float) -> tuple[str, Callable[[Any], bool]]:
    return f"must be at least {low:g}", lambda value: value >= low


_CHECKS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "host": ("must be an address", lambda value: value != ""),
    "port": ("must be from 0 to 65535", lambda value: 0 <= value <= 65535),
    "served_model_name": ("must not be empty", lambda value: value != ""),
    "max_waiting": _at_least(0),
    "max_per_key": _at_least(1),
    "max_choices": _at_least(1),
    "max_body_bytes": _at_least(1),
    "max_prompt_tokens": _at_least(1),
    "max_output_tokens": _at_least(1),
    "request_seconds": ("must be above 0", lambda value: value > 0),
    "drain_seconds": _at_least(0),
    "grace_seconds": _at_least(0),
    "failure_seconds": _at_least(0),
    "stall_seconds": ("must be above 0", lambda value: value > 0),
    "unknown_fields": (f"must be one of {', '.join(UNKNOWN_FIELDS)}", lambda value: value in UNKNOWN_FIELDS),
    "allow_origin": (
        "must be *, or origins such as https://example.org",
        lambda value: all(each == "*" or _ORIGIN.fullmatch(each) for each in value),
    ),
    "log_level": (f"must be one of {', '.join(LOG_LEVELS)}", lambda value: value in LOG_LEVELS),
}
