# Generated from ../_async/transport.py by `make generate`: change that file.
"""The interface of transports: HTTP, ZeroMQ, or a broker in the same process."""

from __future__ import annotations

from typing import Protocol, TypeVar

from miniq.api.operation import Call

T = TypeVar("T")


class Transport(Protocol):
    """Performs calls on a broker: from many threads at once, or in one event loop."""

    def perform(self, call: Call[T]) -> T:
        """The result; raises the broker's error."""
        ...

    def close(self) -> None:
        """Release all resources; waiting calls return soon. Safe to repeat."""
        ...
