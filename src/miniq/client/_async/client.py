"""A connection to a broker: its queues, history and keys. Each method makes one call."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

from miniq.api import operations as ops
from miniq.api.operation import AsTable, Call
from miniq.api.shapes import ApiKey, Identity, Stats, Trends
from miniq.api.tables import TablePage
from miniq.client._async.queue import AsyncQueue
from miniq.client._async.transport import AsyncTransport
from miniq.client.arguments import as_texts
from miniq.message import HistoryPage, QueueInfo

T = TypeVar("T")


class AsyncClient:
    """A connection to a broker, created by `miniq.connect_async`. A blocking client may be used by many threads at
    once, an async one only in the event loop that it was created in."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def perform(self, call: Call[T]) -> T:
        """Make a call, given as a record of `api/operations.py`."""
        return await self._transport.perform(call)

    def queue(self, name: str) -> AsyncQueue:
        """A queue by name; makes no call yet."""
        return AsyncQueue(self._transport, name)

    async def queues(self) -> list[QueueInfo]:
        """All queues by name, with settings and counts."""
        return await self._transport.perform(ops.ListQueues())

    async def history(
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
        """Events by rising offset; pass the page's `next` as `after` for more. They can be limited to a queue, a
        message, a kind of event, a consumer, a start time (`since`) and an end offset (`before`)."""
        return await self._transport.perform(ops.History(after, limit, queue, id, event, consumer, since, before))

    async def history_table(self, after: int = 0, limit: int = 10_000, queue: str | None = None) -> TablePage:
        """Events as a `pyarrow.Table`, up to 100,000 at a time."""
        call: AsTable[TablePage] = AsTable(ops.History(after, limit, queue))
        return await self._transport.perform(call)

    async def stats(self, queue: str | None = None) -> Stats:
        """The current counts, rates per second and dead letters of all queues, or of one."""
        return await self._transport.perform(ops.Stats(queue))

    async def trends(
        self, queue: str | None = None, series: Iterable[str] = ("total", "sent", "acked"), points: int = 60
    ) -> Trends:
        """Time series of the last hour of all queues, or of one, with that many points."""
        return await self._transport.perform(ops.Trends(queue, ",".join(as_texts(series, "series")), points))

    async def whoami(self, queue: str | None = None) -> Identity:
        """This client's identity and permissions: on a queue, or on the broker as a whole."""
        return await self._transport.perform(ops.WhoAmI(queue))

    async def create_key(
        self, name: str, allow: Iterable[str], public: str | None = None, max_queues: int | None = None
    ) -> ApiKey:
        """Create an API key, whose secret is shown only now; with `public`, the public half of a CURVE key, add that.
        `allow` lists its permissions, such as `send:orders.*`. It creates no queue while `max_queues` match them."""
        return await self._transport.perform(ops.CreateKey(name, as_texts(allow, "allow"), public, max_queues))

    async def list_keys(self) -> list[ApiKey]:
        """All keys, without their secrets."""
        return await self._transport.perform(ops.ListKeys())

    async def revoke_key(self, id: str) -> None:
        """Revoke a key."""
        await self._transport.perform(ops.RevokeKey(id))

    async def backup(self, path: str | os.PathLike[str]) -> None:
        """Write a consistent backup to a new folder on the server, without interrupting work."""
        await self._transport.perform(ops.Backup(os.fspath(path) if isinstance(path, os.PathLike) else path))

    async def close(self) -> None:
        """Close the connection; waiting receives return at once. Safe to repeat."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()
