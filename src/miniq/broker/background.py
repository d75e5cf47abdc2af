"""How background tasks of a broker end."""

from __future__ import annotations

import asyncio

PATIENCE = 1.0


async def end(task: asyncio.Task[None]) -> None:
    """Cancel a task and wait for its end. The driver of a database may take a cancellation for an error of its own
    and swallow it, so it is asked again until it is over."""
    while not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=PATIENCE)
    if not task.cancelled():
        task.exception()  # whatever it was, it was the last thing that it had to say
