"""The leases that a connection holds: extended while tasks run, acked and released in the background.

One thread does both. Acks that arrive while a call is under way, or soon after it, share the next one. While the
broker is unreachable they wait: a receipt stays valid until the message is received again, whatever happened to the
connection.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterable
from time import monotonic, sleep
from typing import Literal, get_args

from miniq.client._sync.client import Client
from miniq.client._sync.message import Message
from miniq.errors import MiniQError, NotFound, Overloaded, StoreUnavailable

logger = logging.getLogger("kombu.transport.miniq")

LEASE = 60.0
"""Seconds. How soon a message goes to another worker after its worker was killed."""
SHORTEST = 2.0
RENEWALS = 4
"""How often a lease is extended before it would end."""
BATCH = 500
LINGER = 0.004
"""Seconds for which acks are collected, unless the last call was over `QUIET` seconds ago."""
QUIET = 0.02
PATIENCE = 15.0
"""Seconds for which a connection that is closed tries to pass on its last acks."""
REJECTED = "rejected by Celery"
"""The error of a dead letter of which nothing else is known."""
Verdict = Literal["ack", "release", "unused", "dead"]
"""`unused` is a release of what no program has seen: its receive does not count."""


class Leases:
    """What a connection holds, and what is to be done with it."""

    def __init__(self, client: Client, seconds: float, outage: Outage) -> None:
        self.seconds = seconds
        self._client = client
        self._outage = outage
        self._process = os.getpid()
        self._lock = threading.Condition()
        self._held: dict[Message, None] = {}
        self._settled: list[tuple[Message, Verdict, str]] = []
        self._closing = False
        self._thread: threading.Thread | None = None

    def add(self, leases: Iterable[Message]) -> None:
        """Extend these from now on."""
        with self._lock:
            is_first = not self._held
            self._held.update(dict.fromkeys(leases))
            if is_first:
                self._start()
                self._lock.notify_all()

    def settle(self, held: Message, verdict: Verdict, error: str = REJECTED) -> None:
        """Ack a message, give it back, or make it a dead letter with that error."""
        if self._process != os.getpid():
            return  # a forked child has no part in its parent's leases
        with self._lock:
            self._held.pop(held, None)
            self._settled.append((held, verdict, error))
            if len(self._settled) == 1:
                self._start()
                self._lock.notify_all()

    def flush(self) -> None:
        """Wait until all that was settled has reached the broker."""
        with self._lock:
            self._lock.wait_for(lambda: not self._settled, PATIENCE)

    def close(self) -> None:
        """Pass on what is settled, and end. What is still held is released."""
        if self._process != os.getpid():
            return
        with self._lock:
            self._settled += [(held, "release", "") for held in self._held]
            self._held.clear()
            self._closing = True
            self._lock.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(PATIENCE)

    def _start(self) -> None:
        if self._thread is None and not self._closing:
            self._thread = threading.Thread(target=self._run, name="miniq-leases", daemon=True)
            self._thread.start()

    # In the thread

    def _run(self) -> None:
        backoff, every = Backoff(self._outage), self.seconds / RENEWALS
        renewal = monotonic() + every
        called = -QUIET
        while True:
            with self._lock:
                if not self._settled and not self._closing:
                    self._lock.wait(max(renewal - monotonic(), 0) if self._held else None)
            if monotonic() < called + QUIET and not self._closing:
                sleep(LINGER)
            with self._lock:
                batch = self._settled[:BATCH]
                due = self._held and monotonic() >= renewal
                if not self._held or due:
                    renewal = monotonic() + every
                if self._closing and not batch:
                    return
            try:
                if due:
                    self._extend()
                if batch:
                    self._settle(batch)
                    called = monotonic()
                backoff.worked()
            except (StoreUnavailable, Overloaded) as error:
                seconds = backoff.failed(error)
                with self._lock:
                    if self._closing:
                        logger.warning("%d acks could not be passed on: %s", len(self._settled), error)
                        return
                    renewal = monotonic()
                    self._lock.wait_for(lambda: self._closing, seconds)
                continue
            with self._lock:
                del self._settled[: len(batch)]
                if not self._settled:
                    self._lock.notify_all()

    def _extend(self) -> None:
        with self._lock:
            held = list(self._held)
        for queue, messages in _by_queue(held):
            for outcome, message in self._perform("extend", queue, messages):
                if outcome != "done":
                    with self._lock:
                        lost = self._held.pop(message, message) is None
                    if lost:
                        logger.warning("message %s of queue %r was lost to another consumer", message.id, queue)

    def _settle(self, batch: list[tuple[Message, Verdict, str]]) -> None:
        for verdict in get_args(Verdict):
            wanted: dict[str, list[Message]] = {}
            for held, given, error in batch:
                if given == verdict:
                    wanted.setdefault(error if verdict == "dead" else "", []).append(held)
            for why, queue, messages in [(text, *each) for text in wanted for each in _by_queue(wanted[text])]:
                for outcome, message in self._perform(verdict, queue, messages, why):
                    if outcome == "stale":
                        text = "message %s of queue %r is another consumer's now: %s came too late and has no effect"
                        logger.warning(text, message.id, queue, verdict)

    def _perform(self, what: str, name: str, messages: list[Message], error: str = "") -> list[tuple[str, Message]]:
        queue = self._client.queue(name)
        outcomes: list[str] = []
        try:
            for start in range(0, len(messages), BATCH):
                part = messages[start : start + BATCH]
                if what == "extend":
                    outcomes += queue.extend(part, self.seconds)
                elif what == "ack":
                    outcomes += queue.ack(part)
                elif what in ("release", "unused"):
                    outcomes += queue.release(part, unused=what == "unused")
                else:
                    outcomes += [each.outcome for each in queue.fail(part, error, dead=True)]
        except (StoreUnavailable, Overloaded):
            raise
        except NotFound:  # the queue was deleted
            outcomes += ["missing"] * (len(messages) - len(outcomes))
        except MiniQError as failure:
            logger.error("%s of %d messages of queue %r failed: %s", what, len(messages), name, failure)
        return list(zip(outcomes, messages, strict=False))


class Outage:
    """Whether the broker of a connection is unreachable: its threads find that out alike, and say it once."""

    def __init__(self) -> None:
        self._is_down = False

    def began(self, error: MiniQError) -> None:
        if not self._is_down:
            self._is_down = True
            logger.warning("%s; messages that are held stay held, trying again until it is back", error)

    def ended(self) -> None:
        if self._is_down:
            self._is_down = False
            logger.warning("the broker is back")


class Backoff:
    """How long a thread waits until it asks the broker again."""

    FIRST, SLOWEST = 0.1, 2.0

    def __init__(self, outage: Outage) -> None:
        self._outage = outage
        self._pause = 0.0

    def worked(self) -> None:
        if self._pause:
            self._pause = 0.0
            self._outage.ended()

    def failed(self, error: MiniQError) -> float:
        self._outage.began(error)
        self._pause = min(2 * self._pause, self.SLOWEST) or self.FIRST
        return self._pause


def _by_queue(messages: Iterable[Message]) -> list[tuple[str, list[Message]]]:
    queues: dict[str, list[Message]] = {}
    for message in messages:
        queues.setdefault(message.queue, []).append(message)
    return list(queues.items())
