"""Claims: frozen batches of a queue that can be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miniq.api import operations as ops
from miniq.api.operation import AsTable
from miniq.client._async.message import AsyncMessage
from miniq.client.delivery import SEEN
from miniq.message import Claim, ClaimGroup

if TYPE_CHECKING:
    from miniq.client._async.queue import AsyncQueue


class AsyncClaims:
    """The claims of one group of readers: batches numbered 1, 2, 3 that stay as they are until they are acked.

    `open` makes this the group's newest reader, and fences earlier ones. `next(after=n)` acks all claims up to n and
    gives claim n + 1; asked again it gives the same. The messages of a claim are acked with it, not one by one.
    """

    def __init__(self, queue: AsyncQueue, group: str) -> None:
        self.queue = queue
        self.group = group
        self.epoch: int | None = None
        """Set by `open`; then a call of a reader that was overtaken raises `Fenced`."""

    async def open(self) -> ClaimGroup:
        """Begin to read; says which claim was acked last, and which is the last one made."""
        found = await self.queue._perform(ops.OpenClaims(self.queue.name, self.group))
        self.epoch = found.epoch
        return found

    async def next(
        self,
        after: int,
        *,
        max_messages: int = 10_000,
        max_bytes: int = 64 * 1024 * 1024,
        wait: float = 0,
        consumer: str | None = None,
    ) -> Claim | None:
        """Ack all claims up to `after` and give the next one, made now if need be; None if nothing is ready within
        `wait` seconds."""
        claim, _ = await self.queue._perform(
            ops.NextClaim(self.queue.name, self.group, after, self.epoch, max_messages, max_bytes, wait, consumer)
        )
        return claim

    async def fetch(self, claim: int, part: int = 0, parts: int = 1) -> list[AsyncMessage]:
        """The messages of a claim, or one part of several; always the same."""
        call = ops.ReadClaim(self.queue.name, self.group, claim, part, parts)
        return [AsyncMessage(self.queue, stored, SEEN) for stored in await self.queue._perform(call)]

    async def table(self, claim: int, part: int = 0, parts: int = 1) -> Any:
        """The same as a `pyarrow.Table`, without an object for each message."""
        call: AsTable[Any] = AsTable(ops.ReadClaim(self.queue.name, self.group, claim, part, parts))
        return await self.queue._perform(call)

    async def ack(self, upto: int) -> None:
        """Ack all claims up to a number. Harmless to repeat."""
        await self.queue._perform(ops.AckClaims(self.queue.name, self.group, upto, self.epoch))

    async def release(self) -> int:
        """Give the messages of claims that are not acked back, and say how many."""
        return await self.queue._perform(ops.ReleaseClaims(self.queue.name, self.group, self.epoch))
