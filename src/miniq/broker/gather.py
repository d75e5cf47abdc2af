"""Single messages that many send at the same time are put into the store together.

What is sent to a queue while one put of it is under way goes into the next. One change of the store, and one
run of ids, then serves many senders; each is answered by itself. Only plain messages go this way, and only
where none can be refused because of another: to queues without a limit on what they hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from miniq.message import Bodies

Sent = Callable[[str, Exception | None], None]
"""Called with the id of a message that is on disk, or with what went wrong."""
Put = Callable[[str, Bodies], Awaitable[list[str]]]

MESSAGES = 500
BYTES = 4 * 1024 * 1024
"""How much one put may carry, so that a crowd of senders is served in turns."""


class _Lot:
    """What waits for the next put of a queue."""

    __slots__ = ("bodies", "done")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.done: list[Sent] = []

    def split(self) -> tuple[list[bytes], list[Sent]]:
        """Take out what the next put carries, in order."""
        count = min(len(self.bodies), MESSAGES)
        if sum(map(len, self.bodies[:count])) > BYTES:
            size = count = 0
            while not count or (count < len(self.bodies) and size + len(self.bodies[count]) <= BYTES):
                size += len(self.bodies[count])
                count += 1
        bodies, done = self.bodies[:count], self.done[:count]
        del self.bodies[:count], self.done[:count]
        return bodies, done


class Gather:
    def __init__(self, put: Put) -> None:
        self._put = put
        self._lots: dict[str, _Lot] = {}
        self._busy: dict[str, asyncio.Task[None]] = {}
        """The put of each queue that is under way or about to begin."""

    def add(self, queue: str, body: bytes, done: Sent) -> None:
        """Send a message with the next put of its queue; `done` is called in this loop, never at once."""
        lot = self._lots.get(queue)
        if lot is None:
            lot = self._lots[queue] = _Lot()
            if queue not in self._busy:
                # A task begins only after what this turn of the loop has read: the others of the turn come along.
                self._busy[queue] = asyncio.get_running_loop().create_task(self._run(queue))
        lot.bodies.append(body)
        lot.done.append(done)

    async def stop(self) -> None:
        """Wait until everybody has an answer."""
        while self._busy:
            await asyncio.wait(list(self._busy.values()))

    async def _run(self, queue: str) -> None:
        """Put lots of one queue until there is none."""
        try:
            while (lot := self._lots.get(queue)) is not None:
                bodies, done = lot.split()
                if not lot.bodies:
                    del self._lots[queue]
                try:
                    ids = await self._put(queue, Bodies(bodies))
                except Exception as error:
                    for call in done:
                        call("", error)
                else:
                    for call, id in zip(done, ids, strict=True):
                        call(id, None)
        finally:
            del self._busy[queue]
