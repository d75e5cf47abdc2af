"""Message ids: UUIDv7 text that rises within a broker, even if its clock is set back.

The 12 bits after the milliseconds are their fraction, as RFC 9562 allows, so that ids of several brokers with
synchronised clocks rise as well.

The 62 free bits hold a run number and, in the last 7, the index within the run. Similar messages that are sent together
share a run, so a store may keep up to `RUN` of them as one record and find that record from any of their ids (see
`run_of`). That is an optimisation: nothing depends on it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import overload

from miniq.packed import PackedIds

RUN = 128
SHARE = 100
"""Messages of one call per run. Batches are mostly round numbers, and a batch received as it was sent is cheapest."""
_PLACES = tuple(f"{place:02x}" for place in range(256))
_TAILS = tuple(place.encode() for place in _PLACES)
_LOW, _HIGH = _PLACES[:RUN], _PLACES[RUN:]
_FIRST = {tail: ("00" if place < RUN else "80", place % RUN) for place, tail in enumerate(_PLACES)}


class IdSource:
    """Generates rising ids. `after` is the highest id so far, "" if there is none."""

    def __init__(self, after: str = "") -> None:
        self._at = -1
        self._run = 0
        self._floor = after
        self._head = ""
        self._random = random.Random()  # noqa: S311  ids are not secret; receipts are

    def run(self, count: int, now: int) -> list[str]:
        """The next `count` ids (at most `RUN`), consecutive, from the start of a new run."""
        if now > self._at:
            self._at = max(now, (sent_ms(self._floor) + 1) * 1000 if self._floor else 0)
            self._floor = ""
            self._run = self._random.getrandbits(53)
            ms, micros = divmod(self._at, 1000)
            stamp = f"{ms:012x}"
            self._head = f"{stamp[:8]}-{stamp[8:]}-7{micros * 4096 // 1000:03x}-"
        else:
            self._run += 1
        low = f"{0x8000000000000000 | self._run << 7:016x}"
        start = f"{self._head}{low[:4]}-{low[4:14]}"
        return [start + place for place in (_HIGH if low[14:] == "80" else _LOW)[:count]]

    def reserve(self, count: int, now: int) -> str:
        """Reserve `count` ids from the start of a new run, and return the first; see `id_in_range`."""
        first = self.run(1, now)[0]
        self._run += (count - 1) // RUN
        return first

    def runs(self, count: int, now: int) -> list[str]:
        """The next `count` ids for messages of one call, in runs of `SHARE`."""
        if count <= SHARE:
            return self.run(count, now)
        ids: list[str] = []
        while count > 0:
            ids += self.run(min(count, SHARE), now)
            count -= SHARE
        return ids


def run_of(id: str) -> tuple[str, int]:
    """The first id of the run of `id`, and the index of `id` in it."""
    tail, place = _FIRST[id[34:]]
    return id[:34] + tail, place


def ids_from(id: str, count: int) -> list[str]:
    """`count` consecutive ids of a run, starting with `id`."""
    head, place = id[:34], int(id[34:], 16)
    return [head + tail for tail in _PLACES[place : place + count]]


def sequence_number(id: str) -> str:
    """An id as a number, which rises as ids do: its bits without version and variant."""
    number = int(id.replace("-", ""), 16)
    moment = (number >> 80) << 12 | (number >> 64) & 0xFFF
    return str(moment << 62 | number & (1 << 62) - 1)


class RunIds(PackedIds):
    """`count` consecutive ids of a run, starting with `first`, which are written out only when they are asked for."""

    __slots__ = ("_count", "_first")

    def __init__(self, first: str, count: int) -> None:
        self._first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        return iter(ids_from(self._first, self._count))

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[str]: ...
    def __getitem__(self, index: int | slice) -> str | Sequence[str]:
        places = range(self._count)[index]
        head, start = self._first[:34], int(self._first[34:], 16)
        if isinstance(places, int):
            return head + _PLACES[start + places]
        if places.step != 1 or not places:
            return [head + _PLACES[start + place] for place in places]
        return RunIds(head + _PLACES[start + places.start], len(places))

    def joined(self) -> bytes:
        start = int(self._first[34:], 16)
        return self._first[:34].encode().join([b"", *_TAILS[start : start + self._count]])


def is_run(ids: Sequence[str]) -> bool:
    """Whether ids are consecutive from the start of a run; only the first and the last are checked."""
    first, last = ids[0], ids[-1]
    tail = first[34:]
    if tail != "00" and tail != "80":
        return False
    return last[:34] == first[:34] and int(last[34:], 16) - int(tail, 16) == len(ids) - 1


def spans(ids: Sequence[str]) -> str:
    """Ids as a short text, in which consecutive ones of a run are given by the first and their number."""
    parts: list[str] = []
    start, end = 0, len(ids)
    while start < end:
        following = ids_from(ids[start], min(end - start, SHARE))
        stop = start + len(following)
        if ids[start:stop] != following:
            stop = start + 1
            while ids[stop] == following[stop - start]:
                stop += 1
        parts.append(f"{ids[start]}*{stop - start}" if stop - start > 1 else ids[start])
        start = stop
    return ",".join(parts)


def from_spans(text: str) -> list[str]:
    """The inverse of `spans`."""
    ids: list[str] = []
    for part in text.split(",") if text else ():
        first, _, number = part.partition("*")
        ids += ids_from(first, int(number)) if number else [first]
    return ids


def id_in_range(first: str, index: int) -> str:
    """The id at an index of a range from `IdSource.reserve`."""
    low = int(first[19:23] + first[24:], 16) + index
    text = f"{low:016x}"
    return f"{first[:19]}{text[:4]}-{text[4:]}"


def sent_ms(id: str) -> int:
    """The time in an id, in milliseconds since 1970."""
    return int(id[:8] + id[9:13], 16)
