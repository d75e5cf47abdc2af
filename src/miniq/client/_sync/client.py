# Generated from ../_async/client.py by `make generate`: change that file.
"""A connection to a broker: its queues, its history, its keys. Methods build calls and have them carried out."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

from miniq.api import operations as ops
from miniq.api.operation import AsTable, Call
from miniq.api.shapes import ApiKey, Identity, Stats, Trends
from miniq.api.tables import TablePage
from miniq.client._sync.queue import Queue
from miniq.client._sync.transport import Transport
from miniq.message import HistoryPage, QueueInfo

T = TypeVar("T")


class Client:
    """A connection to a broker, made by `miniq.connect`. A blocking one may be used by many threads at once, one
    for an event loop only in the loop that it was made in."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def perform(self, call: Call[T]) -> T:
        """Make a call by its record (see `api/operations.py`); the other methods do so, too."""
        return self._transport.perform(call)

    def queue(self, name: str) -> Queue:
        """A queue by name; asks nothing yet."""
        return Queue(self._transport, name)

    def queues(self) -> list[QueueInfo]:
        """All queues by name, with settings and counts."""
        return self._transport.perform(ops.ListQueues())

    def history(
        self,
        after: int = 0,
        limit: int = 100,
        queue: str | None = None,
        *,
        id: str | None = None,
        event: str | None = None,
        consumer: str | None = None,
        since: datetime | None = None,
        before: int = 0,
    ) -> HistoryPage:
        """What happened, by rising offset; give the page's `next` as `after` for more. Of one message, of one kind of
        event or of one consumer if they are named, and only from a moment on or below an offset."""
        return self._transport.perform(ops.History(after, limit, queue, id, event, consumer, since, before))

    def history_table(self, after: int = 0, limit: int = 10_000, queue: str | None = None) -> TablePage:
        """What happened, up to 100,000 records at a time as a `pyarrow.Table`."""
        call: AsTable[TablePage] = AsTable(ops.History(after, limit, queue))
        return self._transport.perform(call)

    def stats(self, queue: str | None = None) -> Stats:
        """All queues, or one, as they are now: counts, messages per second, dead letters."""
        return self._transport.perform(ops.Stats(queue))

    def trends(
        self, queue: str | None = None, series: Iterable[str] = ("total", "sent", "acked"), points: int = 60
    ) -> Trends:
        """The last hour of all queues, or of one, at so many points in time."""
        return self._transport.perform(ops.Trends(queue, ",".join(series), points))

    def whoami(self, queue: str | None = None) -> Identity:
        """Who this client is to the broker, and which rights it has: on a queue, or on the broker as a whole."""
        return self._transport.perform(ops.WhoAmI(queue))

    def create_key(self, name: str, allow: Iterable[str], public: str | None = None) -> ApiKey:
        """Make an API key, whose secret is shown only now, or, with the public half of one, list a CURVE key. `allow`
        has what it may do, such as `send:orders.*`."""
        return self._transport.perform(ops.CreateKey(name, list(allow), public))

    def list_keys(self) -> list[ApiKey]:
        """All keys, without their secrets."""
        return self._transport.perform(ops.ListKeys())

    def revoke_key(self, id: str) -> None:
        """A key is no longer good from now on."""
        self._transport.perform(ops.RevokeKey(id))

    def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a consistent copy of everything to a new folder, while work goes on."""
        self._transport.perform(ops.Backup(os.fspath(path)))

    def close(self) -> None:
        """End the connection; receives that wait come back at once. Harmless to repeat."""
        self._transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
