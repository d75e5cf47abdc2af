"""Stages of the embedded store: messages that are uploaded part by part, and committed many at once, once.

An upload is written as blocks (`t`) that nobody reads, and a record of the part (`e`) in the same batch. A commit
writes for each block a small record into its lane that refers to it; only messages that stand alone (a recipient,
group or dedup id) are looked at one by one. So a commit of a million messages is a batch of a few hundred KiB.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

from miniq.ids import RUN, id_in_range
from miniq.message import Committed, Message, Stage, StageName
from miniq.store import events
from miniq.store.arguments import Batch, Put, Upload
from miniq.store.contract import StageStore
from miniq.store.decisions import (
    check_listed,
    check_room,
    commit_said,
    committed,
    committed_before,
    size_of,
    stage_of,
    stands_alone,
    stretches,
)
from miniq.store.embedded import keys
from miniq.store.embedded.blocks import Block, Part, Shelf, check_there
from miniq.store.embedded.core import Core
from miniq.store.embedded.history import event_run
from miniq.store.embedded.keys import EventRun
from miniq.store.embedded.window import sizes_of
from miniq.store.names import call_record

LARGE = 1024 * 1024
"""A batch with so many bytes is written beside the event loop."""


class Stages(StageStore):
    """See `StageStore`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._kv = kv = core.kv
        self._ledger = core.ledger
        self._commit = core.commit
        self._dedup = core.dedup
        last = kv.last(b"t", keys.after(b"t"))
        self._upload = 0 if last is None else int.from_bytes(last[1:9], "big")

    def load(self, shelf: Shelf) -> None:
        """Take up the stages of a queue after a start."""
        prefix = keys.of_queue(b"e", shelf.serial)
        for key, value in self._kv.scan(prefix, keys.after(prefix)):
            name, number = keys.read_part_key(key)
            found = keys.decode_part(value)
            shelf.stages.setdefault(name, {})[number] = _part(found)
            self._upload = max(self._upload, found.upload)

    async def upload(self, queue: str, upload: Upload, messages: Sequence[Message]) -> tuple[int, int]:
        shelf = self._core.shelf(queue)
        self._core.space.check(size_of(messages), len(messages))
        name, number = upload.stage, upload.part
        parts = shelf.stages.get(name)
        if parts is not None and stage_of(name, parts.values()).until <= upload.now:
            self._remove(shelf, name)
            parts = None
        if parts is not None and number in parts:
            there = parts[number]
            await self._commit.settle()
            return there.messages, there.bytes
        batch = self._commit.batch
        self._upload += 1
        found: list[keys.StretchRecord] = []
        written = 0
        for place, stretch in enumerate(stretches(messages)):
            some = messages[stretch.start : stretch.stop]
            value = keys.encode_block(some)
            written += len(value)
            batch.ops.append((keys.staged_key(self._upload, place), value))
            first = some[0]
            found.append(keys.StretchRecord(first.priority, first.due_at, sizes_of(some), stands_alone(first)))
        size = sum(sum(stretch.sizes) for stretch in found)
        alone = sum(stretch.alone for stretch in found)
        record = keys.PartRecord(self._upload, len(messages), size, alone, upload.now, upload.until, found)
        batch.ops.append((keys.part_key(shelf.serial, name, number), keys.encode(record)))
        batch.large = batch.large or written > LARGE
        shelf.stages.setdefault(name, {})[number] = _part(record)
        await self._commit.commit(sync=True)
        return record.messages, size

    async def commit(self, queue: str, batch: Batch) -> Committed:
        return await self._core.unless_emptied(queue, lambda shelf: self._make(shelf, batch))

    async def _make(self, shelf: Shelf, batch: Batch) -> Committed:
        """Uploads that are still being written were not answered; they are waited for first."""
        await self._commit.settle()
        check_there(shelf)
        put, record = batch.put, call_record(batch.name)
        said = self._dedup.standing(shelf, record, put.now)
        if said is not None:
            await self._commit.settle()
            return committed_before(said)
        stages = [name for name in shelf.stages if (name.job, name.batch) == (batch.job, batch.batch)]
        there = {(name.partition, name.attempt): stage_of(name, shelf.stages[name].values()) for name in stages}
        check_listed(batch, {listed: stage.until for listed, stage in there.items()})
        uploads: list[keys.PartRecord] = []
        for partition, attempt in batch.stages:
            name = StageName(batch.job, batch.batch, partition, attempt)
            for number in sorted(shelf.stages[name]):
                value = self._kv.get(keys.part_key(shelf.serial, name, number))
                assert value is not None  # noqa: S101  everything that was staged is written
                uploads.append(keys.decode_part(value))
        making = _Committing(self, shelf, put)
        making.sift(uploads)
        check_room(put.room, shelf.name, (shelf.count, shelf.size), (making.count, making.size))
        if making.count:
            making.put(uploads, batch.reserve(making.width))
        self._dedup.remember(shelf, {record: commit_said(making.count)}, batch.until)
        for name in stages:
            self._remove(shelf, name, making.uploads)
        await self._commit.commit(sync=True)
        return Committed(making.count)

    async def discard(self, queue: str, job: str, batch: str) -> int:
        return await self._core.unless_emptied(queue, lambda shelf: self._discard(shelf, job, batch))

    async def _discard(self, shelf: Shelf, job: str, batch: str) -> int:
        await self._commit.settle()
        check_there(shelf)
        gone = [name for name in shelf.stages if (name.job, name.batch) == (job, batch)]
        for name in gone:
            self._remove(shelf, name)
        if gone:
            await self._commit.commit(sync=True)
        return len(gone)

    def tidy(self, shelves: Iterable[Shelf], now: int, limit: int) -> None:
        """Stage the removal of stages that ran out, until about `limit` records are gone."""
        ops = self._commit.batch.ops
        most = len(ops) + limit
        for shelf in shelves:
            for name in [stage.name for stage in _stages(shelf) if stage.until <= now]:
                if len(ops) >= most:
                    return
                self._remove(shelf, name)

    def read(self, upload: int, place: int) -> Message:
        """A message that stands alone in its stage."""
        key = keys.staged_key(upload, place)
        return keys.decode_block(self._kv.get(key) or b"", self._kv.get)[0]

    def _remove(self, shelf: Shelf, name: StageName, committed: frozenset[int] | set[int] = frozenset()) -> None:
        """A stage is over. Of uploads that were committed the messages stay."""
        ops = self._commit.batch.ops
        for number, part in shelf.stages.pop(name).items():
            ops.append((keys.part_key(shelf.serial, name, number), None))
            if part.upload not in committed:
                prefix = keys.upload_prefix(part.upload)
                ops += [(key, None) for key, _ in self._kv.scan(prefix, keys.after(prefix))]

    async def list(self, queue: str, now: int) -> list[Stage]:
        return [stage for stage in _stages(self._core.shelf(queue)) if stage.until > now]


