"""`GET /v1/report`: the latest page written by `miniq pipeline report`, read from the path in the option `report`.

Another process wrote the file, so the browser gets it sandboxed: no scripts, no requests, an opaque origin.
"""

from __future__ import annotations

import asyncio
import os
from email.utils import formatdate

from starlette.responses import Response

from miniq.errors import InvalidRequest, NotFound, TooLarge
from miniq.files import check_regular

PATH = "/v1/report"
MAX_BYTES = 64 * 1024 * 1024
POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"


async def answer(path: str | None) -> Response:
    """The report page."""
    if path is None:
        raise NotFound(
            f"{PATH}: no report is configured; set the option report to the report.html of `miniq pipeline report`"
        )
    try:
        check_regular(path, "report")
    except InvalidRequest as error:
        raise NotFound(f"{PATH}: the report cannot be read: {error.text}") from None
    try:
        text, modified = await asyncio.to_thread(_read, path)
    except OSError as error:
        raise NotFound(f"{PATH}: the report cannot be read: {error.strerror}") from None
    headers = {"content-security-policy": POLICY, "last-modified": modified, "cache-control": "no-cache"}
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)


def _read(path: str) -> tuple[bytes, str]:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        text = file.read(MAX_BYTES + 1)
        if len(text) > MAX_BYTES:
            raise TooLarge(
                f"{PATH}: the report has {status.st_size} bytes; at most {MAX_BYTES} can be shown", field="report"
            )
        return text, formatdate(status.st_mtime, usegmt=True)
