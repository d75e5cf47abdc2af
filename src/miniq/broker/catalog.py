"""The catalog: all queues and their settings.

It caches what the store keeps, so that calls need not read it. On a store that other brokers also change,
`refresh.py` reloads it, at the latest when a call names a queue that is not in the cache.
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
        """How often this broker itself created, changed or deleted a queue."""

    async def load(self) -> None:
        """Read all queues from the store, and create the default queue if it is missing."""
        self._settings = await self._broker.store.queues()
        await self.ensure(DEFAULT_QUEUE)

    def learn(self, settings: dict[str, QueueSettings]) -> None:
        """Replace the cache by the settings just read from the store."""
        for deleted in self._settings.keys() - settings.keys():
            self.forget(deleted)
        self._settings = settings

    def forget(self, queue: str) -> None:
        """Drop a deleted queue from the cache and the metrics."""
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
        """The name if such a queue exists, else "": metrics must not grow with arbitrary names from requests."""
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
        """The settings of a queue that must exist; reload first if another broker may have just created it."""
        if queue not in self._settings and self._broker.is_open:
            await self._broker.refresh.once()
        return self.settings(queue)

    async def possible(self, queue: str) -> None:
        """Raise if a queue neither exists nor may be created on first use."""
        rules.check_name(queue)
        if not self._broker.options.auto_create:
            await self.existing(queue)
        elif queue not in self._settings:
            await self._broker.refresh.once()

    async def first_use(self, queue: str) -> QueueSettings:
        """The settings of a queue, created now if `auto_create` is on."""
        self._broker.check_open()
        rules.check_name(queue)
        if not self._broker.options.auto_create:
            return await self.existing(queue)
        return await self.ensure(queue)

    # Changing

    async def ensure(self, queue: str) -> QueueSettings:
        """The settings of a queue, created now if it does not exist."""
        if queue not in self._settings:
            await self._broker.refresh.once()
        while queue not in self._settings:
            await self._put(queue, None, QueueSettings())
        return self._settings[queue]

    async def change(self, queue: str, changes: dict[str, Any]) -> None:
        """Create a queue or change some of its settings. Its dead-letter queue is created, too."""
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
        """Delete a queue and all its messages."""
        settings = await self.existing(queue)
        if queue == DEFAULT_QUEUE:
            raise QueueProtected(f"queue: {queue!r} cannot be deleted; purge it instead", field="queue")
        await self._broker.store.delete_queue(queue)
        if self._settings.get(queue) is settings:  # else a concurrent call has created it again
            self.forget(queue)
        self.changes += 1

    async def _put(self, queue: str, before: QueueSettings | None, settings: QueueSettings) -> bool:
        """Write settings if the store still has `before`. If another broker changed them first, load its change, so
        that it is not overwritten, and return False."""
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
