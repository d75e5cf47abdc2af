# Generated from ../_async/transport.py by `make generate`: change that file.
"""What carries the calls of a client to a broker: HTTP, ZeroMQ, or a broker in the same process."""

from __future__ import annotations

from typing import Protocol, TypeVar

from miniq.api.operation import Call

T = TypeVar("T")


class Transport(Protocol):
    """Carries calls to a broker: of many threads at once, or of one event loop."""

    def perform(self, call: Call[T]) -> T:
        """The reply, or the broker's error raised again."""
        ...

    def close(self) -> None:
        """Let go of everything; calls that wait come back soon. Harmless to repeat."""
        ...
