"""What kombu opens for `miniq://…`: a connection with its channels, its inbox and its leases.

A connection that was made survives the broker's restarts: receivers and leases wait until it is back, and Celery does
not notice. Only the first connection fails at once, so that Celery says what is wrong and tries again.
"""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Callable
from datetime import UTC, datetime
from difflib import get_close_matches
from time import monotonic
from typing import Any

from kombu.transport import base

import miniq
from miniq.celery import envelope, exchanges
from miniq.celery.address import CLIENT_OPTIONS, PORT, Address, address_of
from miniq.celery.channel import Channel
from miniq.celery.exchanges import Binding
from miniq.celery.leases import LEASE, SHORTEST, Leases, Outage
from miniq.celery.names import native
from miniq.celery.receivers import Inbox
from miniq.client._sync.client import Client
from miniq.client._sync.message import Message
from miniq.errors import Closed, InvalidRequest, MiniQError, Overloaded, StoreUnavailable
from miniq.message import Draft
from miniq.worker.plan import own_name


class Transport(base.Transport):
    """A connection of kombu to a broker."""

    default_port: Any = PORT
    driver_type = "miniq"
    driver_name = "miniq"
    secure = False
    connection_errors: Any = (StoreUnavailable, Overloaded, Closed, *base.Transport.connection_errors, OSError)
    channel_errors = base.Transport.channel_errors
    implements = base.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )

    def __init__(self, client: Any, **unused: Any) -> None:
        self.client = client
        self.address: Address = address_of(client, self.secure)
        self.consumer = own_name()
        self.channels: list[Channel] = []
        self.exchanges: dict[str, str] = {}
        """The types of declared exchanges."""
        self.bindings: set[Binding] = set()
        self.expiring: dict[str, float] = {}
        """Declared queues that expire, with the seconds."""
        self.native = native
        self.outage = Outage()
        self._lease = _lease_of(client.transport_options)
        self._process = os.getpid()
        self._open: Client | None = None
        self._transient: Client | None = None
        self._numbers = 0
        self._keeper: threading.Thread | None = None
        self._closed = threading.Event()

    def driver_version(self) -> str:
        return miniq.__version__

    @property
    def default_connection_params(self) -> dict[str, Any]:
        return {"port": self.default_port, "hostname": "127.0.0.1"}

    @property
    def is_forked(self) -> bool:
        """Whether this connection belongs to the process that forked this one."""
        return self._process != os.getpid()

    # Opening and closing

    def establish_connection(self) -> Transport:
        """Check that the broker is there and accepts the key; kombu repeats this if it is not there."""
        client = self.address.connect()
        try:
            if not self.address.is_embedded:
                with self.address.connect(retry=0.0) as once:
                    once.whoami()
        except BaseException:
            self.address.close(client)
            raise
        self._process = os.getpid()
        self._closed.clear()
        self._open = client
        self.inbox = Inbox()
        self.leases = Leases(client, self._lease, self.outage)
        self._finalizer = weakref.finalize(self, _abandon, self.leases, self._process)
        return self

    @property
    def open_client(self) -> Client:
        if self._open is None:
            raise Closed("the connection is closed")
        return self._open

    @property
    def transient_client(self) -> Client:
        """A client that does not wait for a broker that is down."""
        if self._transient is None:
            self._transient = self.address.connect(retry=0.0)
        return self._transient

    def create_channel(self, connection: Any) -> Channel:
        self.open_client  # noqa: B018  raises if closed
        self._numbers += 1
        channel = Channel(self, self._numbers)
        self.channels.append(channel)
        return channel

    def close_channel(self, channel: Channel) -> None:
        if channel in self.channels:
            self.channels.remove(channel)

    def close_connection(self, connection: Any) -> None:
        client, self._open = self._open, None
        if client is None:
            return
        if self.is_forked:
            self.channels.clear()
            return
        self._open = client
        for channel in list(self.channels):
            channel.close()
        self._open = None
        self._closed.set()
        self.leases.close()
        self._finalizer.detach()
        self.inbox.close()
        for each in (self._transient, client):
            if each is not None:
                self.address.close(each)
        self._transient = self._keeper = None

    def verify_connection(self, connection: Any) -> bool:
        return self._open is not None and not self.is_forked

    # Draining

    def drain_events(self, connection: Any, timeout: float | None = None, **unused: Any) -> None:
        """Deliver the next message; `socket.timeout` if there is none within `timeout` seconds."""
        deliver = self.inbox.get(timeout)
        if deliver is None:
            if self._open is None:
                raise Closed("the connection is closed")
            raise socket.timeout  # noqa: UP041  kombu's callers expect it by this name
        deliver()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        loop.add_reader(self.inbox.fileno, self.on_readable, connection, loop)

    def unregister_from_event_loop(self, connection: Any, loop: Any) -> None:
        loop.remove_reader(self.inbox.fileno)

    def on_readable(self, connection: Any, loop: Any) -> None:
        """Deliver one message: the loop comes back while there are more, and may have been told to stop meanwhile."""
        deliver = self.inbox.get(0)
        if deliver is not None:
            deliver()

    def wait_again(self, message: Message) -> bool:
        """Send a task again that is due later than the broker could hold it; False if the worker is to have it."""
        due = envelope.due_again(message, datetime.now(UTC))
        if due is None:
            return False
        draft = Draft(
            message.data,
            message.content_type,
            message.headers,
            message.priority,
            key=message.key,
            dedup_id=message.id,
            deliver_at=due,
        )
        try:
            self.open_client.queue(message.queue).send_many([draft])
        except MiniQError:
            return False
        self.leases.settle(message, "ack")
        return True

    # Queues that expire

    def forget(self, matches: Callable[[Binding], bool]) -> list[Binding]:
        """Forget bindings, and return them."""
        found = [binding for binding in self.bindings if matches(binding)]
        self.bindings.difference_update(found)
        return found

    def watch_expiring(self) -> None:
        """Keep the queues that expire while they are consumed."""
        if self.expiring and self._keeper is None:
            self._keeper = threading.Thread(target=self._keep, name="miniq-expiring", daemon=True)
            self._keeper.start()

    def _keep(self) -> None:
        began = monotonic()
        while not self._closed.wait(exchanges.REFRESH):
            consumed = {receiver.queue for channel in list(self.channels) for receiver in channel.receivers}
            for queue in consumed & set(self.expiring):
                try:
                    exchanges.keep_alive(self.open_client, queue, self.expiring[queue])
                    for binding in [each for each in list(self.bindings) if each.queue == queue]:
                        exchanges.bind(self.open_client, binding)
                        if monotonic() - began > exchanges.GRACE:
                            exchanges.sweep(self.open_client, binding.exchange)
                            began = monotonic()
                except MiniQError:  # the next round tries again
                    continue


class TLSTransport(Transport):
    """The same over TLS: `miniqs://…`."""

    secure = True


def _abandon(leases: Leases, process: int) -> None:
    """Give back what a connection held that was not closed; also at exit."""
    if process == os.getpid():
        leases.close()


def _lease_of(options: dict[str, Any]) -> float:
    known = ("lease", *CLIENT_OPTIONS)
    for name in options:  # others may be Kombu's, or those of another broker
        if name not in known and (near := get_close_matches(name, known, 1, 0.75)):
            text = f"broker_transport_options: there is no option {name!r}; use {near[0]!r}"
            raise InvalidRequest(text, field=name)
    seconds = options.get("lease", LEASE)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not SHORTEST <= seconds <= 43200:
        text = f"broker_transport_options: lease = {seconds!r:.80}; use seconds from {SHORTEST:g} to 43200"
        raise InvalidRequest(text, field="lease")
    return float(seconds)
