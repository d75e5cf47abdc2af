"""Accepts the connections that wait behind the one that the event loop has accepted.

libuv accepts one connection per turn of the event loop. A turn takes 20 ms and more when there is much to do, so the
last of 300 clients that connect at the same time would be accepted after 6 s. A connection that is alone is left to
libuv, as are errors, which it meets in the next turn.
"""

from __future__ import annotations

import asyncio
import select
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from ssl import SSLContext
from typing import Any

AT_ONCE = 64
"""Connections to accept per turn of the event loop; opening them takes about 5 ms."""


class Acceptor:
    """Makes the protocol of a connection that the event loop has accepted. uvicorn calls it with the arguments in
    `uvicorn`."""

    def __init__(self, listener: socket.socket, protocol: Callable[..., asyncio.Protocol]) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener = listener
        self._protocol = protocol
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._opening: set[asyncio.Task[None]] = set()

    def __call__(self, **uvicorn: Any) -> asyncio.Protocol:
        if self._poll.poll(0):  # far cheaper than an accept that fails
            self._accept_waiting(partial(self._protocol, **uvicorn), uvicorn["config"].ssl)
        return self._protocol(**uvicorn)

    def _accept_waiting(self, protocol: Callable[[], asyncio.Protocol], tls: SSLContext | None) -> None:
        for _ in range(AT_ONCE):
            try:
                accepted, _address = self._listener.accept()
            except OSError:  # none is left, or there are too many open files
                return
            task = self._loop.create_task(self._open(accepted, protocol, tls))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)

    async def _open(
        self, accepted: socket.socket, protocol: Callable[[], asyncio.Protocol], tls: SSLContext | None
    ) -> None:
        with suppress(OSError):  # the handshake has failed
            await self._loop.connect_accepted_socket(protocol, accepted, ssl=tls)
