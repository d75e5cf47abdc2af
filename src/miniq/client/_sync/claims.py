# Generated from ../_async/claims.py by `make generate`: change that file.
"""Claims: frozen batches of a queue that can be read again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from miniq.api import operations as ops
from miniq.api.operation import AsTable
from miniq.batch import Claim, OpenedGroup
from miniq.client._sync.message import Message
from miniq.client.arguments import as_texts
from miniq.client.delivery import SEEN

if TYPE_CHECKING:
    from miniq.client._sync.queue import Queue


class Claims:
    """The claims of one group of readers: batches numbered 1, 2, 3 that do not change until they are acked.

    `open` makes this the group's newest reader, and fences earlier ones. `next(after=n)` acks all claims up to n and
    returns claim n + 1; repeated, it returns the same. The messages of a claim are acked with it, not one by one.
    """

    def __init__(self, queue: Queue, group: str, reader: str | None = None) -> None:
        self.queue = queue
        self.group = group
        self.reader = reader
        """A name that the reader keeps together with its position. Claims that a reader of another name has fetched
        are neither returned nor acked."""
        self.epoch: int | None = None
        """Set by `open`; once there is a newer reader, calls raise `Fenced`."""

    def open(self) -> OpenedGroup:
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
            ops.NextClaim(
                self.queue.name, self.group, after, self.epoch, max_messages, max_bytes, wait, consumer, self.reader
            )
        )
        return claim

    def fetch(self, claim: int, part: int = 0, parts: int = 1) -> list[Message]:
        """The messages of a claim, or one part of several; always the same."""
        call = ops.ReadClaim(self.queue.name, self.group, claim, part, parts, self.reader)
        return [Message(self.queue, stored, SEEN) for stored in self.queue._perform(call)]

    def table(self, claim: int, part: int = 0, parts: int = 1) -> Any:
        """The same as a `pyarrow.Table`, without an object for each message."""
        call: AsTable[Any] = AsTable(ops.ReadClaim(self.queue.name, self.group, claim, part, parts, self.reader))
        return self.queue._perform(call)

    def ack(self, upto: int) -> None:
        """Ack all claims up to a number. Safe to repeat. Raises `ClaimUnread` if one was never fetched."""
        self.queue._perform(ops.AckClaims(self.queue.name, self.group, upto, self.epoch, self.reader))

    def bury(self, claim: int, ids: Iterable[str], reason: str, errors: Iterable[str] | None = None) -> int:
        """Copy messages of an unacked claim to the dead-letter queue, because they cannot be processed; returns their
        number. The claim does not change, and each message is copied once, so this is safe to repeat. `errors` has a
        text for each of the ids."""
        told = None if errors is None else as_texts(errors, "errors")
        call = ops.BuryClaimed(self.queue.name, self.group, claim, as_texts(ids, "ids"), reason, told)
        return self.queue._perform(call)

    def release(self) -> int:
        """Return the messages of unacked claims to the queue; returns their number."""
        return self.queue._perform(ops.ReleaseClaims(self.queue.name, self.group, self.epoch))
