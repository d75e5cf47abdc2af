"""The stages of the memory store."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from miniq.ids import RUN, id_in_range
from miniq.message import Committed, Message, Stage, StageName
from miniq.store.arguments import Batch, Upload
from miniq.store.contract import StageStore
from miniq.store.decisions import (
    check_listed,
    check_room,
    commit_said,
    committed,
    committed_before,
    sift,
    size_of,
    stage_of,
    stretches,
)
from miniq.store.memory.shelves import Part, Shelf, Shelves
from miniq.store.names import call_record


class Stages(StageStore):
    """See `StageStore`."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves

    async def upload(self, queue: str, upload: Upload, messages: Sequence[Message]) -> tuple[int, int]:
        stages = self._shelves[queue].stages
        if upload.stage in stages and stage_of(upload.stage, stages[upload.stage].values()).until <= upload.now:
            del stages[upload.stage]
        parts = stages.setdefault(upload.stage, {})
        part = parts.setdefault(upload.part, Part(list(messages), upload.now, upload.until))
        return part.messages, part.bytes

    async def commit(self, queue: str, batch: Batch) -> Committed:
        shelf, put = self._shelves[queue], batch.put
        said = shelf.standing(call_record(batch.name), put.now)
        if said is not None:
            return committed_before(said)
        there = {(stage.name.partition, stage.name.attempt): stage.until for stage in _of_batch(shelf, batch)}
        check_listed(batch, there)
        placed: list[Message] = []
        width = 0
        for partition, attempt in batch.stages:
            parts = shelf.stages[StageName(batch.job, batch.batch, partition, attempt)]
            for _, part in sorted(parts.items()):
                for stretch in stretches(part.content):
                    for place, message in enumerate(part.content[stretch.start : stretch.stop]):
                        placed.append(replace(message, id=str(width + place)))
                    width += RUN
        fresh = sift(placed, lambda name: shelf.standing(name, put.now)).fresh
        check_room(put.room, queue, (len(shelf.rows), shelf.bytes), (len(fresh), size_of(fresh)))
        first = batch.reserve(width) if fresh else ""
        made = [committed(message, id_in_range(first, int(message.id)), put.now) for message in fresh]
        self._shelves.arrive(shelf, made, put)
        shelf.dedup[call_record(batch.name)] = (commit_said(len(made)), batch.until)
        await self.discard(queue, batch.job, batch.batch)
        return Committed(len(made))

    async def discard(self, queue: str, job: str, batch: str) -> int:
        stages = self._shelves[queue].stages
        gone = [name for name in stages if (name.job, name.batch) == (job, batch)]
        for name in gone:
            del stages[name]
        return len(gone)

    async def list(self, queue: str, now: int) -> list[Stage]:
        return [stage for stage in all_stages(self._shelves[queue]) if stage.until > now]


def all_stages(shelf: Shelf) -> Sequence[Stage]:
    """All stages of a queue by name, also those that have run out."""
    names = sorted(shelf.stages, key=lambda name: (name.job, name.batch, name.partition, name.attempt))
    return [stage_of(name, shelf.stages[name].values()) for name in names]


def _of_batch(shelf: Shelf, batch: Batch) -> Sequence[Stage]:
    return [stage for stage in all_stages(shelf) if (stage.name.job, stage.name.batch) == (batch.job, batch.batch)]
