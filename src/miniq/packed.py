"""Bodies that lie one after the other in memory, as an Arrow stream brings them and a stage keeps them on disk: one
piece of memory, and the length of each body. A body becomes an object of its own only when it is asked for, and so does
its id."""

from __future__ import annotations

from abc import abstractmethod
from array import array
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import overload

WIDTH = 4
"""Bytes per length: little-endian, as on every machine that the engines are built for."""


class Packed(Sequence[bytes]):
    """Bodies in one piece of memory."""

    __slots__ = ("_offsets", "blob", "lengths")

    def __init__(
        self, blob: memoryview, lengths: memoryview, offsets: Sequence[int] | memoryview[int] | None = None
    ) -> None:
        self.blob = blob
        self.lengths = lengths
        self._offsets = offsets
        """Where each body begins, and where the last one ends."""

    @property
    def sizes(self) -> list[int]:
        """The length of each body."""
        return array("i", bytes(self.lengths)).tolist()

    def __len__(self) -> int:
        return len(self.lengths) // WIDTH

    def __iter__(self) -> Iterator[bytes]:
        blob = self.blob
        return (bytes(blob[start:stop]) for start, stop in pairwise(self._places()))

    @overload
    def __getitem__(self, index: int) -> bytes: ...
    @overload
    def __getitem__(self, index: slice) -> Packed: ...
    def __getitem__(self, index: int | slice) -> bytes | Packed:
        places, offsets = range(len(self))[index], self._places()
        if isinstance(places, int):
            return bytes(self.blob[offsets[places] : offsets[places + 1]])
        if places.step != 1:
            raise ValueError("packed bodies can be cut, but not rearranged")
        if len(places) == len(self):
            return self
        start, stop = places.start, max(places.start, places.stop)
        return Packed(self.blob[offsets[start] : offsets[stop]], self.lengths[WIDTH * start : WIDTH * stop])

    def _places(self) -> Sequence[int] | memoryview[int]:
        if self._offsets is None:
            self._offsets = list(accumulate(self.sizes, initial=0))
        return self._offsets


class PackedIds(Sequence[str]):
    """Ids that are made when they are asked for, one by one or all in one piece."""

    __slots__ = ()

    @abstractmethod
    def joined(self) -> bytes:
        """All ids, one after the other."""


def sizes_of(bodies: Sequence[bytes]) -> list[int]:
    """The length of each body."""
    return bodies.sizes if isinstance(bodies, Packed) else list(map(len, bodies))


def size_of(bodies: Sequence[bytes]) -> int:
    """The length of all bodies."""
    return len(bodies.blob) if isinstance(bodies, Packed) else sum(map(len, bodies))


def pack(bodies: Sequence[bytes]) -> Packed:
    """Bodies in one piece."""
    if isinstance(bodies, Packed):
        return bodies
    return Packed(memoryview(b"".join(bodies)), memoryview(array("i", map(len, bodies)).tobytes()))
