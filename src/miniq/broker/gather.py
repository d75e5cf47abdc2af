"""Single messages that many send at the same time are put into the store together.

What is sent to a queue while one put of it is under way goes into the next. One change of the store, and one
run of ids, then serves many senders; each is answered by itself, and each may have named its call. Only plain
messages go this way, and only where none can be refused because of another: to queues without a limit on what
they hold.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from miniq.message import Bodies
from miniq.prompt import begin

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

Sent = Callable[[list[str], Exception | None], None]
"""Called with the ids of what is on disk, or with what went wrong. There is one id, but for a call that was made before
by the same name: that gets the answer it got then."""

MESSAGES = 500
BYTES = 4 * 1024 * 1024
"""How much one put may carry, so that a crowd of senders is served in turns."""


class _Lot:
    """What waits for the next put of a queue."""

    __slots__ = ("bodies", "calls", "done")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.calls: list[str | None] = []
        self.done: list[Sent] = []

    def split(self) -> tuple[list[bytes], list[str | None], list[Sent]]:
        """Take out what the next put carries, in order."""
        count = min(len(self.bodies), MESSAGES)
        if sum(map(len, self.bodies[:count])) > BYTES:
            size = count = 0
            while not count or (count < len(self.bodies) and size + len(self.bodies[count]) <= BYTES):
                size += len(self.bodies[count])
                count += 1
        bodies, calls, done = self.bodies[:count], self.calls[:count], self.done[:count]
        del self.bodies[:count], self.calls[:count], self.done[:count]
        return bodies, calls, done


class Gather:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._lots: dict[str, _Lot] = {}
        self._busy: set[str] = set()
        """Queues of which a put is under way or about to begin."""
        self._all_done: asyncio.Future[None] | None = None
        """Who stops waits for it."""

    def add(self, queue: str, body: bytes, call: str | None, done: Sent) -> None:
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
        lot.calls.append(call)
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
                bodies, calls, done = lot.split()
                if not lot.bodies:
                    del self._lots[queue]
                try:
                    answers = await self._broker.send_each(queue, Bodies(bodies), calls)
                except Exception as error:
                    for tell in done:
                        tell([], error)
                else:
                    for tell, ids in zip(done, answers, strict=True):
                        tell(ids, None)
        finally:
            self._busy.discard(queue)
            if not self._busy and self._all_done is not None:
                self._all_done.set_result(None)
