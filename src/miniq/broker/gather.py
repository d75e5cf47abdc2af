"""Single messages that many send at the same time are put into the store together.

What is sent to a queue while one put of it is under way goes into the next. One change of the store, and one
run of ids, then serves many senders; each is answered by itself. Only plain messages go this way, and only
where none can be refused because of another: to queues without a limit on what they hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from miniq.message import Bodies
from miniq.prompt import begin

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

Sent = Callable[[str, Exception | None], None]
"""Called with the id of a message that is on disk, or with what went wrong."""

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
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lots: dict[str, _Lot] = {}
        self._busy: set[str] = set()
        """Queues of which a put is under way or about to begin."""
        self._all_done: asyncio.Future[None] | None = None
        """Who stops waits for it."""

    def add(self, queue: str, body: bytes, done: Sent) -> None:
        """Send a message with the next put of its queue; `done` is called in this loop, never at once."""
        lot = self._lots.get(queue)
        if lot is None:
            lot = self._lots[queue] = _Lot()
            if queue not in self._busy:
                self._busy.add(queue)
                # It begins only after what this turn of the loop has read: the others of the turn come along.
                loop = asyncio.get_running_loop()
                if self._broker.prompt:
                    loop.call_soon(lambda: begin(loop, self._run(queue)))
                else:
                    begin(loop, self._run(queue), at_once=False)
        lot.bodies.append(body)
        lot.done.append(done)

    async def stop(self) -> None:
        """Wait until everybody has an answer."""
        if self._busy:
            self._all_done = asyncio.get_running_loop().create_future()
            await self._all_done

    async def _run(self, queue: str) -> None:
        """Put lots of one queue until there is none."""
        try:
            while (lot := self._lots.get(queue)) is not None:
                bodies, done = lot.split()
                if not lot.bodies:
                    del self._lots[queue]
                try:
                    ids = await self._broker.send(queue, Bodies(bodies))
                except Exception as error:
                    for call in done:
                        call("", error)
                else:
                    for call, id in zip(done, ids, strict=True):
                        call(id, None)
        finally:
            self._busy.discard(queue)
            if not self._busy and self._all_done is not None:
                self._all_done.set_result(None)
