"""Completing a call that was interrupted or cancelled: an ack takes effect, and the messages of a receive are
released, so that they need not wait for the end of their lease."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from miniq.api.operation import Call
from miniq.api.operations import Receive, Release
from miniq.message import Lease

LAST_WORDS = 5.0
"""Seconds to wait for the reply to a call that was interrupted."""


def release_of(call: Call[Any], messages: Any) -> Release | None:
    """The call that releases the messages of a receive; None if there is nothing to release."""
    if not messages or not isinstance(call, Receive) or call.mode == "at-most-once":
        return None
    return Release(call.queue, [Lease(stored.message.id, stored.receipt or "") for stored in messages], unused=True)


class Background:
    """Tasks that complete calls after their caller was cancelled."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def finish(self) -> None:
        """Wait briefly for all tasks, and cancel those that take longer."""
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=2 * LAST_WORDS)
            for task in late:
                task.cancel()
