"""Replayable batches: claims, which take messages from a queue, and stages, which bring messages to one."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from miniq.message import NEVER, Message, Stored


class Claim(Struct, frozen=True, gc=False):
    """A frozen batch of messages, numbered within its group. Held until it is acked, then readable for
    `claim_retention`."""

    number: int
    messages: int
    bytes: int
    made_at: int
    acked_at: int | None = None
    reader: str | None = None
    """The reader that has fetched some of it: None if none has, "" if it gave no name."""


class ClaimGroup(Struct, frozen=True):
    """The claims of one group: the epoch of its newest reader, the last number acked, the last number given out, and
    the claims that can be read."""

    group: str
    epoch: int = 0
    acked: int = 0
    last: int = 0
    claims: list[Claim] = []
    id: str = ""
    """Made with the group: a group of this name in another queue, or in one that was deleted and made again, has
    another."""


class OpenedGroup(ClaimGroup, frozen=True):
    """A group as its new reader gets it: also with the id of the store, and how many messages are ready."""

    store: str = ""
    ready: int = 0


class Portion(Struct, frozen=True):
    """Consecutive messages of a claim, and how often each of them was received."""

    messages: Sequence[Message]
    receives: int

    def __len__(self) -> int:
        return len(self.messages)

    def each(self, receipt: str, readers: str) -> list[Stored]:
        """The messages as leased by the claim: its name is the receipt, its group the consumer."""
        return [Stored(message, NEVER, self.receives, receipt, readers) for message in self.messages]


class StageName(Struct, frozen=True, gc=False):
    """Identifies a stage: an attempt of a task (partition) of a batch of a job."""

    job: str
    batch: str
    partition: str
    attempt: str


class Stage(Struct, frozen=True, gc=False):
    """Messages that were uploaded and are not committed yet: how many, in how many parts, when created and when they
    expire. `alone` of them have a recipient, group or dedup id."""

    name: StageName
    parts: int
    messages: int
    bytes: int
    made_at: int
    until: int
    alone: int = 0


class Committed(Struct, frozen=True):
    """How many messages a commit added, and whether an earlier commit had added them."""

    messages: int
    repeated: bool = False
