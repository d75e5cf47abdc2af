"""What carries the calls of a client to a broker: HTTP, ZeroMQ, or a broker in the same process."""

from __future__ import annotations

from typing import Protocol, TypeVar

from miniq.api.operation import Call
from miniq.errors import InvalidRequest  # async only

T = TypeVar("T")


class AsyncTransport(Protocol):
    """Carries calls to a broker: of many threads at once, or of one event loop."""

    async def perform(self, call: Call[T]) -> T:
        """The reply, or the broker's error raised again."""
        ...

    async def close(self) -> None:
        """Let go of everything; calls that wait come back soon. Harmless to repeat."""
        ...


def foreign_loop() -> InvalidRequest:  # async only
    return InvalidRequest("client: it belongs to another event loop; connect in this one", field="client")  # async only
