"""Everything a store holds, as items that any other store takes up: how `miniq migrate` copies.

`Store.dump` gives items in portions, `Store.load` takes them, in this order: queues and records first; of a group its
head before those that wait. What is dumped from one store and loaded into another is dumped there as the same items.
So a copy is verified by dumping it again: same counts, same sums.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from miniq.errors import InvalidRequest, StoreError
from miniq.message import Event, HistoryPage, HistorySpan, QueueSettings, Stored

PORTION = 500
PORTION_BYTES = 4 * 1024 * 1024
EVENTS = 1000
"""Events in one item."""
MARK = "migration"
"""The kind of record that a store has while it is being filled."""


class Queue(Struct, frozen=True, tag=True):
    name: str
    settings: QueueSettings


class Record(Struct, frozen=True, tag=True):
    """A small record, such as an API key."""

    kind: str
    name: str
    value: bytes


class Readers(Struct, frozen=True, tag=True):
    """A group that reads a queue by claims, none of which is held."""

    queue: str
    group: str
    epoch: int
    last: int


class Dedup(Struct, frozen=True, tag=True):
    """A dedup record, or that of a call (see `names.is_call`) or of a batch that was committed."""

    queue: str
    name: str
    said: str
    until: int


class Saved(Struct, frozen=True, tag=True):
    """A message with its state."""

    stored: Stored
    taken_at: int | None = None
    """Since when its consumer has it, if it has a receipt."""


class LastId(Struct, frozen=True, tag=True):
    id: str


class HistoryStart(Struct, frozen=True, tag=True):
    """The offset of the first event that is there, or that would be."""

    offset: int


class Events(Struct, frozen=True, tag=True):
    """Events that follow each other, from an offset on."""

    offset: int
    events: list[Event]


Item = Queue | Record | Readers | Dedup | Saved | LastId | HistoryStart | Events


class Transferable(Protocol):
    """The part of the store contract that copying needs."""

    def dump(self) -> AsyncIterator[list[Item]]: ...

    async def load(self, items: Sequence[Item], now: int) -> None: ...

    async def records(self, kind: str) -> dict[str, bytes]: ...

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None: ...


class History(Protocol):
    """The history of a store, as far as it is read."""

    async def read(self, after: int, limit: int, queue: str | None = None) -> HistoryPage: ...

    async def span(self) -> HistorySpan: ...


class Copied(Struct):
    """How much there is of each kind, and a sum over all of it that does not depend on the order."""

    counts: Counter[str]
    sums: Counter[str]

    @property
    def messages(self) -> int:
        return self.counts["Saved"]

    def add(self, items: Iterable[Item]) -> None:
        for item in items:
            for kind, part in _parts(item):
                self.counts[kind] += 1
                digest = hashlib.blake2b(msgspec.msgpack.encode(part), digest_size=8).digest()
                self.sums[kind] = (self.sums[kind] + int.from_bytes(digest, "big")) % 2**64


def _parts(item: Item) -> Iterator[tuple[str, object]]:
    """What is compared: events one by one, since stores keep them together in different ways."""
    if isinstance(item, Events):
        for offset, event in enumerate(item.events, item.offset):
            yield "Events", (offset, event)
    elif isinstance(item, Queue):
        # 5 and 5.0 are the same setting.
        yield "Queue", msgspec.msgpack.decode(msgspec.msgpack.encode(item), type=Queue)
    else:
        yield type(item).__name__, item


async def copy(
    source: Transferable, target: Transferable, *, now: int, told: Callable[[Copied], None] = lambda copied: None
) -> Copied:
    """Fill an empty store with everything another one holds, and verify it.

    Until it is verified the target has a mark, and brokers refuse it. Nobody may change the source meanwhile.
    """
    await check_empty(target)
    await target.save_record(MARK, "incomplete", b"")
    copied = Copied(Counter(), Counter())
    async for portion in source.dump():
        await target.load(portion, now)
        copied.add(portion)
        told(copied)
    there, still = Copied(Counter(), Counter()), Copied(Counter(), Counter())
    async for portion in target.dump():
        there.add(portion)
    if there != copied:
        raise StoreError(f"migrate: the copy is not the same as the source: {_difference(copied, there)}", field="to")
    async for portion in source.dump():
        still.add(portion)
    if still != copied:
        raise StoreError(
            f"migrate: the source was changed meanwhile ({_difference(copied, still)}); stop its brokers, empty the "
            "target and try again",
            field="from",
        )
    await target.save_record(MARK, "incomplete", None)
    return copied


async def check_empty(target: Transferable) -> None:
    """Refuse a store that holds anything but the queue that every broker makes."""
    await check_complete(target, "to")
    async for portion in target.dump():
        for item in portion:
            fresh = Queue("default", QueueSettings()), LastId(""), HistoryStart(1)
            if item not in fresh:
                raise InvalidRequest(
                    f"to: the target is not empty: it holds {_words(item)}; name a new one", field="to"
                )


async def check_complete(store: Transferable, field: str = "store") -> None:
    """Refuse a store whose filling was not finished."""
    if await store.records(MARK):
        raise StoreError(
            f"{field}: this store is the remains of a `miniq migrate` that did not finish; remove it (the folder, or "
            "the database), and run `miniq migrate` again into a new one",
            field=field,
        )


async def portions(items: AsyncIterator[Item]) -> AsyncIterator[list[Item]]:
    """Items in portions that are neither many nor large."""
    some: list[Item] = []
    size = 0
    async for item in items:
        some.append(item)
        size += _size(item)
        if len(some) == PORTION or size > PORTION_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


async def one_by_one(items: Iterable[Item]) -> AsyncIterator[Item]:
    """Items of a store that need not be waited for; others come to their turn now and then."""
    for place, item in enumerate(items):
        if place % PORTION == 0:
            await asyncio.sleep(0)
        yield item


def at_rest(queue: str, staged: bool, readers: Iterable[tuple[Readers, int]]) -> Iterator[Readers]:
    """The groups that read a queue by claims, given with how many claims each of them holds. Refuses a queue with held
    claims or `staged` messages: those are not copied."""
    if staged:
        raise InvalidRequest(
            f"from: queue {queue!r} has stages that are not committed yet; let their jobs finish, or discard them",
            field="from",
        )
    for reader, held in readers:
        if held:
            raise InvalidRequest(
                f"from: group {reader.group!r} holds {held} claims of queue {queue!r}; let its reader finish, or "
                f"release them: `miniq claims release {queue} {reader.group}`",
                field="from",
            )
        yield reader


async def history_of(history: History) -> AsyncIterator[Item]:
    """All events."""
    first = (await history.span()).first
    yield HistoryStart(first)
    after = first - 1
    while records := (await history.read(after, EVENTS)).records:
        yield Events(records[0].offset, [record.event for record in records])
        after = records[-1].offset


def is_fresh(item: Saved) -> bool:
    """Whether a message is as it was when it arrived."""
    stored = item.stored
    return stored.receives == 0 and stored.receipt is None and stored.visible_at == stored.message.due_at


def _size(item: Item) -> int:
    if isinstance(item, Saved):
        return item.stored.message.size
    if isinstance(item, Events):
        return sum(128 + len(event.body or b"") for event in item.events)
    return 0


def _words(item: Item) -> str:
    if isinstance(item, Queue):
        return f"a queue {item.name!r}" if item.name != "default" else "settings of the queue 'default'"
    if isinstance(item, Saved):
        return f"messages in the queue {item.stored.message.queue!r}"
    return {"Record": "API keys", "Events": "history", "HistoryStart": "history"}.get(
        type(item).__name__, "records of earlier messages"
    )


def _difference(wanted: Copied, found: Copied) -> str:
    for kind in sorted(wanted.counts.keys() | found.counts.keys()):
        if wanted.counts[kind] != found.counts[kind]:
            return f"{found.counts[kind]} instead of {wanted.counts[kind]} of kind {kind}"
        if wanted.sums[kind] != found.sums[kind]:
            return f"{found.counts[kind]} of kind {kind}, but not with the same content"
    return "no difference"
