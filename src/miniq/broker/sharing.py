"""What brokers that share a store tell each other about consumers and timings.

Each broker writes one small record with what it knows about the last five minutes: at most every `INTERVAL` seconds,
only if a count has changed, and every minute while consumers ask and get nothing. A broker that is asked reads the
records of all. A record that was not written for ten minutes is removed by the next broker that writes one.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from time import monotonic
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from miniq.broker.consumers import WINDOW, Sights
from miniq.broker.failures import QueueFailures
from miniq.broker.timings import Times, recent
from miniq.errors import MiniQError
from miniq.message import SECOND
from miniq.store.arguments import RecordChange

if TYPE_CHECKING:
    from miniq.broker.broker import Broker

log = logging.getLogger("miniq.sharing")

KIND = "consumers"
INTERVAL = 2.0
"""Seconds between two records of a broker, at least."""
IDLE = 60 * SECOND
"""Microseconds after which a record is written again though only the times of consumers have changed."""
OBSOLETE = 600 * SECOND
MOST_BYTES = 128 * 1024
"""About how large a record may be; the queues and consumers that were seen last come first."""
MOST_ERRORS = 5
"""Groups of errors of a queue in a record."""


class Summary(Struct, array_like=True, gc=False):
    """The record of a broker. Later fields go to the end, with a default."""

    at: int
    sights: dict[str, Sights]
    times: dict[str, dict[int, Times]]
    """By queue and minute."""
    failures: dict[str, QueueFailures] = msgspec.field(default_factory=dict)


class Sharing:
    """The summaries of the other brokers, and this broker's own."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.id = secrets.token_hex(6)
        self._others: dict[str, Summary] = {}
        self._raw: dict[str, bytes] = {}
        self._as_of = 0.0
        self._written: bytes | None = None
        self._written_at = 0
        self._changes = 0

    async def run(self) -> None:
        """Write the record whenever there is news."""
        while True:
            await asyncio.sleep(INTERVAL)
            try:
                await self.write()
            except MiniQError as error:
                log.debug("sharing what is known about consumers failed: %s", error)

    async def write(self) -> None:
        """Write this broker's record if it would tell something new."""
        broker = self._broker
        now = broker.clock.now()
        changes = broker.consumers.changes + broker.failures.changes
        if changes == self._changes and not self._is_idle(now):
            return
        value = msgspec.msgpack.encode(self._summary(now))
        change = RecordChange(KIND, self.id, self._written, value, is_quiet=True)
        if await broker.store.change_record(change):
            self._written, self._written_at, self._changes = value, now, changes
        else:
            self._written = None  # removed as obsolete
        await self.read(IDLE / SECOND)
        for id, summary in list(self._others.items()):
            if summary.at <= now - OBSOLETE:
                await broker.store.change_record(RecordChange(KIND, id, self._raw[id], None, is_quiet=True))

    def _is_idle(self, now: int) -> bool:
        """Whether consumers that got nothing were seen since the last record, which is old."""
        if now - self._written_at < IDLE:
            return False
        sights = self._broker.consumers.queues.values()
        seen = any(sight.last_seen > self._written_at for of in sights for sight in of.values())
        return seen or self._broker.waiters.is_waiting

    def _summary(self, now: int) -> Summary:
        broker = self._broker
        summary = Summary(now, {}, {})
        for queue in list(broker.consumers.queues):
            for name in broker.waiters.names(queue):
                broker.consumers.received(queue, name, now, 0)
        sights = [
            (sight.last_seen, queue, tag)
            for queue, of in broker.consumers.queues.items()
            for tag, sight in of.items()
            if sight.last_seen > now - WINDOW
        ]
        room = MOST_BYTES
        for _, queue, tag in sorted(sights, reverse=True):
            sight = broker.consumers.queues[queue][tag]
            room -= 40 + len(sight.name or "")
            if queue not in summary.sights:
                times = broker.timings.recent(queue, now)
                room -= 2 * len(queue) + 5 * sum(len(some.wait) + len(some.processing) for some in times.values())
                if room < 0:
                    break
                summary.sights[queue], summary.times[queue] = {}, times
            if room < 0:
                break
            summary.sights[queue][tag] = sight
        for queue, failures in reversed(list(broker.failures.queues.items())):
            groups = dict(list(failures.groups.items())[-MOST_ERRORS:])
            shared = replace(failures, groups=groups)
            room -= len(msgspec.msgpack.encode(shared)) + len(queue)
            if room < 0:
                break
            summary.failures[queue] = shared
        return summary

    async def read(self, age: float = 0) -> None:
        """Read what the other brokers know, unless it was read in the last `age` seconds."""
        broker = self._broker
        if not broker.store.shared or (age and monotonic() - self._as_of < age):
            return
        self._as_of = monotonic()
        records = await broker.store.records(KIND)
        records.pop(self.id, None)
        others = {}
        for id, raw in records.items():
            if self._raw.get(id) == raw:
                others[id] = self._others[id]
            else:
                try:
                    others[id] = msgspec.msgpack.decode(raw, type=Summary)
                except msgspec.MsgspecError:  # of a later version
                    continue
        self._others, self._raw = others, records

    def sights(self, queue: str) -> list[Sights]:
        """What the other brokers know about the consumers of a queue."""
        return [summary.sights[queue] for summary in self._others.values() if queue in summary.sights]

    def failures(self, queue: str) -> list[QueueFailures]:
        """What the other brokers know about the failures of a queue."""
        return [summary.failures[queue] for summary in self._others.values() if queue in summary.failures]

    def times(self, queue: str, now: int) -> list[Times]:
        """The timings of a queue at the other brokers."""
        found = [summary.times[queue] for summary in self._others.values() if queue in summary.times]
        return [times for minutes in found for times in recent(minutes, now).values()]
