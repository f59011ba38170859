"""The playground page: files that lie beside this module, and nothing from anywhere else."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

MEDIA_TYPES: Mapping[str, str] = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}

HEADERS: Mapping[str, str] = {
    # Only this server's own files, no markup made from text, no frames around the page.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A new version of the server is a new version of the page: ask each time, and send nothing if it is the same.
    "Cache-Control": "no-cache",
}


def routes() -> list[Route]:
    """The page at `/`, its parts below `/page/`. No key is asked for: nothing of it is secret."""
    parts = {entry.name: entry.read_bytes() for entry in files("gamaneh.server").joinpath("page").iterdir()}
    index = _route("/", "index.html", parts.pop("index.html"))
    return [index, *(_route(f"/page/{name}", name, body) for name, body in sorted(parts.items()))]


def _route(path: str, name: str, body: bytes) -> Route:
    etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {**HEADERS, "ETag": etag}
    media_type = MEDIA_TYPES[name.rpartition(".")[2]]

    async def answer(request: Request) -> Response:
        if request.headers.get("If-None-Match") == etag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers, media_type=media_type)

    return Route(path, answer, methods=["GET"], name=name)
