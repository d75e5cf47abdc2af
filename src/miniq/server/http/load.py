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
"""How much closed connections must have held, or requests have taken, for freed memory to be handed back."""
LONGEST_BUSY = 10
"""Seconds after which it is handed back although there was no pause."""


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
        self._freed = 0
        """Bytes that were freed since memory was handed back."""
        self._returning = False

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
        self.dropped(size)

    def check_connections(self, count: int) -> None:
        """Raise `Overloaded` if there are too many."""
        if count > self._max_connections:
            raise Overloaded(f"over {self._max_connections} connections are open (max_connections); retry later")

    def dropped(self, size: int) -> None:
        """So much was freed. Where pieces are freed out of order, the C library keeps the pages: hand them back to the
        operating system when there is a pause, or else after a while."""
        self._freed += size
        if self._freed >= WORTH_RETURNING and not self._returning:
            self._returning = True
            self._loop.call_later(1, self._return, self._freed, LONGEST_BUSY)

    def _return(self, freed: int, seconds: int) -> None:
        if seconds and (self.held or self._freed > freed):
            self._loop.call_later(1, self._return, self._freed, seconds - 1)
            return
        self._freed, self._returning = 0, False
        return_free()
