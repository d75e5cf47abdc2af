"""What all connections of a server share: their turns at the event loop, and what they may hold together."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from time import perf_counter

from miniq.errors import Overloaded
from miniq.options import MIB, Options
from miniq.server.memory import return_free

TURN = 0.005
"""Seconds for which connections with more to do may work before the event loop serves all others."""
SMALL = 65536
"""Size up to which a body is never refused for the sum of all bodies."""
WORTH_RETURNING = 16 * MIB
"""How much closed connections must have held for freed memory to be handed back."""


class Load:
    """The turns, bodies and connections of a server."""

    def __init__(self, options: Options) -> None:
        self._loop = asyncio.get_running_loop()
        self._max_bytes = options.max_buffered_bytes
        self._max_connections = options.max_connections
        self.turns: deque[Callable[[], None]] = deque()
        """Connections that have more to do, in the order in which they get a turn."""
        self._taking_turns = False
        self.held = 0
        """Bytes of bodies that are being received or used."""
        self._dropped = 0

    def later(self, proceed: Callable[[], None]) -> None:
        """Give a connection another turn, after those that wait for one already."""
        self.turns.append(proceed)
        if not self._taking_turns:
            self._taking_turns = True
            self._loop.call_soon(self._take_turns)

    def _take_turns(self) -> None:
        until = perf_counter() + TURN
        try:
            while self.turns:
                self.turns.popleft()()
                if perf_counter() > until:
                    break
        finally:
            self._taking_turns = bool(self.turns)
            if self.turns:
                self._loop.call_soon(self._take_turns)

    def hold(self, size: int, counted: int) -> None:
        """Count further bytes of a body, of which some are counted. `Overloaded` if all bodies together are too large;
        a small body and one that is alone always fit."""
        if self.held + size > self._max_bytes and counted + size > SMALL and self.held > counted:
            raise Overloaded(
                f"request: the bodies of all requests would be over {self._max_bytes} bytes (max_buffered_bytes); "
                "retry later",
                field="request",
            )
        self.held += size

    def release(self, size: int) -> None:
        self.held -= size

    def check_connections(self, count: int) -> None:
        """Raise `Overloaded` if there are too many."""
        if count > self._max_connections:
            raise Overloaded(f"over {self._max_connections} connections are open (max_connections); retry later")

    def dropped(self, size: int) -> None:
        """A connection has ended that held this much. Soon hand freed memory back to the operating system: where much
        is dropped out of order, the C library keeps the pages."""
        self._dropped += size
        if self._dropped >= WORTH_RETURNING:
            self._dropped = 0
            self._loop.call_later(1, return_free)
