"""Busy polling: the event loop does not sleep between the requests of a single sequential client.

Waking a thread whose CPU has gone idle can take longer than a call, above all on a virtual machine. So after the reply
to a client that sent its previous request promptly, the loop keeps polling for a short while, and yields the CPU to
other processes on every turn. With several active clients there is nothing to gain: while one is being answered, the
next one's request arrives anyway.
"""

from __future__ import annotations

import asyncio
import os
from time import perf_counter


class BusyPoll:
    """Gets every request and reply with its connection. `longest` is how long to poll, in seconds; 0 disables it."""

    def __init__(self, longest: float) -> None:
        self._longest = longest
        self._loop = asyncio.get_running_loop()
        self.last: object = None
        """The connection answered last, None if another one has sent a request since: then `asked` has no effect."""
        self._answered = 0.0
        self._is_prompt = False
        """Whether the current request came from that connection, soon after its reply."""
        self._until = 0.0
        self._polling = False

    def asked(self, connection: object) -> None:
        """A request has arrived."""
        if connection is not self.last:
            self.last = None
        self._is_prompt = self.last is not None and perf_counter() - self._answered < self._longest
        self._until = 0.0

    def answered(self, connection: object) -> None:
        """A reply was written."""
        now = self._answered = perf_counter()
        self.last = connection
        if self._is_prompt:
            self._until = now + self._longest
            if not self._polling:
                self._polling = True
                self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Make the loop poll once more without blocking."""
        if perf_counter() < self._until:
            os.sched_yield()
            self._loop.call_soon(self._turn)
        else:
            self._polling = False
