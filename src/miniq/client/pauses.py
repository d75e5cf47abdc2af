"""Pauses that end early: when an event is set, such as that the client is closed, or a condition is notified."""

from __future__ import annotations

import asyncio
import contextlib
import threading


async def async_pause(closed: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(closed.wait(), seconds)


def pause(closed: threading.Event, seconds: float) -> None:
    closed.wait(seconds)


async def async_wait(condition: asyncio.Condition, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(condition.wait(), seconds)


def wait(condition: threading.Condition, seconds: float) -> None:
    condition.wait(seconds)
