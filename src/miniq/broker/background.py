"""Tasks that run from when a broker opens until it closes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

PATIENCE = 1.0
"""Seconds until the cancellation of a task is repeated."""


class Background:
    """The background tasks of a broker."""

    def __init__(self) -> None:
        self._tasks: list[asyncio.Task[None]] = []

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task until the broker closes."""
        self._tasks.append(asyncio.create_task(work))

    async def stop(self) -> None:
        """Cancel all tasks, each until it has ended: a database driver may swallow a cancellation."""
        for task in self._tasks:
            while not task.done():
                task.cancel()
                await asyncio.wait([task], timeout=PATIENCE)
            if not task.cancelled():
                task.exception()  # mark it as retrieved, or asyncio logs it
