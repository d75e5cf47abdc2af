"""The last hour of every queue in the store, so that charts go on after a restart.

Once per minute, and when the broker ends, the new rows of `trends.py` are written as one small record, compressed. A
record is named after its time and the broker that wrote it, and removed after an hour by any broker that knows it. A
crash loses the last minute. What several brokers on one store counted is added up.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import secrets
import zlib
from array import array
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from miniq.message import SECOND
from miniq.store.arguments import RecordChange

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.trends")

KIND = "trends"
HOUR = 3600 * SECOND
GAUGES = 4
"""Columns of a row before those that were counted."""
WIDTH = 11
"""Columns of a row."""


class Minute(Struct, array_like=True, gc=False):
    """A record. Later fields go to the end, with a default."""

    at: int
    rows: dict[str, list[int]]
    """By queue, concatenated: step, gauges, and what was counted since the row before."""
    seen: dict[str, int]
    """By queue: when a consumer was last seen."""


class TrendLog:
    """What a broker writes about its queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._id = secrets.token_hex(4)
        self._rows: dict[str, list[int]] = {}
        self._written: dict[str, tuple[int, bytes]] = {}
        """The records of this broker, and those that it found: when they were written, and what they are."""

    def add(self, queue: str, row: list[int]) -> None:
        """A row to write with the next record."""
        self._rows.setdefault(queue, []).extend(row)

    async def save(self) -> None:
        """Write the new rows, if there are any, and remove records that are over."""
        if not self._rows:
            return
        broker, now = self._broker, self._broker.clock.now()
        rows, self._rows = self._rows, {}
        seen = {}
        for queue in rows:
            _, last = broker.consumers.presence(queue, now)
            if last is not None:
                seen[queue] = last
        value = zlib.compress(msgspec.msgpack.encode(Minute(now, rows, seen)), 1)
        broker.store.check_space(len(value), 1)
        name = f"{now // SECOND}-{self._id}"
        if await broker.store.change_record(RecordChange(KIND, name, None, value, is_quiet=True)):
            self._written[name] = now, value
        for old in [old for old, (at, _) in self._written.items() if at <= now - HOUR]:
            _, raw = self._written.pop(old)
            await broker.store.change_record(RecordChange(KIND, old, raw, None, is_quiet=True))

    async def load(self, now: int) -> dict[str, array[int]]:
        """The rows of the last hour by queue, in order, concatenated. Also tells the broker when consumers were last
        seen. Other calls run in between."""
        broker = self._broker
        minutes = []
        for name, raw in (await broker.store.records(KIND)).items():
            await asyncio.sleep(0)
            try:
                minute = msgspec.msgpack.decode(zlib.decompress(raw), type=Minute)
            except (msgspec.MsgspecError, zlib.error):  # of a later version
                log.warning("the record %s of the last hour is of another version, and is left out", name)
                continue
            for queue, last in minute.seen.items():
                if broker.catalog.find(queue) is not None:
                    broker.consumers.before[queue] = max(last, broker.consumers.before.get(queue, 0))
            if minute.at <= now - HOUR:
                await broker.store.change_record(RecordChange(KIND, name, raw, None, is_quiet=True))
            else:
                self._written[name] = minute.at, raw  # removed by the first of the brokers whose turn comes
                minutes.append(minute)
        hour: dict[str, array[int]] = {}
        for minute in sorted(minutes, key=attrgetter("at")):
            await asyncio.sleep(0)
            for queue, rows in minute.rows.items():
                hour.setdefault(queue, array("q")).extend(rows)
        return {queue: _merged(rows) for queue, rows in hour.items()}


def _merged(rows: array[int]) -> array[int]:
    """Rows by step. Those of several brokers for one step are one: they have the same gauges, and other events."""
    order = rows[::WIDTH]
    if all(map(operator.lt, order, order[1:])):
        return rows
    steps: dict[int, list[int]] = {}
    for offset in range(0, len(rows), WIDTH):
        row = rows[offset : offset + WIDTH].tolist()
        same = steps.get(row[0])
        if same is not None:
            row[GAUGES:] = map(operator.add, row[GAUGES:], same[GAUGES:])
        steps[row[0]] = row
    return array("q", [number for step in sorted(steps) for number in steps[step]])
