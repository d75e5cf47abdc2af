"""The last hour of every queue in the store, so that charts go on after a restart.

Once per minute, and when the broker ends, the new rows of `trends.py` are written as one small record, compressed. A
record is named after the minute and the broker that wrote it, and removed after an hour by any broker that knows it. A crash loses the last minute. What several brokers on one store counted is added up.
"""

from __future__ import annotations

import logging
import operator
import secrets
import zlib
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


class Minute(Struct, array_like=True, gc=False):
    """A record. Later fields go to the end, with a default."""

    at: int
    rows: dict[str, list[list[int]]]
    """By queue: step, gauges, and what was counted since the row before."""
    seen: dict[str, int]
    """By queue: when a consumer was last seen."""


class TrendLog:
    """What a broker writes about its queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._id = secrets.token_hex(4)
        self._rows: dict[str, list[list[int]]] = {}
        self._written: dict[str, tuple[int, bytes]] = {}
        """The records of this broker, and those that it found: when they were written, and what they are."""

    def add(self, queue: str, row: list[int]) -> None:
        """A row to write with the next record."""
        self._rows.setdefault(queue, []).append(row)

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
        name = f"{now // SECOND}-{self._id}"
        if await broker.store.change_record(RecordChange(KIND, name, None, value, is_quiet=True)):
            self._written[name] = now, value
        for old in [old for old, (at, _) in self._written.items() if at <= now - HOUR]:
            _, raw = self._written.pop(old)
            await broker.store.change_record(RecordChange(KIND, old, raw, None, is_quiet=True))

    async def load(self, now: int) -> dict[str, list[list[int]]]:
        """The rows of the last hour by queue, in order. Also tells the broker when consumers were last seen."""
        broker = self._broker
        hour: dict[str, dict[int, list[int]]] = {}
        for name, raw in (await broker.store.records(KIND)).items():
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
                continue
            self._written[name] = minute.at, raw  # removed by the first of the brokers whose turn comes
            for queue, rows in minute.rows.items():
                steps = hour.setdefault(queue, {})
                for row in rows:
                    same = steps.get(row[0])
                    # Another broker's row of that moment has the same gauges, and other events.
                    if same is not None:
                        row[GAUGES:] = map(operator.add, row[GAUGES:], same[GAUGES:])
                    steps[row[0]] = row
        return {queue: [steps[step] for step in sorted(steps)] for queue, steps in hour.items()}
