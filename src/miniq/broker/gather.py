"""Single messages that many send at the same time are put into the store together.

What is sent to a queue by one door, in one content type, while one put of it is under way goes into the next. One
change of the store, and one run of ids, then serves many senders; each is answered by itself, and each may have
named its call. Only plain messages go this way, and only where none can be refused because of another: to queues
without a limit on what they hold.

Those who are answered together mostly send again together. So a put for a crowd waits a moment for as many as the one
before it carried: else those who are a little late need an fsync of their own, and are late the next time too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any

from miniq.broker.prompt import begin
from miniq.message import PlainDrafts

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

Sent = Callable[[list[Any], list[list[str]], Exception | None], None]
"""Called with those who sent and the ids that each gets, once all is on disk, or with those and what went wrong. There
is one id for each, but a call that was made before by the same name gets the answer it got then."""

log = logging.getLogger("miniq.broker")

MESSAGES = 500
BYTES = 4 * 1024 * 1024
"""How much one put may carry, so that a crowd of senders is served in turns."""
CROWD = 8
"""How many messages a put must have carried for the next one to wait for as many."""
PATIENCE, LONGEST = 0.5, 0.002
"""How long it waits at most: a part of the time that a put takes, and seconds."""
CROWDS = 1024
"""How many crowds are remembered."""


class _Lot:
    """What waits for the next put of a queue."""

    __slots__ = ("bodies", "calls", "who")

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.calls: list[str | None] = []
        self.who: list[Any] = []

    def split(self, most: int) -> tuple[list[bytes], list[str | None], list[Any]]:
        """Take out what the next put carries, in order: no more than `most` messages."""
        count = min(len(self.bodies), MESSAGES, most)
        if sum(map(len, self.bodies[:count])) > BYTES:
            size = count = 0
            while not count or (count < len(self.bodies) and size + len(self.bodies[count]) <= BYTES):
                size += len(self.bodies[count])
                count += 1
        if count == len(self.bodies):
            return self.bodies, self.calls, self.who
        bodies, calls, who = self.bodies[:count], self.calls[:count], self.who[:count]
        del self.bodies[:count], self.calls[:count], self.who[:count]
        return bodies, calls, who


_Key = tuple[str, str, Sent]
"""A queue, the content type of bodies, and who tells their senders: what is put together has these in common."""


class Gather:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._most = broker.options.limits.batch
        self._lots: dict[_Key, _Lot] = {}
        self._busy: set[_Key] = set()
        """Those of which a put is under way or about to begin."""
        self._crowds: dict[_Key, int] = {}
        """How many messages the last put carried, where they were a crowd."""
        self._takes = 0.0
        """Seconds that a put takes."""
        self._all_done: asyncio.Future[None] | None = None
        """Who stops waits for it."""

    def add(
        self,
        queue: str,
        bodies: PlainDrafts,
        calls: Sequence[str | None],
        who: Sequence[Any],
        sent: Sent,
        at_once: bool,
    ) -> None:
        """Send messages, each of one of `who`, with the next put of their queue. Unless it is to be `at_once`, the put
        begins after what this turn of the loop reads: the others of the turn come along."""
        key = (queue, bodies.content_type, sent)
        lot = self._lots.get(key)
        begins = key not in self._busy
        if lot is None:
            lot = self._lots[key] = _Lot()
        lot.bodies += bodies.bodies
        lot.calls += calls
        lot.who += who
        if begins:
            self._busy.add(key)
            loop = asyncio.get_running_loop()
            if not self._broker.prompt:
                begin(loop, self._run(key), at_once=False)
            elif at_once:
                begin(loop, self._run(key))
            else:
                loop.call_soon(lambda: begin(loop, self._run(key)))

    async def stop(self) -> None:
        """Wait until everybody has an answer."""
        if self._busy:
            self._all_done = asyncio.get_running_loop().create_future()
            await self._all_done

    async def _run(self, key: _Key) -> None:
        """Put lots of one queue until there is none."""
        queue, content_type, sent = key
        try:
            while (lot := self._lots.get(key)) is not None:
                waited_in_vain = await self._assemble(key, lot)
                # A limit that was set meanwhile may leave room for some of them.
                bodies, calls, who = lot.split(1 if self._broker.is_limited(queue) else self._most)
                if bodies is lot.bodies:
                    del self._lots[key]
                if len(bodies) >= CROWD and not waited_in_vain:
                    self._remember(key, len(bodies))
                answers: list[list[str]] = []
                problem: Exception | None = None
                began = perf_counter()
                try:
                    answers = await self._broker.send_each(queue, PlainDrafts(bodies, content_type), calls)
                except Exception as error:
                    problem = error
                self._takes += (perf_counter() - began - self._takes) / 4
                try:
                    sent(who, answers, problem)
                except Exception:
                    log.exception("those who sent to %s could not all be answered", queue)
        finally:
            self._busy.discard(key)
            if not self._busy and self._all_done is not None and not self._all_done.done():
                self._all_done.set_result(None)

    async def _assemble(self, key: _Key, lot: _Lot) -> bool:
        """Give those a moment who were answered with the last put and may be about to send again. True if it was in
        vain: perhaps those who send have nothing to do with each other, so the next put does not wait."""
        crowd = self._crowds.pop(key, 0)
        if len(lot.who) >= crowd:
            return False
        end = perf_counter() + min(self._takes * PATIENCE, LONGEST)
        # In turns of the loop, each of which reads what has come: its timers know no less than a millisecond.
        while len(lot.who) < crowd and perf_counter() < end:  # noqa: ASYNC110
            await asyncio.sleep(0)
        return len(lot.who) < crowd

    def _remember(self, key: _Key, crowd: int) -> None:
        if len(self._crowds) >= CROWDS:
            self._crowds.clear()
        self._crowds[key] = crowd
