"""Calls of a bare store with what most tests do not care about filled in, and messages to put into it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from miniq.batch import Committed, Portion, StageName
from miniq.ids import IdSource
from miniq.message import SECOND, Message, Outcome, Page, Stored
from miniq.store.arguments import Batch, Change, Fence, Fit, NextClaim, Places, Put, Reserve, Scan, Take, Upload
from miniq.store.contract import Claimed, Store
from tests.clock import START

BIG = 10**9


class Maker:
    """Makes messages whose ids rise, as the broker does."""

    def __init__(self, queue: str = "q", now: int = START) -> None:
        self.queue = queue
        self.now = now
        self._ids = IdSource()

    def run(self, count: int, **fields: Any) -> list[Message]:
        """Up to 128 messages that lie in one record."""
        due = self.now + fields.pop("delay", 0) * SECOND
        return [
            Message(id, self.queue, self.now, due, b'"%d"' % place, **fields)
            for place, id in enumerate(self._ids.run(count, self.now))
        ]

    def one(self, **fields: Any) -> Message:
        return self.run(1, **fields)[0]


async def put(store: Store, messages: Sequence[Message], **changed: Any) -> list[str]:
    asked: dict[str, Any] = {"now": START, "dedup_until": START + 300 * SECOND}
    return await store.messages.put(messages, Put(**asked | changed))


async def take(store: Store, queue: str = "q", **changed: Any) -> list[Stored]:
    asked: dict[str, Any] = {"limit": 1, "max_bytes": BIG, "now": START, "until": START + 30 * SECOND, "token": "t"}
    return await store.messages.take(queue, Take(**asked | changed))


async def drop(store: Store, fences: Sequence[Fence], queue: str = "q", **changed: Any) -> list[Outcome]:
    asked: dict[str, Any] = {"now": START, "event": "acked"}
    return await store.messages.drop(queue, fences, Change(**asked | changed))


async def find(store: Store, id: str, queue: str = "q") -> Stored | None:
    return (await store.messages.find(queue, [id])).get(id)


async def scan(store: Store, queue: str = "q", **changed: Any) -> Page:
    asked: dict[str, Any] = {"limit": 10**6, "max_bytes": BIG, "now": START}
    return await store.messages.scan(queue, Scan(**asked | changed))


async def claim(store: Store, after: int = 0, queue: str = "q", group: str = "g", **changed: Any) -> Claimed:
    asked: dict[str, Any] = {
        "limit": 10, "max_bytes": BIG, "fit": Fit(0, 10**6), "now": START, "keep_until": START
    }  # fmt: skip
    for number in range(1, after + 1):
        await store.claims.mark(queue, group, number, "")
    return await store.claims.next(queue, group, NextClaim(after=after, **asked | changed))


async def read_claim(store: Store, number: int, queue: str = "q", group: str = "g", **changed: Any) -> list[Portion]:
    asked: dict[str, Any] = {"start": 0, "stop": 10**6, "max_bytes": BIG, "now": START}
    return await store.claims.read(queue, group, number, Places(**asked | changed))


async def upload(store: Store, name: StageName, part: int, messages: Sequence[Message], **changed: Any) -> int:
    """How many messages the part has."""
    asked: dict[str, Any] = {"now": START, "until": START + 3600 * SECOND}
    return (await store.stages.upload("q", Upload(name, part, **asked | changed), messages))[0]


async def commit(
    store: Store, job: str, batch: str, stages: Sequence[tuple[str, str]], reserve: Reserve, **changed: Any
) -> Committed:
    until = changed.pop("until", START + 3600 * SECOND)
    asked: dict[str, Any] = {"now": START, "dedup_until": START + 300 * SECOND}
    return await store.stages.commit("q", Batch(job, batch, stages, reserve, Put(**asked | changed), until))


async def take_all(store: Store, queue: str = "q", limit: int = 1000, **changed: Any) -> list[str]:
    """Take until there is nothing more and return the ids in the order they came."""
    found: list[str] = []
    while got := await take(store, queue, limit=limit, **changed):
        found += [stored.message.id for stored in got]
    return found
