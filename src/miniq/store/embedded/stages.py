"""Stages of the embedded store: messages uploaded part by part, and committed together, once.

An upload is written as invisible blocks (`t`), with a record of the part (`e`) in the same batch. A commit writes for
each block a small record into its lane that refers to the block; only messages that stand alone (a recipient, group or
dedup id) are handled individually. So a commit of a million messages is a batch of a few hundred KiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from miniq.batch import Committed, Stage, StageName
from miniq.ids import RUN, id_in_range
from miniq.message import Message, PlainBatch
from miniq.store import events
from miniq.store.arguments import Batch, Put, Upload
from miniq.store.contract import StageStore
from miniq.store.decisions import (
    check_room,
    commit_answer,
    committed,
    earlier_publication,
    parts_to_commit,
    repeated_commit,
    size_of,
    stage_of,
    stages_of,
    stages_of_batch,
    stands_alone,
    stretches,
)
from miniq.store.embedded import block_records, keys
from miniq.store.embedded.blocks import Block, Shelf, UploadedPart, check_there
from miniq.store.embedded.core import Core, Part
from miniq.store.embedded.history import event_run
from miniq.store.embedded.keys import EventRun
from miniq.store.embedded.window import sizes_of
from miniq.store.names import call_record
from miniq.topic import Published

LARGE = 1024 * 1024
"""A batch of this many bytes is written outside the event loop."""


class Stages(Part, StageStore):
    """See `StageStore`."""

    def __init__(self, core: Core) -> None:
        super().__init__(core)
        last = core.kv.last(b"t", keys.after(b"t"))
        self._upload = 0 if last is None else int.from_bytes(last[1:9], "big")
        self._staged: set[str] = set()
        """Queues that may have stages."""

    def load(self, shelf: Shelf) -> None:
        """Read the stages of a queue at start."""
        prefix = keys.of_queue(b"e", shelf.serial)
        for key, value in self._kv.scan(prefix, keys.after(prefix)):
            name, number = keys.read_part_key(key)
            record = keys.decode_part(value)
            shelf.stages.setdefault(name, {})[number] = _part(record)
            self._staged.add(shelf.name)
            self._upload = max(self._upload, record.upload)

    async def upload(self, queue: str, upload: Upload, messages: Sequence[Message]) -> tuple[int, int]:
        shelf = self._core.shelf(queue)
        self._core.check_space(size_of(messages), len(messages))
        name, number = upload.stage, upload.part
        parts = shelf.stages.get(name)
        if parts is not None and stage_of(name, parts.values()).until <= upload.now:
            self._remove(shelf, name)
            parts = None
        if parts is not None and number in parts:
            part = parts[number]
            await self._commit.settle()
            return part.messages, part.bytes
        batch = self._commit.batch
        self._upload += 1
        cut: list[keys.StretchRecord] = []
        written = 0
        for place, stretch in enumerate(stretches(messages)):
            block = messages[stretch.start : stretch.stop]
            value = block_records.encode_block(block)
            written += len(value)
            batch.ops.append((keys.staged_key(self._upload, place), value))
            plain = isinstance(block, PlainBatch)
            first = block if isinstance(block, PlainBatch) else block[0]
            alone = isinstance(first, Message) and stands_alone(first)
            cut.append(keys.StretchRecord(first.priority, first.due_at, sizes_of(block), alone, plain))
        size = sum(sum(stretch.sizes) for stretch in cut)
        lone = sum(stretch.alone for stretch in cut)
        record = keys.PartRecord(self._upload, len(messages), size, lone, upload.now, upload.until, cut)
        batch.ops.append((keys.part_key(shelf.serial, name, number), keys.encode(record)))
        batch.large = batch.large or written > LARGE
        shelf.stages.setdefault(name, {})[number] = _part(record)
        self._staged.add(shelf.name)
        await self._commit.commit(sync=True)
        return record.messages, size

    async def commit(self, queue: str, batch: Batch) -> Committed:
        return await self._core.unless_emptied(queue, lambda shelf: self._make(shelf, batch))

    async def _make(self, shelf: Shelf, batch: Batch) -> Committed:
        """Commit once pending uploads are written."""
        await self._commit.settle()
        check_there(shelf)
        put, record = batch.put, call_record(batch.name)
        answer = self._dedup.standing(shelf, record, put.now)
        if answer is not None:
            await self._commit.settle()
            return repeated_commit(answer, batch)
        uploads: list[keys.PartRecord] = []
        for name, number, _ in parts_to_commit(batch, shelf.stages):
            value = self._kv.get(keys.part_key(shelf.serial, name, number))
            assert value is not None  # noqa: S101  everything that was staged is written
            uploads.append(keys.decode_part(value))
        singles, known = self._sift(shelf, uploads, put.now)
        count = sum(upload.messages for upload in uploads) - len(known)
        size = sum(upload.bytes for upload in uploads) - sum(known)
        check_room(put.room, shelf.name, (shelf.count, shelf.size), (count, size))
        if count:
            first = batch.reserve(RUN * sum(len(upload.stretches) for upload in uploads))
            self._put(shelf, put, uploads, singles, first)
        self._dedup.remember(shelf, {record: commit_answer(count, batch)}, batch.until)
        for name in stages_of_batch(shelf.stages, batch.job, batch.batch):
            self._remove(shelf, name, {upload.upload for upload in uploads})
        await self._commit.commit(sync=True)
        return Committed(count)

    async def read(self, queue: str, batch: Batch) -> list[Sequence[Message]] | Published:
        return await self._core.unless_emptied(queue, lambda shelf: self._read(shelf, batch))

    async def _read(self, shelf: Shelf, batch: Batch) -> list[Sequence[Message]] | Published:
        await self._commit.settle()
        check_there(shelf)
        now = batch.put.now
        earlier = earlier_publication(batch, lambda name: self._dedup.standing(shelf, call_record(name), now))
        if earlier is not None:
            return earlier
        blocks: list[Sequence[Message]] = []
        for _, _, part in parts_to_commit(batch, shelf.stages):
            prefix = keys.upload_prefix(part.upload)
            staged = self._kv.scan(prefix, keys.after(prefix))
            blocks += [block_records.decode_block(value, self._kv.get) for _, value in staged]
        return blocks

    async def discard(self, queue: str, job: str, batch: str) -> int:
        return await self._core.unless_emptied(queue, lambda shelf: self._discard(shelf, job, batch))

    async def _discard(self, shelf: Shelf, job: str, batch: str) -> int:
        await self._commit.settle()
        check_there(shelf)
        discarded = stages_of_batch(shelf.stages, job, batch)
        for name in discarded:
            self._remove(shelf, name)
        if discarded:
            await self._commit.commit(sync=True)
        return len(discarded)

    def tidy(self, now: int, limit: int) -> None:
        """Stage the removal of expired stages, up to about `limit` records."""
        ops = self._commit.batch.ops
        most = len(ops) + limit
        for queue in list(self._staged):
            shelf = self._core.shelves.get(queue)
            if shelf is None or not shelf.stages:
                self._staged.discard(queue)
                continue
            for name in [stage.name for stage in stages_of(shelf.stages) if stage.until <= now]:
                if len(ops) >= most:
                    return
                self._remove(shelf, name)

    def _remove(self, shelf: Shelf, name: StageName, committed: frozenset[int] | set[int] = frozenset()) -> None:
        """Stage the removal of a stage; the messages of committed uploads stay."""
        ops = self._commit.batch.ops
        for number, part in shelf.stages.pop(name).items():
            ops.append((keys.part_key(shelf.serial, name, number), None))
            if part.upload not in committed:
                prefix = keys.upload_prefix(part.upload)
                ops += [(key, None) for key, _ in self._kv.scan(prefix, keys.after(prefix))]

    async def list(self, queue: str, now: int) -> list[Stage]:
        return [stage for stage in stages_of(self._core.shelf(queue).stages) if stage.until > now]

    def _sift(
        self, shelf: Shelf, uploads: Sequence[keys.PartRecord], now: int
    ) -> tuple[dict[tuple[int, int], Message], Sequence[int]]:
        """The new messages that stand alone, by upload and place; and the sizes of those that are known already."""
        singles: dict[tuple[int, int], Message] = {}
        known: list[int] = []
        dedup_ids: set[str] = set()
        for upload in uploads:
            for place, stretch in enumerate(upload.stretches) if upload.alone else ():
                if not stretch.alone:
                    continue
                value = self._kv.get(keys.staged_key(upload.upload, place)) or b""
                message = block_records.decode_block(value, self._kv.get)[0]
                if message.dedup_id is not None:
                    standing = self._dedup.standing(shelf, message.dedup_id, now)
                    if message.dedup_id in dedup_ids or standing is not None:
                        known.append(message.size)
                        continue
                    dedup_ids.add(message.dedup_id)
                singles[upload.upload, place] = message
        return singles, known

    def _put(
        self,
        shelf: Shelf,
        put: Put,
        uploads: Sequence[keys.PartRecord],
        singles: dict[tuple[int, int], Message],
        first: str,
    ) -> None:
        """Add everything to the queue, with the ids from `first` on."""
        ledger, batch, now = self._ledger, self._commit.batch, put.now
        lanes: set[int] = set()
        blocks: list[Block] = []
        dedup: dict[str, str] = {}
        ready = at = 0
        last = first
        for upload in uploads:
            for place, stretch in enumerate(upload.stretches):
                id = id_in_range(first, at)
                at += RUN
                source = keys.staged_key(upload.upload, place)
                told = (len(stretch.sizes), sum(stretch.sizes)) if stretch.plain else (0, 0)
                value = keys.encode(block_records.StagedBlock(source, id, now, *told))
                if stretch.alone:
                    staged = singles.get((upload.upload, place))
                    if staged is None:
                        batch.ops.append((source, None))
                        continue
                    message = committed(staged, id, now)
                    blocks.append(ledger.arrive_alone(shelf, message, now, source))
                    if message.dedup_id is not None:
                        dedup[message.dedup_id] = message.id
                else:
                    if stretch.due_at > 0:
                        due_at = now + stretch.due_at
                        block = ledger.arrive_later(shelf, id, value, source, stretch.priority, due_at, stretch.sizes)
                        blocks.append(block)
                    else:
                        batch.ops.append((keys.lane_prefix(shelf.number, "", stretch.priority) + id.encode(), value))
                        lanes.add(stretch.priority)
                        ready += len(stretch.sizes)
                    shelf.count += len(stretch.sizes)
                    shelf.size += sum(stretch.sizes)
                if put.keep == "full":
                    messages = block_records.decode_block(value, self._kv.get)
                    batch.events += [EventRun(events.sent(message, now, None, put.keep)) for message in messages]
                elif put.keep != "off":
                    event = events.sent_as(shelf.name, id, stretch.sizes[0], now)
                    batch.events.append(event_run(event, stretch.sizes))
                last = id
        ledger.dirty.add(shelf)
        ledger.last_id = max(ledger.last_id, last[:34] + "ff")
        if dedup:
            self._dedup.remember(shelf, dedup, put.dedup_until)
        # First, so that no block enters a lane before the blocks left on disk.
        batch.done.append(partial(ledger.more_on_disk, shelf, lanes, ready))
        ledger.announce_all(shelf, blocks)
        batch.large = batch.large or put.keep == "full" or len(uploads) > 1


def _part(record: keys.PartRecord) -> UploadedPart:
    return UploadedPart(record.messages, record.bytes, record.alone, record.made_at, record.until, record.upload)
