"""The contents of a store as items that any other store can load: how `miniq migrate` copies.

`Store.dump` yields items in portions, `Store.load` takes them, in this order: queues and records first; the head of a
group before its followers. A store dumps the same items that were loaded into it, so a copy is verified by dumping it
again and comparing counts and checksums.
"""

from __future__ import annotations

import asyncio
import hashlib
import shlex
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from miniq.errors import InvalidRequest, StoreError
from miniq.message import Event, QueueSettings, Stored
from miniq.result import Finished
from miniq.store.names import STORE, STORE_ID

if TYPE_CHECKING:
    from miniq.store.contract import HistoryStore, Store

PORTION = 500
PORTION_BYTES = 4 * 1024 * 1024
EVENTS = 1000
"""Events per item, which are a portion: they take more memory than messages."""
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
    id: str = ""


class Dedup(Struct, frozen=True, tag=True):
    """The record of a dedup id, of a named call (see `names.is_call`) or of a commit."""

    queue: str
    name: str
    answer: str
    until: int


class Kept(Struct, frozen=True, tag=True):
    """A result."""

    queue: str
    id: str
    finished: Finished
    until: int


class Saved(Struct, frozen=True, tag=True):
    """A message with its state."""

    stored: Stored
    taken_at: int | None = None
    """When its consumer received it, if it has a receipt."""
    returned: bool = False
    """Whether it is of a group and was taken, though it has no receives: all were taken back."""

    @property
    def was_taken(self) -> bool:
        """Of a message of a group: whether it is in the front."""
        return self.returned or self.stored.receives > 0

    @property
    def fresh(self) -> bool:
        """Whether the message is in the state in which it arrived."""
        stored = self.stored
        arrived = Stored(stored.message, stored.message.due_at)
        return stored == arrived and not self.returned


class LastId(Struct, frozen=True, tag=True):
    id: str


class HistoryStart(Struct, frozen=True, tag=True):
    """The offset of the first event, or of the next one if there is none."""

    offset: int


class Events(Struct, frozen=True, tag=True):
    """Consecutive events, starting at an offset."""

    offset: int
    events: list[Event]


Item = Queue | Record | Readers | Dedup | Kept | Saved | LastId | HistoryStart | Events
_NOTHING: Sequence[Item] = (
    Queue("default", QueueSettings()),
    Queue("default", QueueSettings(max_receives=None)),  # of a broker of version 0.1
    LastId(""),
    HistoryStart(1),
)
"""What an empty store holds: the queue that every broker creates."""


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
    await target.save_record(STORE, STORE_ID, None)  # the copy has the id of its source: readers go on with it
    copied = Copied(Counter(), Counter())
    async for portion in source.dump():
        await target.load(portion, now)
        copied.add(portion)
        told(copied)
    # The source first: if that has changed, the copy differs for this reason alone.
    if (source_after := await _summary(source)) != copied:
        raise StoreError(
            f"migrate: the source changed meanwhile ({_difference(copied, source_after)}); stop its brokers, remove "
            "the target and try again",
            field="from",
        )
    if (target_after := await _summary(target)) != copied:
        difference = _difference(copied, target_after)
        raise StoreError(f"migrate: the copy is not the same as the source: {difference}", field="to")
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
            if isinstance(item, Record) and item.kind == STORE:
                continue
            if item not in _NOTHING:
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


async def check_at_rest(source: Store, url: str) -> None:
    """Refuse a store that cannot be copied as it is, before anything is written; `url` is for the advice."""
    try:
        async for portion in source.dump():
            if not all(isinstance(item, Queue | Record | Readers) for item in portion):
                return
    except HeldClaims as held:
        code = f"import miniq; miniq.connect({url!r}).queue({held.queue!r}).claims({held.group!r}).release()"
        raise InvalidRequest(f"{held.text}, or release them: `python -c {shlex.quote(code)}`", field="from") from None


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
    count = size = 0
    async for item in items:
        portion.append(item)
        count += len(item.events) if isinstance(item, Events) else 1
        size += _size(item)
        if count >= PORTION or size > PORTION_BYTES:
            yield portion
            portion, count, size = [], 0, 0
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


class HeldClaims(InvalidRequest):
    """A group holds claims, which cannot be copied."""

    def __init__(self, queue: str, group: str, count: int) -> None:
        claims = "1 claim" if count == 1 else f"{count} claims"
        text = f"from: group {group!r} holds {claims} of queue {queue!r}; let its reader finish"
        super().__init__(text, field="from")
        self.queue, self.group = queue, group


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
            raise HeldClaims(queue, reader.group, held)
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
    if isinstance(item, Kept):
        return len(item.finished.result or b"") + len(item.finished.error or "")
    if isinstance(item, Events):
        return sum(128 + len(event.body or b"") + len(event.error or "") for event in item.events)
    return 0


def _description(item: Item) -> str:
    if isinstance(item, Queue):
        return f"a queue {item.name!r}" if item.name != "default" else "settings of the queue 'default'"
    if isinstance(item, Saved):
        return f"messages in the queue {item.stored.message.queue!r}"
    if isinstance(item, Kept):
        return f"results of the queue {item.queue!r}"
    if isinstance(item, Record) and item.kind == "schedule":
        return f"a schedule {item.name!r}"
    return {"Record": "API keys", "Events": "history", "HistoryStart": "history"}.get(
        type(item).__name__, "records of earlier messages"
    )


_NAMES = {
    "Queue": "queues",
    "Saved": "messages",
    "Record": "records",
    "Readers": "claim groups",
    "Dedup": "dedup records",
    "Kept": "results",
    "Events": "events of history",
    "HistoryStart": "starts of history",
    "LastId": "ids of the last message",
}
"""The kinds of items for people; those that say most come first."""


def _difference(expected: Copied, actual: Copied) -> str:
    for kind, name in _NAMES.items():
        if expected.counts[kind] != actual.counts[kind]:
            return f"{actual.counts[kind]} instead of {expected.counts[kind]} {name}"
        if expected.sums[kind] != actual.sums[kind]:
            return f"{name} with other contents"
    return "no difference"
