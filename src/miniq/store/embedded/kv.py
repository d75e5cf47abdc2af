"""What the embedded store needs of ordered keys: in memory, or on disk behind the commit log."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

Op = tuple[bytes, bytes | None]
"""A key with its new value, None to delete it."""


Seek = Callable[[bytes], bytes | None]


class Ordered(Protocol):
    """What can be read."""

    def get(self, key: bytes) -> bytes | None: ...

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        """Pairs with `start <= key < end` in order, as of the start of the scan."""
        ...

    def seeking(self, end: bytes) -> contextlib.AbstractContextManager[Seek]:
        """A function for many looks, one after the other: the lowest key from a given one on that is below `end`."""
        ...

    def last(self, start: bytes, end: bytes) -> bytes | None:
        """The highest key with `start <= key < end`."""
        ...

    def close(self) -> None: ...


class KV(Ordered, Protocol):
    def write(self, ops: Sequence[Op], sync: bool) -> None:
        """Write atomically, in order; synced to disk if `sync`. Releases the interpreter lock."""
        ...

    def catch_up(self) -> None:
        """Do what `write` left to be done after the confirmation, as far as that takes no time."""
        ...


class Room:
    """What is left for the next writes."""

    def __init__(self, retry: Callable[[], None]) -> None:
        self.left = 0
        """Bytes that can be written without asking the disk for more."""
        self.is_short = False
        """Whether the disk was too full for more."""
        self.retry = retry
        """Ask again."""


class DiskKV(KV, Protocol):
    @property
    def room(self) -> Room: ...

    def checkpoint(self, path: str) -> None:
        """A consistent copy in the new folder `path`."""
        ...

    def halt(self) -> None:
        """End the engine's own work on its files, as far as it can be ended. Nothing is written after this."""
        ...
