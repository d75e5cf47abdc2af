"""Receiving: a thread per queue that a channel consumes, which waits in a long poll and fills the inbox.

The inbox is what the program drains: it wakes an event loop by a pipe, and blocking callers by a condition. A channel's
prefetch limit is credit: a thread asks for as many messages as there is credit for. Of several queues, each first takes
what is ready, in turns; only if it is empty it waits, for one message. If that arrives when the credit is used up by
another queue, it is given back.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from miniq.celery.leases import Backoff
from miniq.client._sync.message import Message
from miniq.errors import Closed, MiniQError, Overloaded, StoreUnavailable

if TYPE_CHECKING:
    from miniq.celery.channel import Channel

WAIT = 20.0
SHARED_WAIT = 5.0
"""Seconds of a long poll: of the only queue of a channel, and of one among several with a low prefetch limit."""
EMBEDDED_WAIT = 0.5
"""With a broker in this process, whose polls cannot be ended from outside."""
MOST = 100
"""The most messages of one receive."""
PAUSE_ABOVE = 1000
"""Without a prefetch limit, a thread pauses while so many messages wait in the inbox."""
LINGER = 0.003
"""Seconds for which a receiver that finds messages every time waits for credit for half of the limit: short tasks then
share a call."""


class Delivery(NamedTuple):
    """What waits to be drained: a message for its receiver, or the error that ended the receiver."""

    receiver: Receiver
    message: Message | BaseException

    def __call__(self) -> None:
        self.receiver.hand_over(self.message)


class Inbox:
    """Deliveries that the program has not drained yet."""

    def __init__(self) -> None:
        self._items: deque[Delivery] = deque()
        self._lock = threading.Condition()
        self._readable, self._writable = os.pipe()
        os.set_blocking(self._readable, False)
        os.set_blocking(self._writable, False)
        self._is_closed = False

    @property
    def fileno(self) -> int:
        """Readable while there are deliveries."""
        return self._readable

    def put(self, delivery: Delivery) -> None:
        with self._lock:
            if self._is_closed:
                return
            self._items.append(delivery)
            if len(self._items) == 1:
                with contextlib.suppress(BlockingIOError):
                    os.write(self._writable, b"!")
                self._lock.notify_all()

    def get(self, timeout: float | None) -> Delivery | None:
        """The next delivery; None if there is none within `timeout` seconds."""
        with self._lock:
            if not self._items and timeout != 0:
                self._lock.wait_for(lambda: self._items or self._is_closed, timeout)
            delivery = self._items.popleft() if self._items else None
            self._calm()
            return delivery

    def remove(self, channel: Channel) -> list[Delivery]:
        """Take out what waits for a channel."""
        with self._lock:
            found = [item for item in self._items if item.receiver.channel is channel]
            self._items = deque(item for item in self._items if item.receiver.channel is not channel)
            self._calm()
            return found

    def __len__(self) -> int:
        return len(self._items)

    def close(self) -> None:
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._items.clear()
                self._lock.notify_all()
                os.close(self._readable)
                os.close(self._writable)

    def _calm(self) -> None:
        """Have the pipe not readable when there is nothing to drain."""
        if not self._items and not self._is_closed:
            with contextlib.suppress(BlockingIOError):
                os.read(self._readable, 64)


class Credit:
    """How many more messages a channel may hold."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.limit = 0
        """0 is unlimited."""
        self.used = 0

    def free(self) -> int:
        return MOST if not self.limit else max(min(self.limit - self.used, MOST), 0)

    def take(self, count: int) -> int:
        """Use credit for up to `count` messages, and return for how many there was some."""
        with self.changed:
            count = min(count, self.free()) if self.limit else count
            self.used += count
            return count

    def give_back(self, count: int = 1) -> None:
        with self.changed:
            self.used -= count
            self.changed.notify_all()

    def set_limit(self, limit: int) -> None:
        with self.changed:
            self.limit = limit
            self.changed.notify_all()


