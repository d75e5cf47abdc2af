"""The documents of claims and of groups of readers, in memory."""

from __future__ import annotations

from collections.abc import Iterable

from bson import ObjectId
from msgspec import Struct
from msgspec.structs import replace

from miniq.batch import Claim, ClaimGroup
from miniq.message import NEVER, Stored
from miniq.store.mongodb.documents import Document


class Reader(Struct):
    """A group of readers."""

    group: str
    epoch: int = 0
    acked: int = 0
    last: int = 0
    growing: str | None = None
    """Which call is making claim `last`."""
    id: str = ""

    def state(self, claims: Iterable[Claim] = ()) -> ClaimGroup:
        return ClaimGroup(self.group, self.epoch, self.acked, self.last, list(claims), self.id)


class Making(Struct):
    """A claim that this process is making, as far as it got."""

    id: ObjectId
    mark: str
    messages: int = 0
    bytes: int = 0
    passed: list[Stored] = []
    tries: int = 0


class Step(Struct):
    """What one step of making did."""

    taken: int = 0
    bytes: int = 0
    unfit: list[Stored] = []
    expired: int = 0
    more: bool = False
    stopped: bool = False
    """Another call made the claim, or froze it."""


def reader_of(found: Document | None, group: str, number: ObjectId) -> Reader:
    """A group as it is for a queue that has this number."""
    if found is None:
        return Reader(group)
    epoch, acked, last = (int(found[name]) for name in ("epoch", "acked", "last"))
    reader = Reader(group, epoch, acked, last, found.get("growing"), found.get("id", ""))
    return reader if found["number"] == number else replace(reader, acked=reader.last, growing=None)


def readable(claim: Document, now: int) -> bool:
    return claim.get("ends") != "released" and claim.get("until", NEVER) > now


def claim_of(found: Document) -> Claim:
    acked_at = found["acked_at"]
    return Claim(
        int(found["claim"]),
        int(found["messages"]),
        int(found["bytes"]),
        int(found["made_at"]),  # not the driver's Int64, which cannot be encoded
        None if acked_at is None else int(acked_at),
        found.get("reader", ""),  # older versions did not note it
    )
