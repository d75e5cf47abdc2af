"""Pauses that end early: when an event is set, such as that the client is closed, or a bell is rung."""

from __future__ import annotations

import asyncio
import contextlib
import threading

from miniq.client.interrupts import interruptible


async def async_pause(closed: asyncio.Event, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(closed.wait(), seconds)


def pause(closed: threading.Event, seconds: float) -> None:
    interruptible(closed.wait, seconds)


class AsyncBell:
    """Rung from any thread; wakes the one task that waits for it, now or when it waits next."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._is_rung = False

    def ring(self) -> None:
        if not self._is_rung:
            self._is_rung = True
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, seconds: float | None = None) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._event.wait()
        self._event.clear()
        self._is_rung = False


class Bell:
    """The same for threads."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self.ring = self._event.set

    def wait(self, seconds: float | None = None) -> None:
        self._event.wait(seconds)
        self._event.clear()
