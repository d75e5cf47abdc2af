"""What `/manual` says where there is no manual."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette

from miniq.server.http import manual


def client() -> httpx.AsyncClient:
    """A client of the manual's pages alone."""
    app = Starlette(routes=manual.ManualPages().routes())
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://127.0.0.1")


async def test_without_the_extra_the_page_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manual, "built", lambda: None)
    monkeypatch.setattr(manual, "find_spec", lambda name: None)
    async with client() as opened:
        reply = await opened.get("/manual/")
    assert reply.status_code == 404
    assert reply.headers["content-type"].startswith("text/html")
    assert "make docs" in reply.text
    assert "pip install '.[docs]'" in reply.text


async def test_a_build_that_fails_is_told_without_its_reason_which_the_log_has(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(manual, "built", lambda: None)
    monkeypatch.setattr(manual, "find_spec", lambda name: name)
    monkeypatch.setattr(manual, "sources", lambda: Path())
    monkeypatch.setattr(manual, "SITE", Path("/proc/no-such-folder/site"))
    monkeypatch.setattr(manual, "cache", lambda: None)
    async with client() as opened:
        end = time.monotonic() + 60
        while (reply := await opened.get("/manual/")).status_code == 503 and time.monotonic() < end:
            assert reply.headers["retry-after"]
    assert reply.status_code == 500
    assert "no-such-folder" not in reply.text
    assert "no-such-folder" in str([vars(record) for record in caplog.records])
