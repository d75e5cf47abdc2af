"""Message ids: UUIDv7 text that rises within a broker, also when its clock is set back.

The 12 bits after the milliseconds are the fraction of one, as RFC 9562 allows, so that ids of several brokers whose
clocks agree rise as well.

The 62 free bits hold a run number and, in the last 7, the place within the run. Messages that are
sent together and are alike share a run, so a store may keep up to `RUN` of them as one record and find
that record from any of their ids (see `run_of`). Nothing breaks where that does not hold.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

RUN = 128
SHARE = 100
"""How many messages of one call share a run. People send and receive round numbers, and what is received as it
was sent is cheapest."""
_PLACES = tuple(f"{place:02x}" for place in range(256))
_LOW, _HIGH = _PLACES[:RUN], _PLACES[RUN:]
_FIRST = {tail: ("00" if place < RUN else "80", place % RUN) for place, tail in enumerate(_PLACES)}


class IdSource:
    """Hands out rising ids. `after` is the highest id that was given out before, "" if none."""

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
        """The first of `count` ids that are set aside from the start of a new run; see `id_in_range`."""
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
    """The first id of the run that `id` belongs to, and its place in it."""
    tail, place = _FIRST[id[34:]]
    return id[:34] + tail, place


def ids_from(id: str, count: int) -> list[str]:
    """An id and those that follow it in its run, `count` in all."""
    head, place = id[:34], int(id[34:], 16)
    return [head + tail for tail in _PLACES[place : place + count]]


def is_run(ids: Sequence[str]) -> bool:
    """Whether ids follow each other from the start of a run; those in between are taken for granted."""
    first, last = ids[0], ids[-1]
    tail = first[34:]
    if tail != "00" and tail != "80":
        return False
    return last[:34] == first[:34] and int(last[34:], 16) - int(tail, 16) == len(ids) - 1


def spans(ids: Sequence[str]) -> str:
    """Ids as a short text, in which those that follow each other in a run are told by the first and their number."""
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
    """The ids that `spans` made a text of."""
    ids: list[str] = []
    for part in text.split(","):
        first, _, number = part.partition("*")
        ids += ids_from(first, int(number)) if number else [first]
    return ids


def id_in_range(first: str, place: int) -> str:
    """The id so many places after the first of a range that was reserved: runs follow each other in it."""
    low = int(first[19:23] + first[24:], 16) + place
    text = f"{low:016x}"
    return f"{first[:19]}{text[:4]}-{text[4:]}"


def sent_ms(id: str) -> int:
    """The moment in an id, in milliseconds since 1970: when it was made."""
    return int(id[:8] + id[9:13], 16)
