"""Pauses between attempts, which end early when the client is closed."""

from __future__ import annotations

import asyncio
import contextlib
import threading


async def async_pause(closed: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(closed.wait(), seconds)


def pause(closed: threading.Event, seconds: float) -> None:
    closed.wait(seconds)
