"""The contents of a store as items that any other store can load: how `miniq migrate` copies.

`Store.dump` yields items in portions, `Store.load` takes them, in this order: queues and records first; the head of a
group before its followers. A store dumps the same items that were loaded into it, so a copy is verified by dumping it
again and comparing counts and checksums.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from miniq.errors import InvalidRequest, StoreError
from miniq.message import Event, QueueSettings, Stored

if TYPE_CHECKING:
    from miniq.store.contract import HistoryStore, Store

PORTION = 500
PORTION_BYTES = 4 * 1024 * 1024
EVENTS = 1000
"""Events per item."""
MARK = "migration"
"""The kind of the record that marks a store while it is being filled."""


class Queue(Struct, frozen=True, tag=True):
    name: str
    settings: QueueSettings


class Record(Struct, frozen=True, tag=True):
    """A small record, such as an API key."""

    kind: str
    name: str
    value: bytes


class Readers(Struct, frozen=True, tag=True):
    """A claim group without held claims."""

    queue: str
    group: str
    epoch: int
    last: int


class Dedup(Struct, frozen=True, tag=True):
    """The record of a dedup id, of a named call (see `names.is_call`) or of a commit."""

    queue: str
    name: str
    answer: str
    until: int


class Saved(Struct, frozen=True, tag=True):
    """A message with its state."""

    stored: Stored
    taken_at: int | None = None
    """When its consumer received it, if it has a receipt."""

    @property
    def fresh(self) -> bool:
        """Whether the message is in the state in which it arrived."""
        stored = self.stored
        return stored.receives == 0 and stored.receipt is None and stored.visible_at == stored.message.due_at


class LastId(Struct, frozen=True, tag=True):
    id: str


class HistoryStart(Struct, frozen=True, tag=True):
    """The offset of the first event, or of the next one if there is none."""

    offset: int


class Events(Struct, frozen=True, tag=True):
    """Consecutive events, starting at an offset."""

    offset: int
    events: list[Event]


Item = Queue | Record | Readers | Dedup | Saved | LastId | HistoryStart | Events


class Copied(Struct):
    """The number of items of each kind and a checksum over them that does not depend on their order."""

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
    """The units of comparison: single events, since stores group them differently."""
    if isinstance(item, Events):
        for offset, event in enumerate(item.events, item.offset):
            yield "Events", (offset, event)
    elif isinstance(item, Queue):
        # 5 and 5.0 are the same setting.
        yield "Queue", msgspec.msgpack.decode(msgspec.msgpack.encode(item), type=Queue)
    else:
        yield type(item).__name__, item


async def copy(
    source: Store, target: Store, *, now: int, told: Callable[[Copied], None] = lambda copied: None
) -> Copied:
    """Fill an empty store with the contents of another and verify it; `told` is called with the progress.

    Until it is verified the target has a mark, and brokers refuse it. The source must not change meanwhile.
    """
    await check_empty(target)
    await target.save_record(MARK, "incomplete", b"")
    copied = Copied(Counter(), Counter())
    async for portion in source.dump():
        await target.load(portion, now)
        copied.add(portion)
        told(copied)
    if (target_after := await _summary(target)) != copied:
        difference = _difference(copied, target_after)
        raise StoreError(f"migrate: the copy is not the same as the source: {difference}", field="to")
    if (source_after := await _summary(source)) != copied:
        raise StoreError(
            f"migrate: the source was changed meanwhile ({_difference(copied, source_after)}); stop its brokers, empty "
            "the target and try again",
            field="from",
        )
    await target.save_record(MARK, "incomplete", None)
    return copied


async def _summary(store: Store) -> Copied:
    summary = Copied(Counter(), Counter())
    async for portion in store.dump():
        summary.add(portion)
    return summary


async def check_empty(target: Store) -> None:
    """Refuse a store that holds anything but the queue that every broker creates."""
    await check_complete(target, "to")
    async for portion in target.dump():
        for item in portion:
            if item not in (Queue("default", QueueSettings()), LastId(""), HistoryStart(1)):
                raise StoreError(
                    f"to: the target is not empty: it holds {_description(item)}; name a new one", field="to"
                )


async def check_complete(store: Store, field: str = "store") -> None:
    """Refuse a store that was not filled completely."""
    if await store.records(MARK):
        raise StoreError(
            f"{field}: this store was left incomplete by a `miniq migrate` that did not finish; remove it (the folder, "
            "or the database), and run `miniq migrate` again into a new one",
            field=field,
        )


async def load_settings(store: Store, items: Iterable[Item]) -> None:
    """Save the queues and small records among items."""
    for item in items:
        if isinstance(item, Queue):
            await store.save_queue(item.name, item.settings)
        elif isinstance(item, Record):
            await store.save_record(item.kind, item.name, item.value)


async def portions(items: AsyncIterator[Item]) -> AsyncIterator[list[Item]]:
    """Items in portions of bounded number and size."""
    portion: list[Item] = []
    size = 0
    async for item in items:
        portion.append(item)
        size += _size(item)
        if len(portion) == PORTION or size > PORTION_BYTES:
            yield portion
            portion, size = [], 0
    if portion:
        yield portion


async def with_history(items: Iterable[Item], history: HistoryStore) -> AsyncIterator[Item]:
    """Items that are read without waiting, yielding to the event loop now and then, followed by the history."""
    for position, item in enumerate(items):
        if position % PORTION == 0:
            await asyncio.sleep(0)
        yield item
    async for item in history_of(history):
        yield item


def at_rest(queue: str, staged: bool, readers: Iterable[tuple[Readers, int]]) -> Iterator[Readers]:
    """The claim groups of a queue, given with their number of held claims. Refuses a queue with held claims or `staged`
    messages, which cannot be copied."""
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


async def history_of(history: HistoryStore) -> AsyncIterator[Item]:
    """The whole history."""
    first = (await history.span()).first
    yield HistoryStart(first)
    after = first - 1
    while records := (await history.read(after, EVENTS)).records:
        yield Events(records[0].offset, [record.event for record in records])
        after = records[-1].offset


def _size(item: Item) -> int:
    if isinstance(item, Saved):
        return item.stored.message.size
    if isinstance(item, Events):
        return sum(128 + len(event.body or b"") for event in item.events)
    return 0


def _description(item: Item) -> str:
    if isinstance(item, Queue):
        return f"a queue {item.name!r}" if item.name != "default" else "settings of the queue 'default'"
    if isinstance(item, Saved):
        return f"messages in the queue {item.stored.message.queue!r}"
    return {"Record": "API keys", "Events": "history", "HistoryStart": "history"}.get(
        type(item).__name__, "records of earlier messages"
    )


def _difference(expected: Copied, actual: Copied) -> str:
    for kind in sorted(expected.counts.keys() | actual.counts.keys()):
        if expected.counts[kind] != actual.counts[kind]:
            return f"{actual.counts[kind]} instead of {expected.counts[kind]} of kind {kind}"
        if expected.sums[kind] != actual.sums[kind]:
            return f"{actual.counts[kind]} of kind {kind}, but not with the same content"
    return "no difference"
