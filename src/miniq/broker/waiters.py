"""Long polling: the receives that wait for each queue, and which of them to wake.

A wake is a hint to try again, not a promise. Waiters are woken in order of arrival. A wake for a waiter that is already
leaving passes to the next one, so that no message goes unnoticed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from miniq.broker.clock import Clock, Timer

Permit = Callable[[], None]
"""Raises `Denied` if a call that waits is no longer allowed."""


class Sleeper:
    """A waiting call. A wake that comes before it sleeps ends its next sleep at once."""

    __slots__ = ("_clock", "_future", "woken")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._future: asyncio.Future[None] | None = None
        self.woken = False

    async def until(self, deadline: int) -> None:
        """Sleep until woken or until `deadline`."""
        if not self.woken:
            self._future = asyncio.get_running_loop().create_future()
            timer = self._clock.call_at(deadline, self.wake)
            try:
                await self._future
            finally:
                timer.cancel()
                self._future = None
        self.woken = False

    def wake(self) -> None:
        self.woken = True
        if self._future is not None and not self._future.done():
            self._future.set_result(None)


class Waiter(Sleeper):
    """A waiting receive. Join before the attempt, so that nothing sent in between is missed."""

    __slots__ = ("_waiters", "consumer", "group", "queue")

    def __init__(self, waiters: Waiters, queue: str, consumer: str | None, group: str | None) -> None:
        super().__init__(waiters._clock)
        self._waiters = waiters
        self.queue = queue
        self.consumer = consumer
        self.group = group

    def __enter__(self) -> Waiter:
        self._waiters._queues.setdefault(self.queue, {})[self] = None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        waiting = self._waiters._queues[self.queue]
        del waiting[self]
        if not waiting:
            self._waiters._forget(self.queue)
        elif self.woken:
            self._waiters.wake(self.queue, None, 1)


class Waiters:
    """All waiting receives of a broker."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._queues: dict[str, dict[Waiter, None]] = {}
        self._timers: dict[str, tuple[int, Timer]] = {}

    def join(self, queue: str, consumer: str | None, group: str | None = None) -> Waiter:
        """A context in which a receive waits for a queue, or a reader of claims of a group."""
        return Waiter(self, queue, consumer, group)

    @property
    def is_waiting(self) -> bool:
        """Whether any receive waits."""
        return bool(self._queues)

    def waits_for(self, queue: str) -> bool:
        """Whether any receive waits for a queue."""
        return queue in self._queues

    def names(self, queue: str) -> set[str | None]:
        """The names of the consumers that wait for a queue; readers of claims have that of their group."""
        return {waiter.group or waiter.consumer for waiter in self._queues.get(queue, ())}

    def wake(self, queue: str, recipient: str | None, count: int) -> None:
        """`count` messages became ready in a queue, for any consumer or for one recipient."""
        waiting = self._queues.get(queue)
        if waiting is None:
            return
        for waiter in waiting:
            if waiter.woken or (recipient is not None and waiter.consumer != recipient):
                continue
            waiter.wake()
            count -= 1
            if not count:
                return

    def wake_each(self, queue: str) -> None:
        """Some messages may be ready: wake the first waiter of each consumer name."""
        seen: set[str | None] = set()
        for waiter in self._queues.get(queue, ()):
            if not waiter.woken and waiter.consumer not in seen:
                seen.add(waiter.consumer)
                waiter.wake()

    def wake_next(self, queue: str, consumer: str | None) -> None:
        """A consumer got messages, and there may be more: for any consumer, or for those of its name. Waiters of other
        names that have messages of their own were woken when these became ready."""
        waiting = self._queues.get(queue, {})
        for waiter in waiting:
            if not waiter.woken:
                waiter.wake()
                if waiter.consumer == consumer:
                    return
                break
        for waiter in waiting:
            if not waiter.woken and waiter.consumer == consumer:
                waiter.wake()
                return

    def wake_everywhere(self) -> None:
        """Some messages may be ready in any queue."""
        for queue in self._queues:
            self.wake_each(queue)

    def wake_all(self) -> None:
        """The broker is closing, or keys were revoked: every receive looks whether it may go on."""
        for waiting in self._queues.values():
            for waiter in waiting:
                waiter.wake()

    def expect(self, queue: str, moment: int | None) -> None:
        """A lease or delay in a queue ends at `moment`: wake waiters then. The earliest moment counts."""
        if moment is None or queue not in self._queues:
            return
        known = self._timers.get(queue)
        if known is not None:
            if known[0] <= moment:
                return
            known[1].cancel()
        self._timers[queue] = (moment, self._clock.call_at(moment, lambda: self._due(queue)))

    def _due(self, queue: str) -> None:
        self._timers.pop(queue, None)
        self.wake_each(queue)

    def _forget(self, queue: str) -> None:
        del self._queues[queue]
        timer = self._timers.pop(queue, None)
        if timer is not None:
            timer[1].cancel()
