"""The catalog: a cache of all queues and their settings.

On a store that other brokers also change, settings and keys are reloaded when the store signals a change, at least
every `refresh_interval`, and when a call names an unknown queue. Long polls are woken just as often, so a lost signal
delays them by at most that interval.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from miniq.broker import rules
from miniq.broker import settings as settings_rules
from miniq.errors import MiniQError, QueueNotFound, QueueProtected, TooManyQueues
from miniq.message import QueueSettings
from miniq.store.arguments import Change
from miniq.store.contract import RevisionChanged

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.catalog")
DEFAULT_QUEUE = "default"

CheckNew = Callable[[Sequence[str]], None]
"""Raises if a caller may not create these queues, of which some may exist."""


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
        self.revision = -1
        """The store's revision that was loaded last."""
        self._changed = asyncio.Event()
        self.on_change = self._changed.set
        """Called when another broker has changed something: refresh soon."""

    async def load(self) -> None:
        """Read all queues from the store, and create the default queue if it is missing."""
        self._add(await self._broker.store.queues())
        await self.ensure(DEFAULT_QUEUE)

    async def refresh(self) -> None:
        """Reload settings, keys and topics if another broker has changed the store."""
        broker = self._broker
        if not broker.store.shared:
            return
        while (revision := await broker.store.revision()) != self.revision:
            own_changes = self.changes
            settings = await broker.store.queues()
            await broker.keys.load()
            await broker.schedules.load()
            await broker.topics.load()
            # Otherwise the settings read may be older than those that this broker has just written.
            if self.changes == own_changes:
                self._replace(settings)
                self.revision = revision

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
            broker.results.look_everywhere()

    def _replace(self, settings: dict[str, QueueSettings]) -> None:
        for deleted in self.queues.keys() - settings.keys():
            self.forget(deleted)
        if self._broker.is_open:
            self._add(settings)

    def _add(self, settings: dict[str, QueueSettings]) -> None:
        for queue, new in settings.items():
            old = self.queues.get(queue)
            if old is None or old.retention != new.retention:
                self._broker.sweeper.found(queue)
        self.queues.update(settings)

    def forget(self, queue: str) -> None:
        """Drop a deleted queue from the cache and the metrics."""
        self.queues.pop(queue, None)
        self._broker.metrics.forget(queue)
        self._broker.sweeper.forget(queue)
        self._broker.rates.forget(queue)
        self._broker.results.wake(queue)
        self._broker.consumers.forget(queue)
        self._broker.timings.forget(queue)
        self._broker.failures.forget(queue)

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
        if queue not in self.queues:
            await self.refresh()
        self._check_room([queue])

    def _check_room(self, queues: Sequence[str]) -> None:
        """Raise unless these queues exist or may be created by a caller. Brokers that share a store count for
        themselves, and may create a few more."""
        most = self._broker.options.max_queues
        new = [queue for queue in queues if queue not in self.queues]
        if new and len(self.queues) + len(new) > most:
            allowed = max(most - len(self.queues), 0)
            text = (
                f"queue: {new[allowed]!r} cannot be created, there are {most} queues; delete some, or raise max_queues"
            )
            raise TooManyQueues(text, field="queue")

    # Changing

    async def ensure(self, queue: str) -> QueueSettings:
        """The settings of a queue, created now if it does not exist."""
        if queue not in self.queues:
            await self.refresh()
        while queue not in self.queues:
            await self._put(queue, None, settings_rules.default(queue))
        return self.queues[queue]

    async def change(self, queue: str, changes: dict[str, Any], check_new: CheckNew | None = None) -> None:
        """Create a queue or change some of its settings. A change that is about dead letters creates the dead-letter
        queue, too: both count. Otherwise that is created when the first message dies."""
        while True:
            await self.refresh()
            before = self.queues.get(queue)
            if before is None:
                rules.check_name(queue)
            settings = settings_rules.change(queue, before, changes, self._broker.options.limits)
            named = any(changes.get(field) is not None for field in ("max_receives", "dead_letter_queue"))
            is_wanted = settings.max_receives is not None and named
            dead = rules.dead_letter_queue(queue, settings) if is_wanted else None
            needed = [queue] if dead is None else [queue, dead]
            self._check_room(needed)
            if check_new is not None:
                check_new(needed)
            if dead is not None:
                await self.ensure(dead)
            if await self._put(queue, before, settings):
                return

    async def delete(self, queue: str) -> None:
        """Delete a queue and all its messages."""
        broker, topics = self._broker, self._broker.topics
        async with topics.changing:
            while True:
                await self.refresh()
                settings = self.settings(queue)
                if queue == DEFAULT_QUEUE:
                    raise QueueProtected(f"queue: {queue!r} cannot be deleted; purge it instead", field="queue")
                change = Change(broker.clock.now(), settings.history)
                # In the same change: no subscription may lead to a queue that is gone.
                with contextlib.suppress(RevisionChanged):
                    await broker.store.delete_queue(queue, change, topics.records_without(queue))
                    break
            topics.left(queue)
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
        else:
            if before.retention != settings.retention:
                self._broker.sweeper.found(queue)
            self._broker.waiters.wake_each(queue)  # it may hand out more now
            self._broker.results.wake(queue)
        return True
