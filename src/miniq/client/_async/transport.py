"""The interface of transports: HTTP, ZeroMQ, or a broker in the same process."""

from __future__ import annotations

from typing import Protocol, TypeVar

from miniq.api.operation import Call
from miniq.errors import InvalidRequest  # async only

T = TypeVar("T")


class AsyncTransport(Protocol):
    """Performs calls on a broker: from many threads at once, or in one event loop."""

    async def perform(self, call: Call[T]) -> T:
        """The result; raises the broker's error."""
        ...

    async def close(self) -> None:
        """Release all resources; waiting calls return soon. Safe to repeat."""
        ...


def foreign_loop() -> InvalidRequest:  # async only
    return InvalidRequest("client: it belongs to another event loop; connect in this one", field="client")  # async only
