"""Reliable cancellation of the broker's background tasks."""

from __future__ import annotations

import asyncio

PATIENCE = 1.0


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait until it has ended. A database driver may swallow a cancellation, so cancel again until
    it takes effect."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
    if not task.cancelled():
        task.exception()  # mark it as retrieved, or asyncio logs it
