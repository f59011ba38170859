"""What every HTTP request passes through: who may ask from where, its id, its count, and faults that nobody foresaw."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import re
import traceback
import uuid
from collections.abc import Collection
from dataclasses import dataclass

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gamaneh.metrics.prometheus import PrometheusMetrics
from gamaneh.server.api_errors import NO_RETRY, ApiError
from gamaneh.server.logs import log

OTHER = "other"
"""Stands for all paths that are none of ours, so that nobody can make series without end."""

REQUEST_ID = "x-request-id"
_SAFE_ID = re.compile(r"[\x21-\x7e]{1,128}")

LAST_WORD_SECONDS = 0.2
"""How long a request that is cut off may take to hear of it."""

MOST_LOGGED = 4000
"""Characters of a traceback that are logged: its end, which tells most."""

_JSON = re.compile(r"application/([\w.+-]+\+)?json", re.IGNORECASE)


@dataclass(slots=True)
class Passage:
    """One request on its way through, as the scope's `gamaneh` holds it.

    Args:
        request_id: the caller's, or one of ours.
        logged: the request has a line in the log already.
    """

    request_id: str
    logged: bool = False


def passage_of(scope: Scope) -> Passage:
    """The passage that `Watch` has put into a scope."""
    passage: Passage = scope["gamaneh"]
    return passage


class Watch:
    """Counts responses by route and status, and turns away what must not be answered.

    Args:
        routes: paths that are counted by name.
        hosts: names that requests may call this server by; empty allows all.
        origins: origins of pages that may ask; `*` allows all.
    """

    def __init__(
        self,
        app: ASGIApp,
        metrics: PrometheusMetrics,
        routes: Collection[str],
        hosts: Collection[str] = (),
        origins: Collection[str] = (),
    ) -> None:
        self.app, self.metrics = app, metrics
        self._routes, self._hosts, self._origins = frozenset(routes), frozenset(hosts), frozenset(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        scope["gamaneh"] = passage = Passage(_request_id(headers))
        route = scope["path"] if scope["path"] in self._routes else OTHER
        status = 0

        async def counting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.metrics.observe_response(route, status)
                MutableHeaders(scope=message)[REQUEST_ID] = passage.request_id
            await send(message)

        try:
            self._check(scope, headers)
            await self.app(scope, receive, counting)
        except ApiError as error:
            await error.response()(scope, receive, counting)
        except asyncio.CancelledError:  # the server ends, and waits for this one no longer
            log("cut off", logging.WARNING, route=route, request_id=passage.request_id)
            if status == 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LAST_WORD_SECONDS):
                        await _ending().response()(scope, receive, counting)
        except Exception as error:  # nothing may leave a request without an answer, or a fault without a line
            text = "".join(traceback.format_exception(error))[-MOST_LOGGED:]
            log("fault", logging.ERROR, request_id=passage.request_id, route=route, exception=text)
            passage.logged = True
            if status == 0:
                await _fault(passage.request_id).response()(scope, receive, counting)
        if status >= 400 and not passage.logged:
            log("refused", route=route, status=status, request_id=passage.request_id)

    def _check(self, scope: Scope, headers: Headers) -> None:
        """
        Raises:
            ApiError: 403, another host was meant; 415, the body is not JSON as it stands.
        """
        host = headers.get("host", "")
        if self._hosts and _name_of(host) not in self._hosts:
            raise ApiError(403, f"the header Host must name this server, got {host[:100]!r}", code="wrong_host")
        if scope["method"] != "POST":
            return
        encoding = headers.get("content-encoding", "identity")
        if encoding.lower() != "identity":
            message = f"the body must not be encoded, got Content-Encoding {encoding[:100]!r}"
            raise ApiError(415, message, code="unsupported_encoding")
        kind = headers.get("content-type")
        origin = headers.get("origin")
        if kind is None and (origin is None or {origin, "*"} & self._origins):
            return  # no page can send this without being asked first
        if not _JSON.fullmatch((kind or "").partition(";")[0].strip()):
            message = f"the Content-Type must be application/json, got {(kind or 'none')[:100]!r}"
            raise ApiError(415, message, code="unsupported_media_type")


def hosts_of(bound: str, more: Collection[str]) -> frozenset[str]:
    """Names by which a server may be called: any, unless it is bound to this machine alone.

    A page of any site can make a name of its own lead to this machine, and then ask as if it were this server's.
    """
    if not _is_loopback(bound):
        return frozenset()
    return frozenset({"localhost", "127.0.0.1", "::1", _name_of(bound), *map(str.lower, more)})


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name.lower() == "localhost"


def _name_of(host: str) -> str:
    """`[::1]:8000` -> `::1`."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return (host if host.count(":") > 1 else host.partition(":")[0]).lower()


def _request_id(headers: Headers) -> str:
    given = headers.get(REQUEST_ID, "")
    return given if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex


def _ending() -> ApiError:
    return ApiError(503, "the server is ending", code="engine_stopped", headers={"Connection": "close"})


def _fault(request_id: str) -> ApiError:
    message = f"the server has a fault; its log says more at the request {request_id}"
    return ApiError(500, message, code="internal_error", headers={**NO_RETRY, "Connection": "close"})
