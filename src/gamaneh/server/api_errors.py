"""What goes wrong, as OpenAI's clients expect to be told: `{"error": {message, type, param, code}}`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gamaneh.errors import EngineStopped, InvalidRequest

_TYPES: Mapping[int, str] = {401: "authentication_error", 429: "rate_limit_error"}
"""Status -> type, where it is not the usual one."""

NO_RETRY: Mapping[str, str] = {"x-should-retry": "false"}
"""OpenAI's clients repeat a request after some statuses; this header tells them that it is of no use."""


class ApiError(Exception):
    """An answer that is an error.

    Args:
        status: of the HTTP response.
        message: names the thing, the rule and the value.
        param: field of the request, where one is to blame.
        code: for programs to read.
        headers: of the HTTP response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """The error object, as it is sent in responses and in streams."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        return JSONResponse(self.body(), self.status, self.headers)


def invalid(param: str | None, message: str, code: str | None = None) -> ApiError:
    """The request itself is wrong."""
    return ApiError(400, message, param=param, code=code)


def from_invalid_request(error: InvalidRequest, names: Mapping[str, str] | None = None) -> ApiError:
    """A refusal by the engine; `names` translates its names of fields to those of the request."""
    field = (names or {}).get(error.field, error.field)
    return invalid(field, str(error).replace(error.field, field, 1))


def from_engine_stopped(error: EngineStopped) -> ApiError:
    """The engine is not there to answer."""
    return ApiError(503, str(error), code="engine_stopped", headers={"Retry-After": "5"})


def failed(message: str) -> ApiError:
    """One request failed through no fault of its sender."""
    return ApiError(500, message, code="generation_failed", headers=NO_RETRY)


async def answer_api_error(request: Request, error: Exception) -> Response:
    """Exception handler of the application."""
    assert isinstance(error, ApiError)
    return error.response()


async def answer_http_error(request: Request, error: Exception) -> Response:
    """Unknown paths and methods."""
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path[:100]}: {error.detail}"
    return ApiError(error.status_code, message, headers=error.headers).response()
