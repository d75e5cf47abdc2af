"""`GET /v1/report`: the page that `miniq pipeline report` wrote last, where the option `report` says where it lies.

The page is a file that somebody else wrote, so it is shown in a sandbox: no script, no request, not our origin.
"""

from __future__ import annotations

import asyncio
import os
from datetime import UTC, datetime
from email.utils import format_datetime

from starlette.responses import Response

from miniq.errors import NotFound

PATH = "/v1/report"
LARGEST = 64 * 1024 * 1024
POLICY = "sandbox; default-src 'none'; style-src 'unsafe-inline'; img-src data:"


async def answer(path: str | None) -> Response:
    """The page as it is now."""
    if path is None:
        raise NotFound(
            f"{PATH}: there is no report; set the option report to the report.html of `miniq pipeline report`"
        )
    try:
        text, made = await asyncio.to_thread(_read, path)
    except OSError as error:
        raise NotFound(f"{PATH}: the report cannot be read: {error.strerror}") from None
    headers = {"content-security-policy": POLICY, "last-modified": made, "cache-control": "no-cache"}
    return Response(text, media_type="text/html; charset=utf-8", headers=headers)


def _read(path: str) -> tuple[bytes, str]:
    with open(path, "rb") as file:
        made = datetime.fromtimestamp(os.fstat(file.fileno()).st_mtime, UTC)
        return file.read(LARGEST), format_datetime(made, usegmt=True)
