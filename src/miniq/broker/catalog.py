"""The catalog: which queues there are, and their settings.

It is a copy of what the store keeps, so that no call has to ask for it. Where other brokers change the store too,
`refresh.py` reads it again, at the latest when somebody names a queue that is not known here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miniq.broker import rules
from miniq.errors import QueueNotFound, QueueProtected
from miniq.message import QueueSettings

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

DEFAULT_QUEUE = "default"


class Catalog:
    """The queues of a broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._settings: dict[str, QueueSettings] = {}
        self.changes = 0
        """How often this broker itself made, changed or deleted a queue."""

    async def load(self) -> None:
        """Read it, and make the queue that is always there."""
        self._settings = await self._broker.store.queues()
        await self.ensure(DEFAULT_QUEUE)

    def learn(self, settings: dict[str, QueueSettings]) -> None:
        """All queues, as they are in the store."""
        for gone in self._settings.keys() - settings.keys():
            self.forget(gone)
        self._settings = settings

    def forget(self, queue: str) -> None:
        """A queue is gone."""
        self._settings.pop(queue, None)
        self._broker.metrics.forget(queue)

    # Looking up

    def names(self) -> list[str]:
        """The names of all queues."""
        return list(self._settings)

    def all(self) -> dict[str, QueueSettings]:
        """The settings of all queues."""
        return dict(self._settings)

    def known(self, queue: str) -> str:
        """The name of a queue that exists, else "": for counting, where anybody's words must not pile up."""
        return queue if queue in self._settings else ""

    def find(self, queue: str) -> QueueSettings | None:
        """The settings of a queue, None if it does not exist or the broker is closed."""
        return self._settings.get(queue) if self._broker.is_open else None

    def settings(self, queue: str) -> QueueSettings:
        """The settings of a queue that must exist."""
        self._broker.check_open()
        settings = self._settings.get(queue)
        if settings is None:
            raise _unknown(queue)
        return settings

    async def existing(self, queue: str) -> QueueSettings:
        """The settings of a queue that must exist, perhaps since a moment ago on another broker."""
        if queue not in self._settings and self._broker.is_open:
            await self._broker.refresh.once()
        return self.settings(queue)

    async def possible(self, queue: str) -> None:
        """Refuse a queue that does not exist, unless it may be created by being used."""
        rules.check_name(queue)
        if not self._broker.options.auto_create:
            await self.existing(queue)
        elif queue not in self._settings:
            await self._broker.refresh.once()

    async def first_use(self, queue: str) -> QueueSettings:
        """The settings of a queue that is created by being used, unless queues must be made by hand."""
        self._broker.check_open()
        rules.check_name(queue)
        if not self._broker.options.auto_create:
            return await self.existing(queue)
        return await self.ensure(queue)

    # Changing

    async def ensure(self, queue: str) -> QueueSettings:
        """The settings of a queue, which is created if need be."""
        if queue not in self._settings:
            await self._broker.refresh.once()
        while queue not in self._settings:
            await self._put(queue, None, QueueSettings())
        return self._settings[queue]

    async def change(self, queue: str, changes: dict[str, Any]) -> None:
        """Create a queue or change some of its settings. Its dead-letter queue is created with it."""
        rules.check_name(queue)
        while True:
            await self._broker.refresh.once()
            before = self._settings.get(queue)
            settings = rules.change_settings(queue, before, changes, self._broker.options.limits)
            dead = rules.dead_letter_queue(queue, settings)
            if dead is not None:
                await self.ensure(dead)
            if await self._put(queue, before, settings):
                return

    async def delete(self, queue: str) -> None:
        """Remove a queue with everything in it."""
        settings = await self.existing(queue)
        if queue == DEFAULT_QUEUE:
            raise QueueProtected(f"queue: {queue!r} is always there; purge it instead", field="queue")
        await self._broker.store.delete_queue(queue)
        if self._settings.get(queue) is settings:  # else somebody has made a new one meanwhile
            self.forget(queue)
        self.changes += 1

    async def _put(self, queue: str, before: QueueSettings | None, settings: QueueSettings) -> bool:
        """Write settings in place of those that were known. False if somebody was faster: that change, which must
        not be lost, is known then."""
        if not await self._broker.store.change_queue(queue, before, settings):
            self.learn(await self._broker.store.queues())
            return False
        self._settings[queue] = settings
        self.changes += 1
        if before is None:
            self._broker.sweeper.created(queue, settings)
        return True


def _unknown(queue: str) -> QueueNotFound:
    rules.check_name(queue)
    return QueueNotFound(f"queue: there is no queue {queue!r}", field="queue")
