"""The caller of a call, and what it may do."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from miniq.broker import Broker
from miniq.broker.keyring import Secret
from miniq.broker.waiters import Permit


class Caller(Struct, frozen=True, gc=False):
    """The origin of a call: a client of a server, with its key, or the process that holds the broker."""

    secret: Secret | None = None
    call: str | None = None
    """The name of this call (Idempotency-Key)."""
    is_owner: bool = False

    def check_new_queues(self, broker: Broker, queues: Sequence[str]) -> None:
        """Raise if the call would create queues that its key must not create."""
        catalog = broker.catalog
        new = [queue for queue in queues if catalog.find(queue) is None]
        if new and not self.is_owner and not broker.keys.open:
            planned = broker.schedules.planned()  # queues that schedules will create
            new = [queue for queue in new if queue not in planned]
            broker.keys.check_new_queues(self.secret, new, catalog.queues.keys() | planned, (catalog.changes, planned))

    def check_new_topic(self, broker: Broker, topic: str) -> None:
        """Raise if the call would create a topic that its key must not create."""
        topics = broker.topics.topics
        if topic not in topics and not self.is_owner and not broker.keys.open:
            planned = broker.schedules.planned_topics()
            if topic not in planned:
                version = (broker.topics.changes, planned)
                broker.keys.check_new_topic(self.secret, topic, topics.keys() | planned, version)

    def may(self, broker: Broker, right: str, queue: str | None) -> bool:
        return self.is_owner or broker.keys.may(self.secret, right, queue)

    def permit(self, broker: Broker, right: str, queue: str) -> Permit | None:
        """Tells a call that waits whether it is still allowed."""
        return None if self.is_owner else partial(broker.keys.check, self.secret, right, queue)


OWNER = Caller(is_owner=True)
