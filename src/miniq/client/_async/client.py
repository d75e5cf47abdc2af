"""A connection to a broker: its queues, topics, history and keys. Each method makes one call."""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar, Unpack

from miniq.api import operations as ops
from miniq.api.operation import AsTable, Call
from miniq.api.shapes import ApiKey, Identity, Stats, Trends
from miniq.api.tables import TablePage
from miniq.batch import ClaimGroup
from miniq.client import bodies
from miniq.client._async.queue import AsyncQueue
from miniq.client._async.topic import AsyncTopic
from miniq.client._async.transport import AsyncTransport
from miniq.client.arguments import as_texts
from miniq.client.one_process import OneProcess
from miniq.message import DraftOptions, HistoryPage, QueueInfo
from miniq.schedule import CatchUp, Definition, Schedule
from miniq.topic import TopicInfo

T = TypeVar("T")


class AsyncClient(OneProcess):
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

    def topic(self, name: str) -> AsyncTopic:
        """A topic by name; makes no call yet."""
        return AsyncTopic(self._transport, name)

    async def topics(self) -> list[TopicInfo]:
        """All topics by name, with subscriptions and rates."""
        return await self._transport.perform(ops.ListTopics())

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

    async def history_table(
        self,
        after: int = 0,
        limit: int = 10_000,
        queue: str | None = None,
        *,
        id: str | None = None,
        event: str | None = None,
        consumer: str | None = None,
        since: datetime | None = None,
        before: int = 0,
    ) -> TablePage:
        """The same as a `pyarrow.Table`, up to 100,000 at a time."""
        history = ops.History(after, limit, queue, id, event, consumer, since, before)
        call: AsTable[TablePage] = AsTable(history)
        return await self._transport.perform(call)

    async def schedule(
        self,
        name: str,
        *,
        body: Any,
        queue: str | None = None,
        topic: str | None = None,
        cron: str | None = None,
        every: float | None = None,
        at: datetime | None = None,
        timezone: str = "UTC",
        catch_up: CatchUp = "last",
        paused: bool | None = None,
        **options: Unpack[DraftOptions],
    ) -> Schedule:
        """Create a schedule or replace its definition: the message is sent to the queue at the moments of a `cron`
        expression in a `timezone`, `every` so many seconds, or once `at` a moment. `options` are those of `send`.
        `catch_up` says which moments are sent later if no broker runs: none (`skip`), the `last` or `all`. To repeat
        the call changes nothing; a schedule that was paused stays paused unless `paused` is given."""
        draft = bodies.draft(body, **options)
        definition = Definition(draft, queue, topic, cron, every, at, timezone, catch_up)
        return await self._transport.perform(ops.PutSchedule(name, definition, paused))

    async def schedules(self) -> list[Schedule]:
        """All schedules by name, with their next moments and last results."""
        return await self._transport.perform(ops.ListSchedules())

    async def get_schedule(self, name: str) -> Schedule:
        """A schedule with its next moments and last results."""
        return await self._transport.perform(ops.GetSchedule(name))

    async def pause_schedule(self, name: str) -> Schedule:
        """Send nothing until the schedule is resumed. Moments that pass meanwhile are not sent later."""
        return await self._transport.perform(ops.PutSchedule(name, None, True))

    async def resume_schedule(self, name: str) -> Schedule:
        """Go on with the next moment."""
        return await self._transport.perform(ops.PutSchedule(name, None, False))

    async def run_schedule(self, name: str) -> Schedule:
        """Send the message of a schedule now, paused or not; the first of its `results` has the id."""
        return await self._transport.perform(ops.RunSchedule(name))

    async def delete_schedule(self, name: str) -> None:
        """Remove a schedule. What it has sent stays."""
        await self._transport.perform(ops.DeleteSchedule(name))

    async def claim_groups(self) -> dict[str, list[ClaimGroup]]:
        """All groups of readers with the claims that can be read, by queue."""
        found: dict[str, list[ClaimGroup]] = {}
        for queue, group in await self._transport.perform(ops.ListAllClaims()):
            found.setdefault(queue, []).append(group)
        return found

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
        self,
        name: str,
        allow: Iterable[str],
        public: str | None = None,
        max_queues: int | None = None,
        aws: bool = False,
    ) -> ApiKey:
        """Create an API key, whose secret is shown only now; with `public`, the public half of a CURVE key, add that.
        `allow` lists its permissions, such as `send:orders.*`. It creates no queue while `max_queues` match them. With
        `aws` it is a pair of `access_key` and `secret` for programs that speak Amazon SQS."""
        return await self._transport.perform(ops.CreateKey(name, as_texts(allow, "allow"), public, max_queues, aws))

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
