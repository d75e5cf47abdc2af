"""Serves the web console: static HTML, CSS and JavaScript modules that use the public API only.

The content security policy allows nothing but these files: no inline script or style, no frames, no other site.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib import resources
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from miniq.errors import NoRoute

MEDIA = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}


class File(NamedTuple):
    text: bytes
    gzipped: bytes
    media: str
    etag: str


@cache
def files() -> dict[str, File]:
    """Every file of the console, by name."""
    by_name = {}
    for file in resources.files("miniq").joinpath("console").iterdir():
        media = MEDIA.get(file.name.rpartition(".")[2])
        if media is not None:
            text = file.read_bytes()
            etag = f'"{hashlib.sha256(text).hexdigest()[:16]}"'
            by_name[file.name] = File(text, gzip.compress(text, mtime=0), f"{media}; charset=utf-8", etag)
    return by_name


def routes() -> list[BaseRoute]:
    return [
        Route("/", _home),
        Route("/console", _page),
        Route("/console/", _home),
        Route("/console/{file}", _file),
    ]


async def _home(request: Request) -> Response:
    return RedirectResponse("/console")


async def _page(request: Request) -> Response:
    return _answer(request, "index.html")


async def _file(request: Request) -> Response:
    name = request.path_params["file"]
    if name not in files():
        raise NoRoute(f"not found: {request.scope['path'][:200]}; see /console")
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    file = files()[name]
    headers = HEADERS | {"etag": file.etag}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.gzipped, media_type=file.media, headers=headers | {"content-encoding": "gzip"})
    return Response(file.text, media_type=file.media, headers=headers)
