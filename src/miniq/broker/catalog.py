"""The catalog: a cache of all queues and their settings.

On a store that other brokers also change, settings and keys are reloaded when the store signals a change, at least
every `refresh_interval`, and when a call names an unknown queue. Long polls are woken just as often, so a lost signal
delays them by at most that interval.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any

from miniq.broker import rules
from miniq.errors import MiniQError, QueueNotFound, QueueProtected, TooManyQueues
from miniq.message import QueueSettings

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.catalog")
DEFAULT_QUEUE = "default"


class Catalog:
    """The queues of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.queues: dict[str, QueueSettings] = {}
        """All queues; empty while the broker is not open."""
        self.find = self.queues.get
        """The settings of a queue, None if it does not exist or the broker is not open."""
        self.changes = 0
        """How often this broker itself created, changed or deleted a queue."""
        self._revision = -1
        """The store's revision that was loaded last."""
        self._changed = asyncio.Event()
        self.on_change = self._changed.set
        """Called when another broker has changed something: refresh soon."""

    async def load(self) -> None:
        """Read all queues from the store, and create the default queue if it is missing."""
        self.queues.update(await self._broker.store.queues())
        await self.ensure(DEFAULT_QUEUE)

    async def refresh(self) -> None:
        """Reload settings and keys if another broker has changed the store."""
        broker = self._broker
        if not broker.store.shared:
            return
        while (revision := await broker.store.revision()) != self._revision:
            own_changes = self.changes
            settings = await broker.store.queues()
            await broker.keys.load()
            # Otherwise the settings read may be older than those that this broker has just written.
            if self.changes == own_changes:
                self._replace(settings)
                self._revision = revision

    async def keep_fresh(self) -> None:
        """Refresh after every change of another broker, and every `refresh_interval`."""
        broker = self._broker
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(broker.options.refresh_interval):
                    await self._changed.wait()
            self._changed.clear()
            try:
                await self.refresh()
            except MiniQError as error:
                log.debug("refresh failed: %s", error)
            broker.waiters.wake_everywhere()

    def _replace(self, settings: dict[str, QueueSettings]) -> None:
        for deleted in self.queues.keys() - settings.keys():
            self.forget(deleted)
        if self._broker.is_open:
            self.queues.update(settings)

    def forget(self, queue: str) -> None:
        """Drop a deleted queue from the cache and the metrics."""
        self.queues.pop(queue, None)
        self._broker.metrics.forget(queue)

    # Looking up

    def names(self) -> list[str]:
        """The names of all queues."""
        return list(self.queues)

    def settings(self, queue: str) -> QueueSettings:
        """The settings of a queue that must exist."""
        self._broker.check_open()
        settings = self.queues.get(queue)
        if settings is None:
            rules.check_name(queue)
            raise QueueNotFound(f"queue: there is no queue {queue!r}", field="queue")
        return settings

    async def require(self, queue: str) -> QueueSettings:
        """The settings of a queue that must exist; reload first if another broker may have just created it."""
        if queue not in self.queues and self._broker.is_open:
            await self.refresh()
        return self.settings(queue)

    async def check_usable(self, queue: str) -> None:
        """Raise if a queue neither exists nor may be created on first use."""
        rules.check_name(queue)
        if not self._broker.options.auto_create:
            await self.require(queue)
        elif queue not in self.queues:
            await self.refresh()

    async def get_or_create(self, queue: str) -> QueueSettings:
        """The settings of a queue, created now if `auto_create` is on."""
        self._broker.check_open()
        rules.check_name(queue)
        await self.check_creatable(queue)
        return await self.ensure(queue)

    async def check_creatable(self, queue: str) -> None:
        """Raise unless a queue exists or may be created by its first message."""
        if not self._broker.options.auto_create:
            await self.require(queue)
        await self._check_room(queue)

    async def _check_room(self, queue: str) -> None:
        """Raise unless a queue exists or may be created by a caller. Brokers that share a store count for themselves,
        and may create a few more."""
        if queue not in self.queues:
            await self.refresh()
        most = self._broker.options.max_queues
        if queue not in self.queues and len(self.queues) >= most:
            text = f"queue: {queue!r} cannot be created, there are {most} queues; delete some, or raise max_queues"
            raise TooManyQueues(text, field="queue")

    # Changing

    async def ensure(self, queue: str) -> QueueSettings:
        """The settings of a queue, created now if it does not exist."""
        if queue not in self.queues:
            await self.refresh()
        while queue not in self.queues:
            await self._put(queue, None, QueueSettings())
        return self.queues[queue]

    async def change(self, queue: str, changes: dict[str, Any]) -> None:
        """Create a queue or change some of its settings. Its dead-letter queue is created, too."""
        while True:
            await self.refresh()
            before = self.queues.get(queue)
            if before is None:
                rules.check_name(queue)
            settings = rules.change_settings(queue, before, changes, self._broker.options.limits)
            await self._check_room(queue)
            dead = rules.dead_letter_queue(queue, settings)
            if dead is not None:
                await self._check_room(dead)
                await self.ensure(dead)
            if await self._put(queue, before, settings):
                return

    async def delete(self, queue: str) -> None:
        """Delete a queue and all its messages."""
        settings = await self.require(queue)
        if queue == DEFAULT_QUEUE:
            raise QueueProtected(f"queue: {queue!r} cannot be deleted; purge it instead", field="queue")
        await self._broker.store.delete_queue(queue)
        if self.queues.get(queue) is settings:  # else a concurrent call has created it again
            self.forget(queue)
        self.changes += 1

    async def _put(self, queue: str, before: QueueSettings | None, settings: QueueSettings) -> bool:
        """Write settings if the store still has `before`. If another broker changed them first, load its change, so
        that it is not overwritten, and return False."""
        if not await self._broker.store.change_queue(queue, before, settings):
            self._replace(await self._broker.store.queues())
            return False
        self._broker.check_open()
        self.queues[queue] = settings
        self.changes += 1
        if before is None:
            self._broker.sweeper.created(queue, settings)
        return True
