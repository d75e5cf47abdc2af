"""The leases of messages that this process holds, extended until they are acked, dead or requeued."""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Condition, Thread
from time import monotonic

from dramatiq.logging import get_logger

from miniq.client._sync.client import Client
from miniq.client._sync.message import Message
from miniq.errors import MiniQError, QueueNotFound

BULK = 500
"""How many leases are extended by one call."""
AGAIN = 1.0
"""Seconds until leases are extended again that could not be."""


class Leases:
    """Extends leases from a thread that runs while there are any."""

    def __init__(self, client: Callable[[], Client]) -> None:
        self._logger = get_logger(__name__, type(self))
        self._client = client
        self._begin()

    def _begin(self) -> None:
        self._changed = Condition()
        self._held: dict[str, tuple[Message, float]] = {}
        """By receipt, which no two leases share: messages and the length of their leases in seconds."""
        self._thread: Thread | None = None
        self._process = os.getpid()
        self._closed = False

    def hold(self, messages: list[Message], seconds: float) -> None:
        """Extend these leases from now on."""
        if self._process != os.getpid():  # the parent's leases are the parent's
            self._begin()
        with self._changed:
            self._held.update((message.receipt or "", (message, seconds)) for message in messages)
            if self._thread is None and messages and not self._closed:
                self._thread = Thread(target=self._run, name="miniq-leases", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def drop(self, *messages: Message) -> None:
        """Extend these leases no more."""
        with self._changed:
            for message in messages:
                self._held.pop(message.receipt or "", None)

    def close(self) -> None:
        """Extend none any more."""
        with self._changed:
            self._closed = True
            self._held.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and self._process == os.getpid():
            thread.join()

    def _run(self) -> None:
        extended = monotonic()
        while True:
            with self._changed:
                while not self._closed:
                    pause = min((seconds for _, seconds in self._held.values()), default=None)
                    left = None if pause is None else extended + pause / 3 - monotonic()
                    if left is not None and left <= 0:
                        break
                    self._changed.wait(left)
                    if pause is None:
                        extended = monotonic()
                if self._closed:
                    return
                held = [message for message, _ in self._held.values()]
                shortest = min(seconds for _, seconds in self._held.values())
            extended = monotonic()
            try:
                self._extend(held)
            except MiniQError as error:
                self._logger.warning("Leases could not be extended, and are tried again: %s", error)
                extended += min(AGAIN, shortest / 6) - shortest / 3

    def _extend(self, held: list[Message]) -> None:
        queues: dict[str, list[Message]] = {}
        for message in held:
            queues.setdefault(message.queue, []).append(message)
        for name, messages in queues.items():
            queue = self._client().queue(name)
            for start in range(0, len(messages), BULK):
                part = messages[start : start + BULK]
                try:
                    outcomes = queue.extend(part)
                except QueueNotFound:
                    outcomes = ["missing"] * len(part)
                for message, outcome in zip(part, outcomes, strict=True):
                    if outcome != "done":
                        self._lost(message)

    def _lost(self, message: Message) -> None:
        with self._changed:
            known = self._held.pop(message.receipt or "", None)
        if known is not None:  # it was not acked meanwhile
            self._logger.warning("Message %s of queue %r is not held any more.", message.id, message.queue)
