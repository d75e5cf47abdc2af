"""Serves the manual at `/manual`, if it is installed: the site that `miniq.manual` builds.

The content security policy allows what the site itself has. Its theme begins each page with a few inline scripts, which
are allowed by their hashes: no other inline script, no frame, no other site.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import logging
import os
import re
import sys
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from miniq.errors import NoRoute
from miniq.manual_files import SITE, START, built, cache, sources
from miniq.server.http.console import HEADERS, MEDIA

log = logging.getLogger("miniq.http")

MEDIAS = MEDIA | {"png": "image/png", "json": "application/json", "map": "application/json", "xml": "text/xml"}
BUILDER = "mkdocs"
"""The module that the extra `docs` brings."""
BUILD_TIMEOUT = 600
CACHED = 64
"""How many files are kept in memory, compressed: a reader needs the theme again and again."""
POLICY = (
    "default-src 'none'; script-src 'self'{scripts}; worker-src 'self'; style-src 'self'{styles}; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
_COMPRESSED = ("text", "javascript", "json", "svg")


class File(NamedTuple):
    path: Path
    media: str
    etag: str
    policy: str
    gzipped: bytes | None


class ManualPages:
    """The pages below `/manual`, and the build that makes them."""

    def __init__(self) -> None:
        self._known: tuple[Path, int] | None = None
        """The site, and when it was built."""
        self._files: frozenset[str] = frozenset()
        self._building: asyncio.Task[None] | None = None
        self._failed = False

    def routes(self) -> list[BaseRoute]:
        return [Route("/manual", self._home), Route("/manual/{file:path}", self._file)]

    async def _home(self, request: Request) -> Response:
        return RedirectResponse("/manual/")

    async def _file(self, request: Request) -> Response:
        found = await asyncio.to_thread(self._found)
        if found is None:
            return self._absent()
        site, changed = found
        name = request.path_params["file"] or START
        if name not in self._files:
            raise NoRoute(f"not found: {request.scope['path'][:200]}; see /manual/")
        file = await asyncio.to_thread(_read, site / name, changed)
        headers = HEADERS | {"content-security-policy": file.policy, "etag": file.etag}
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        if file.gzipped is not None and "gzip" in request.headers.get("accept-encoding", ""):
            return Response(file.gzipped, media_type=file.media, headers=headers | {"content-encoding": "gzip"})
        return Response(await asyncio.to_thread(file.path.read_bytes), media_type=file.media, headers=headers)

    def _found(self) -> tuple[Path, int] | None:
        """The site, when it was built, and the names of its files: only those are served."""
        site = built()
        found = None if site is None else (site, (site / START).stat().st_mtime_ns)
        if found is not None and found != self._known:
            files = (path for path in found[0].rglob("*") if path.is_file())
            self._files = frozenset(path.relative_to(found[0]).as_posix() for path in files)
        self._known = found
        return found

    def _absent(self) -> Response:
        """Build the manual if that is possible, and say what happens."""
        if self._failed:
            return _page(500, "The manual could not be built", FAILED)
        if find_spec(BUILDER) is None or sources() is None:
            return _page(404, "The manual is not installed", MISSING)
        if self._building is None:
            self._building = asyncio.create_task(self._build())
        return _page(503, "The manual is being built", BUILDING, refresh=3)

    async def _build(self) -> None:
        """Build the site, or say in the log why that is not possible: readers may be strangers."""
        try:
            error = await _built()
        except OSError as failure:
            error = str(failure)
        if error:
            self._failed = True
            log.error("the manual could not be built", extra={"error": error})


async def _built() -> str:
    """Build the site in a process of its own, which ends with the broker; what went wrong."""
    folder = SITE if os.access(SITE.parent, os.W_OK) else cache()
    if folder is None:
        return f"{SITE.parent} is not writable, and the user of the broker has no home for a cache"
    command = (sys.executable, "-P", "-m", "miniq.manual", str(folder), "--background")
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=asyncio.subprocess.STDOUT)
    try:
        async with asyncio.timeout(BUILD_TIMEOUT):
            said, _ = await process.communicate()
    except TimeoutError:
        return f"not done after {BUILD_TIMEOUT} s"
    finally:
        if process.returncode is None:
            process.kill()
    return said.decode(errors="replace")[-4000:] or "failed" if process.returncode else ""


MISSING = """
<p>It comes with the wheel that <code>make dist</code> builds in the checkout of MiniQ. In an environment that was
installed otherwise:</p>
<ul>
<li>in the checkout, <code>make docs</code> builds it; then open this page again</li>
<li>elsewhere, install the extra <code>docs</code> from the checkout, <code>pip install '.[docs]'</code>, and restart
the broker: it builds the manual when this page is opened, in less than a minute</li>
</ul>
<p>Nothing of it is loaded from the Internet. The calls of the API are described at <a href="/docs">/docs</a>.</p>"""
FAILED = "<p>The log of the broker says why. Restart it to try again.</p>"
BUILDING = "<p>This happens once and takes less than a minute. The page will show it then.</p>"


def _page(status: int, title: str, text: str, refresh: int = 0) -> Response:
    again = f'<meta http-equiv="refresh" content="{refresh}">' if refresh else ""
    page = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">{again}
<title>{title}</title>
<style>:root {{ color-scheme: light dark }}
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 42rem; margin: 0 auto; padding: 2rem 1rem }}</style>
<main><h1>{title}</h1>{text}</main></html>
"""
    headers = HEADERS | {
        "content-security-policy": POLICY.format(scripts="", styles=" 'unsafe-inline'"),
        "cache-control": "no-store",
    }
    if refresh:
        headers["retry-after"] = str(refresh)
    return Response(page, status, media_type="text/html; charset=utf-8", headers=headers)


@lru_cache(CACHED)
def _read(path: Path, changed: int) -> File:
    """What is served with a file; `changed` tells a rebuilt site from the one before."""
    text = path.read_bytes()
    media = MEDIAS.get(path.suffix[1:], "text/plain")
    hashes = {base64.b64encode(hashlib.sha256(script).digest()).decode() for script in _SCRIPT.findall(text)}
    scripts = "".join(f" 'sha256-{one}'" for one in sorted(hashes)) if media == "text/html" else ""
    gzipped = gzip.compress(text, 6, mtime=0) if any(kind in media for kind in _COMPRESSED) else None
    if media.startswith("text/"):
        media += "; charset=utf-8"
    etag = f'"{hashlib.sha256(text).hexdigest()[:16]}"'
    return File(path, media, etag, POLICY.format(scripts=scripts, styles=""), gzipped)