class Receiver:
    """Receives from one queue for one consumer of a channel."""

    def __init__(self, channel: Channel, tag: str, queue: str, no_ack: bool, callback: Callable[[Any], Any]) -> None:
        self.tag, self.queue, self.no_ack, self.callback = tag, queue, no_ack, callback
        self.channel = channel
        self._address = channel.transport.address
        self._client = self._address.connect(retry=0.0)
        self._busy = False
        """Whether the last receive found messages."""
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"miniq-receive-{queue}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    @property
    def is_ending(self) -> bool:
        return self._ending.is_set()

    def end(self) -> None:
        """Receive no more; a long poll ends at once."""
        self._ending.set()
        with self.channel.credit.changed:
            self.channel.credit.changed.notify_all()
        self._address.close(self._client)

    def hand_over(self, message: Message | BaseException) -> None:
        """Give a message to the program, or raise the error; called in the thread that drains."""
        if isinstance(message, BaseException):
            raise message
        self.channel.deliver(self, message)

    def join(self, seconds: float) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(seconds)

    # In the thread

    def _run(self) -> None:
        backoff = Backoff(self.channel.transport.outage)
        while not self._ending.is_set():
            try:
                if self.no_ack:
                    self._receive_removed()
                else:
                    self._receive_leased()
                backoff.worked()
            except Closed:
                return
            except (StoreUnavailable, Overloaded) as error:
                if not self._ending.is_set():
                    self._ending.wait(backoff.failed(error))
            except MiniQError as error:
                if not self._ending.is_set():
                    self._put(error)
                return
            except BaseException as error:
                self._put(error)
                return

    def _receive(self, count: int, wait: float, mode: Any = None) -> list[Message]:
        if wait and self._address.is_embedded:
            wait = EMBEDDED_WAIT
        seconds = None if mode else self.channel.transport.leases.seconds
        queue = self._client.queue(self.channel.transport.native(self.queue))
        return queue.receive(count, wait, seconds, self.channel.transport.consumer, mode)

    def _receive_removed(self) -> None:
        """Messages that need no ack leave the queue before they are handed out."""
        if len(self.channel.transport.inbox) > PAUSE_ABOVE:
            self._ending.wait(0.05)
            return
        for message in self._receive(MOST, WAIT, "at-most-once"):
            self._put(message)

    def _receive_leased(self) -> None:
        credit = self.channel.credit
        with credit.changed:
            credit.changed.wait_for(lambda: self._ending.is_set() or credit.free() > 0)
            if self._busy and credit.free() < credit.limit // 2:
                credit.changed.wait_for(lambda: self._ending.is_set() or credit.free() >= credit.limit // 2, LINGER)
            crowded = not credit.limit and len(self.channel.transport.inbox) > PAUSE_ABOVE
        if self._ending.is_set():
            return
        if crowded:
            self._ending.wait(0.05)
            return
        if self.channel.is_only(self):
            count = credit.free()
            self._busy = self._accept(self._receive(max(count, 1), WAIT))
            return
        with self.channel.turn:  # so that the queues take what is ready one after the other
            count = credit.free()
            found = count > 0 and self._accept(self._receive(count, 0))
        self._busy = found
        if not found and count > 0:
            low = 0 < credit.limit < 8
            self._accept(self._receive(1, SHARED_WAIT if low else WAIT))

    def _accept(self, messages: list[Message]) -> bool:
        """Pass on as many messages as there is credit for, and give back the others."""
        if not messages:
            return False
        transport = self.channel.transport
        transport.leases.add(messages)
        accepted = 0 if self._ending.is_set() else self.channel.credit.take(len(messages))
        for message in messages[:accepted]:
            if transport.wait_again(message):
                self.channel.credit.give_back()
            else:
                self._put(message)
        for message in messages[accepted:]:
            transport.leases.settle(message, "unused")
        return True

    def _put(self, message: Message | BaseException) -> None:
        self.channel.transport.inbox.put(Delivery(self, message))