class _Committing:
    """One commit on its way."""

    def __init__(self, stages: Stages, shelf: Shelf, put: Put) -> None:
        self._stages = stages
        self._ledger = stages._ledger
        self._batch = stages._commit.batch
        self._shelf = shelf
        self._now = put.now
        self._dedup_until = put.dedup_until
        self._keep = put.keep
        self.count = 0
        self.size = 0
        self.width = 0
        self.uploads: set[int] = set()
        self._alone: dict[tuple[int, int], Message] = {}
        """Messages that stand alone and are new, by upload and place."""

    def sift(self, uploads: Sequence[keys.PartRecord]) -> None:
        """Find out what is new, and how much that is."""
        known: set[str] = set()
        for upload in uploads:
            self.uploads.add(upload.upload)
            self.width += RUN * len(upload.stretches)
            self.count += upload.messages
            self.size += upload.bytes
            if not upload.alone:
                continue
            for place, stretch in enumerate(upload.stretches):
                if not stretch.alone:
                    continue
                message = self._stages.read(upload.upload, place)
                if message.dedup_id is not None:
                    standing = self._stages._dedup.standing(self._shelf, message.dedup_id, self._now)
                    if message.dedup_id in known or standing is not None:
                        self.count -= 1
                        self.size -= message.size
                        continue
                    known.add(message.dedup_id)
                self._alone[upload.upload, place] = message

    def put(self, uploads: Sequence[keys.PartRecord], first: str) -> None:
        """Make everything part of the queue."""
        shelf, now, ledger = self._shelf, self._now, self._ledger
        ops = self._batch.ops
        lanes: set[int] = set()
        blocks: list[Block] = []
        dedup: dict[str, str] = {}
        at_once = at = 0
        last = first
        for upload in uploads:
            for place, stretch in enumerate(upload.stretches):
                name = id_in_range(first, at)
                at += RUN
                source = keys.staged_key(upload.upload, place)
                if stretch.alone:
                    staged = self._alone.get((upload.upload, place))
                    if staged is None:
                        ops.append((source, None))
                        continue
                    message = committed(staged, name, now)
                    ledger.arrive_staged(shelf, message, source, now, blocks)
                    if message.dedup_id is not None:
                        dedup[message.dedup_id] = message.id
                else:
                    value = keys.encode(keys.StagedBlock(source, name, now))
                    if stretch.due_at > 0:
                        blocks.append(
                            ledger.arrive_later(
                                shelf, name, value, source, stretch.priority, now + stretch.due_at, stretch.sizes
                            )
                        )
                    else:
                        ops.append((keys.lane_prefix(shelf.number, "", stretch.priority) + name.encode(), value))
                        lanes.add(stretch.priority)
                        at_once += len(stretch.sizes)
                    shelf.count += len(stretch.sizes)
                    shelf.size += sum(stretch.sizes)
                self._tell(name, source, stretch)
                last = name
        ledger.dirty.add(shelf)
        ledger.last_id = max(ledger.last_id, last[:34] + "ff")
        if dedup:
            self._stages._dedup.remember(shelf, dedup, self._dedup_until)
        # First, so that no block is put in line before those that are left on disk.
        self._batch.done.append(partial(ledger.more_on_disk, shelf, lanes, at_once))
        ledger.announce_all(shelf, blocks)
        self._batch.large = self._batch.large or self._keep == "full" or len(uploads) > 1

    def _tell(self, name: str, source: bytes, stretch: keys.StretchRecord) -> None:
        """The history of a block that is committed."""
        if self._keep == "off":
            return
        get = self._stages._kv.get
        if self._keep == "full":
            value = keys.encode(keys.StagedBlock(source, name, self._now))
            self._batch.events += [
                EventRun(events.sent(message, self._now, None, self._keep)) for message in keys.decode_block(value, get)
            ]
            return
        told = events.sent_as(self._shelf.name, name, stretch.sizes[0], self._now)
        self._batch.events.append(event_run(told, stretch.sizes))


def _part(record: keys.PartRecord) -> Part:
    return Part(record.upload, record.messages, record.bytes, record.alone, record.made_at, record.until)


def _stages(shelf: Shelf) -> Sequence[Stage]:
    """All stages of a queue by name, also those that have run out."""
    names = sorted(shelf.stages, key=lambda name: (name.job, name.batch, name.partition, name.attempt))
    return [stage_of(name, shelf.stages[name].values()) for name in names]
