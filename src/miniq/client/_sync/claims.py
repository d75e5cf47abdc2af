# Generated from ../_async/claims.py by `make generate`: change that file.
"""Claims: frozen batches of a queue that can be read again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from miniq.api import operations as ops
from miniq.api.operation import AsTable
from miniq.client._sync.message import Message
from miniq.client.delivery import SEEN
from miniq.message import Claim, ClaimGroup

if TYPE_CHECKING:
    from miniq.client._sync.queue import Queue


class Claims:
    """The claims of one group of readers: batches numbered 1, 2, 3 that do not change until they are acked.

    `open` makes this the group's newest reader, and fences earlier ones. `next(after=n)` acks all claims up to n and
    returns claim n + 1; repeated, it returns the same. The messages of a claim are acked with it, not one by one.
    """

    def __init__(self, queue: Queue, group: str) -> None:
        self.queue = queue
        self.group = group
        self.epoch: int | None = None
        """Set by `open`; once there is a newer reader, calls raise `Fenced`."""

    def open(self) -> ClaimGroup:
        """Start reading; returns the group with its last acked and its last created claim."""
        group = self.queue._perform(ops.OpenClaims(self.queue.name, self.group))
        self.epoch = group.epoch
        return group

    def next(
        self,
        after: int,
        *,
        max_messages: int = 10_000,
        max_bytes: int = 64 * 1024 * 1024,
        wait: float = 0,
        consumer: str | None = None,
    ) -> Claim | None:
        """Ack all claims up to `after` and return the next one, which is created if there is none; None if no message
        becomes ready within `wait` seconds."""
        claim, _ = self.queue._perform(
            ops.NextClaim(self.queue.name, self.group, after, self.epoch, max_messages, max_bytes, wait, consumer)
        )
        return claim

    def fetch(self, claim: int, part: int = 0, parts: int = 1) -> list[Message]:
        """The messages of a claim, or one part of several; always the same."""
        call = ops.ReadClaim(self.queue.name, self.group, claim, part, parts)
        return [Message(self.queue, stored, SEEN) for stored in self.queue._perform(call)]

    def table(self, claim: int, part: int = 0, parts: int = 1) -> Any:
        """The same as a `pyarrow.Table`, without an object for each message."""
        call: AsTable[Any] = AsTable(ops.ReadClaim(self.queue.name, self.group, claim, part, parts))
        return self.queue._perform(call)

    def ack(self, upto: int) -> None:
        """Ack all claims up to a number. Safe to repeat."""
        self.queue._perform(ops.AckClaims(self.queue.name, self.group, upto, self.epoch))

    def release(self) -> int:
        """Return the messages of unacked claims to the queue; returns their number."""
        return self.queue._perform(ops.ReleaseClaims(self.queue.name, self.group, self.epoch))
