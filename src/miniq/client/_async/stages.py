"""Stages: messages that a task uploads, invisible until they are committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miniq.api import operations as ops
from miniq.api.tables import is_table
from miniq.batch import StageName
from miniq.client import bodies

if TYPE_CHECKING:
    from miniq.client._async.queue import AsyncQueue


class AsyncStaging:
    """The messages of one attempt of one task, uploaded in any number of parts."""

    def __init__(self, queue: AsyncQueue, name: StageName) -> None:
        self.queue = queue
        self.name = name
        self.parts = 0
        """How many parts were uploaded through this object."""

    async def upload(self, messages: Any, part: int | None = None) -> int:
        """Upload messages (drafts, bodies or a `pyarrow.Table`) as the next part, or as `part`; returns their number. A
        part that exists stays as it is, so that an upload can be repeated."""
        drafts = messages if is_table(messages) else bodies.drafts(messages)
        number = self.parts if part is None else part
        name = self.name
        call = ops.Upload(self.queue.name, name.job, name.batch, name.partition, name.attempt, number, drafts)
        count, _ = await self.queue._perform(call)
        self.parts = max(self.parts, number + 1)
        return count
