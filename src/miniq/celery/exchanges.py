"""Exchanges as topics, bindings as subscriptions, and queues that expire.

An exchange is the topic of its name, of whatever type: a fanout binding is a subscription without a pattern, a
direct or topic binding one with the routing key as pattern. A queue that is bound to the direct exchange of its own
name by its own name, as Celery does with every queue, needs no topic: messages for it are sent to it.

A queue that expires or deletes itself (control messages, events, replies) carries two tags: for how long it may be
unused, and when a consumer last said that it is there. Consumers repeat that every minute, and with it the bindings.
A program that binds such a queue also looks at some others of the exchange, and removes those whose consumers are gone.
"""

from __future__ import annotations

import contextlib
import random
import time
from typing import NamedTuple

from miniq.celery.names import native, subscription
from miniq.client._sync.client import Client
from miniq.errors import Denied, InvalidRequest, MiniQError, NotFound
from miniq.message import Draft

EXPIRES, SEEN = "kombu-expires", "kombu-seen"
AUTO_DELETE_EXPIRES = 300.0
"""Seconds after which an auto-delete queue is removed that its consumer could not delete."""
REFRESH = 60.0
GRACE = 300.0
"""Clocks of workers may differ, and a worker may be held up."""
LOOK_AT = 30
"""How many queues of an exchange are looked at."""


class Binding(NamedTuple):
    queue: str
    exchange: str
    routing_key: str
    type: str

    @property
    def is_own(self) -> bool:
        """Whether it binds a queue to the direct exchange of its own name."""
        return self.type == "direct" and self.queue == self.exchange == self.routing_key


def bind(client: Client, binding: Binding) -> None:
    """Subscribe a queue. Without permission to do that, the subscription must exist."""
    topic = client.topic(native(binding.exchange))
    pattern = _pattern(binding)
    name, queue = subscription(binding.queue, binding.routing_key), native(binding.queue)
    try:
        if binding.is_own:
            if all(each.queue == queue for each in topic.info().subscriptions):
                return
        else:
            _bind_own(client, binding.exchange)
        topic.subscribe(name, queue, pattern=pattern)
    except NotFound:
        if not binding.is_own:
            raise
    except Denied:
        if binding.is_own or _is_bound(client, binding, name):
            return
        raise


def unbind(client: Client, binding: Binding) -> None:
    with contextlib.suppress(NotFound):
        client.topic(native(binding.exchange)).unsubscribe(subscription(binding.queue, binding.routing_key))


def publish(client: Client, exchange: str, routing_key: str, draft: Draft) -> None:
    """Send a message to all queues that are bound to an exchange with a matching key; without any it is dropped."""
    if exchange != routing_key:
        client.topic(native(exchange)).publish_many([draft])
        return
    try:
        if client.topic(native(exchange)).publish_many([draft]).queues:
            return
    except (NotFound, Denied):
        pass
    client.queue(native(routing_key)).send_many([draft])


def keep_alive(client: Client, queue: str, expires: float) -> None:
    """Say that a queue that expires has a consumer; this creates it if it was removed."""
    client.queue(native(queue)).configure(tags={EXPIRES: f"{expires:.15g}", SEEN: f"{time.time():.0f}"})


def delete(client: Client, queue: str, bindings: list[Binding]) -> None:
    """Remove a queue and its bindings."""
    for binding in bindings:
        unbind(client, binding)
    with contextlib.suppress(NotFound):
        client.queue(native(queue)).delete()


def sweep(client: Client, exchange: str) -> None:
    """Remove some queues of an exchange whose consumers are gone."""
    try:
        topic = client.topic(native(exchange))
        subscriptions = topic.info().subscriptions
        for each in random.sample(subscriptions, min(LOOK_AT, len(subscriptions))):
            try:
                tags = client.queue(each.queue).info().settings.tags
                if _is_gone(tags):
                    topic.unsubscribe(each.name)
                    client.queue(each.queue).delete()
            except NotFound:
                continue
    except MiniQError:  # a key that may not look; the next worker, or another key, does
        return


def _is_gone(tags: dict[str, str]) -> bool:
    try:
        return time.time() > float(tags[SEEN]) + float(tags[EXPIRES]) + GRACE
    except (KeyError, ValueError):
        return False


def _pattern(binding: Binding) -> str | None:
    key = binding.routing_key
    if binding.type == "fanout" or (binding.type == "topic" and key == "#"):
        return None
    if binding.type == "direct" and any(word in ("*", "#") for word in key.split(".")):
        text = (
            f"routing_key: {key!r} of queue {binding.queue!r}: * and # are wildcards; use a topic exchange, or another"
        )
        raise InvalidRequest(text, field="routing_key")
    return key or None


def _bind_own(client: Client, exchange: str) -> None:
    """The queue of an exchange's own name gets what it got before there was a topic."""
    name = native(exchange)
    try:
        client.topic(name).info()
    except NotFound:
        try:
            client.queue(name).info()
        except NotFound:
            return
        client.topic(name).subscribe(subscription(exchange, exchange), name, pattern=exchange)


def _is_bound(client: Client, binding: Binding, name: str) -> bool:
    try:
        return any(each.name == name for each in client.topic(native(binding.exchange)).info().subscriptions)
    except (Denied, NotFound):
        return False
