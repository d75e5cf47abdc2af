"""The stages of the oracle."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from miniq.batch import Committed, Stage
from miniq.ids import RUN, id_in_range
from miniq.message import Message
from miniq.store.arguments import Batch, Upload
from miniq.store.contract import StageStore
from miniq.store.decisions import (
    check_room,
    commit_answer,
    committed,
    earlier_publication,
    parts_to_commit,
    repeated_commit,
    sift,
    size_of,
    stage_of,
    stages_of,
    stages_of_batch,
    stands_alone,
    stretches,
)
from miniq.store.names import call_record
from miniq.topic import Published
from tests.oracle.shelves import Part, Shelves


class Stages(StageStore):
    """See `StageStore`."""

    def __init__(self, shelves: Shelves) -> None:
        self._shelves = shelves

    async def upload(self, queue: str, upload: Upload, messages: Sequence[Message]) -> tuple[int, int]:
        stages = self._shelves[queue].stages
        if upload.stage in stages and stage_of(upload.stage, stages[upload.stage].values()).until <= upload.now:
            del stages[upload.stage]
        parts = stages.setdefault(upload.stage, {})
        if upload.part not in parts:
            alone = sum(map(stands_alone, messages))
            size = size_of(messages)
            parts[upload.part] = Part(len(messages), size, alone, upload.now, upload.until, list(messages))
        part = parts[upload.part]
        return part.messages, part.bytes

    async def commit(self, queue: str, batch: Batch) -> Committed:
        shelf, put = self._shelves[queue], batch.put
        answer = shelf.standing(call_record(batch.name), put.now)
        if answer is not None:
            return repeated_commit(answer, batch)
        staged: list[Message] = []
        width = 0
        for _, _, part in parts_to_commit(batch, shelf.stages):
            for stretch in stretches(part.content):
                for position, message in enumerate(part.content[stretch.start : stretch.stop], width):
                    staged.append(replace(message, id=str(position)))
                width += RUN
        fresh = sift(staged, lambda name: shelf.standing(name, put.now)).fresh
        check_room(put.room, queue, (len(shelf.rows), shelf.bytes), (len(fresh), size_of(fresh)))
        first = batch.reserve(width) if fresh else ""
        messages = [committed(message, id_in_range(first, int(message.id)), put.now) for message in fresh]
        self._shelves.arrive(shelf, messages, put)
        shelf.dedup[call_record(batch.name)] = (commit_answer(len(messages), batch), batch.until)
        await self.discard(queue, batch.job, batch.batch)
        return Committed(len(messages))

    async def read(self, queue: str, batch: Batch) -> list[Sequence[Message]] | Published:
        shelf = self._shelves[queue]
        earlier = earlier_publication(batch, lambda name: shelf.standing(call_record(name), batch.put.now))
        return earlier or [part.content for _, _, part in parts_to_commit(batch, shelf.stages)]

    async def discard(self, queue: str, job: str, batch: str) -> int:
        stages = self._shelves[queue].stages
        discarded = stages_of_batch(stages, job, batch)
        for name in discarded:
            del stages[name]
        return len(discarded)

    async def list(self, queue: str, now: int) -> list[Stage]:
        return [stage for stage in stages_of(self._shelves[queue].stages) if stage.until > now]
