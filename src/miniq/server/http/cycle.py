"""A request on a connection and its reply: a hot call, bytes that are not a request, or a request for the ASGI
application."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from miniq.errors import MiniQError
from miniq.server.http.guard import ID, next_number


class Cycle:
    """A request that is answered without the ASGI application: a hot call, or bytes that are not a request."""

    response_complete = False
    more_body = False
    expects_continue = False
    keep_alive = False
    name = "request"
    path = ""
    size = 0
    """Bytes that it takes until it is answered: those of its head, once this was read."""
    head_copies = 1
    """How often each byte of its head is kept."""
    error: MiniQError | None = None
    """Why it is refused, once its turn has come."""

    def __init__(self) -> None:
        self.id = ID % next_number()
        self.began = perf_counter()
        self.body = bytearray()


class AsgiCycle(RequestResponseCycle):
    """A request for the ASGI application."""

    size = 2048
    head_copies = 2
    """As bytes and as text."""
    error: MiniQError | None = None
    """Why the rest of its body cannot be read."""

    def __init__(self, on_receive: Callable[[AsgiCycle], None], **uvicorn: Any) -> None:
        super().__init__(**uvicorn)
        self._on_receive = on_receive

    async def receive(self) -> Any:
        self._on_receive(self)
        if self.error is None:
            message = await super().receive()
            if self.error is None or self.disconnected or self.response_complete:
                return message
        if not self.response_started:
            raise self.error
        while not self.disconnected and not self.response_complete:
            await self.message_event.wait()
            self.message_event.clear()
        return {"type": "http.disconnect"}


Request = Cycle | AsgiCycle


def bare(error: MiniQError) -> MiniQError:
    """An error that is kept, without the frames that raised it: they refer to the bytes that were read."""
    error.__traceback__ = error.__context__ = None
    return error
