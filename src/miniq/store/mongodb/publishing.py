"""Publications in MongoDB: the blocks of all queues in one transaction, which adds documents and changes few."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from functools import partial

from bson import ObjectId
from pymongo import UpdateOne

from miniq.errors import TooLarge
from miniq.message import Event, Message
from miniq.store import events
from miniq.store.arguments import Publication, Target
from miniq.store.contract import HOME, RecordChanged
from miniq.store.decisions import (
    SiftedPublication,
    check_room,
    dedup_names,
    publication_answer,
    repeated_publication,
    sift_publication,
    size_of,
)
from miniq.store.mongodb import counting, dedup, groups, records, writes
from miniq.store.mongodb.blocks import Block, blocks_for
from miniq.store.mongodb.changes import Numbers, Outdated, Renumbered
from miniq.store.mongodb.connection import Session
from miniq.store.mongodb.history import Tools
from miniq.store.names import call_record
from miniq.topic import Published

BYTES = 32 * 1024 * 1024
DOCUMENTS = 10_000
"""What one publication may add. A server with the smallest cache (256 MB) takes twice as much in one transaction, and
aborts larger ones, some of them only after a long time."""


class Publishing:
    """See `MessageStore.publish`."""

    def __init__(self, tools: Tools, turn: Callable[[str], asyncio.Lock]) -> None:
        self._link, self._changes, self._log, self._ready = tools
        self._turn = turn
        """The lock under which this process sends to a queue that has a limit."""

    async def publish(self, publication: Publication) -> Published:
        now, call = publication.now, publication.call
        sifted = sift_publication(publication, lambda name: None)
        targets = [publication.targets[place] for place in sifted.targets]
        names = [target.queue for target in targets]
        _check_size(sifted)
        recorded = dedup_names(publication) + ([] if call is None else [call.name])
        if not recorded and not names and publication.keep == "off" and publication.record is None:
            return Published(sifted.ids, 0)
        if publication.keep != "off" and not names:
            await self._log.copy()  # what happened before, and still lies in blocks
        had: dict[str, groups.Joined] = {}
        grouped = _grouped(sifted, publication)

        async def work(named: Numbers, session: Session) -> tuple[Published, SiftedPublication | None, Numbers]:
            had.clear()
            if any(named[queue].number != expected[queue] for queue in grouped):
                raise Renumbered("a queue was purged")
            return *await self._perform(publication, recorded, named, session, had), named

        async with AsyncExitStack() as turns:
            for queue in sorted(target.queue for target in targets if target.room is not None):
                await turns.enter_async_context(self._turn(queue))
            while True:
                expected = {queue: (await self._changes.know(queue)).number for queue in grouped}
                with self._link.call() as db:
                    for queue, messages in grouped.items():
                        await self._link.patiently(partial(groups.expect, db, expected[queue], messages, now))
                with suppress(Renumbered):
                    queues = [*names, HOME] if recorded else names
                    published, added, numbers = await self._changes.make(queues, work)
                    break
        if added is not None:
            await self._announce(publication, added, numbers, had)
        return published

    async def _perform(
        self,
        publication: Publication,
        recorded: list[str],
        named: Numbers,
        session: Session,
        had: dict[str, groups.Joined],
    ) -> tuple[Published, SiftedPublication | None]:
        """The answer, and what was added; None if the call is repeated."""
        db, now, call = self._link.database, publication.now, publication.call
        if publication.record is not None and not await records.change(db, session, publication.record):
            raise RecordChanged(publication.record)
        stands: dict[str, str] = {}
        if recorded:
            stands = await dedup.find(db, session, named[HOME].serial, map(call_record, recorded), now)
        if call is not None and (given := stands.get(call_record(call.name))) is not None:
            return repeated_publication(given, call), None
        sifted = sift_publication(publication, lambda name: stands.get(call_record(name)))
        for place in sifted.targets:
            await self._check_room(session, publication.targets[place], named, sifted.more(place))
        published = Published(sifted.ids, len(sifted.targets))
        remembered = {call_record(name): (id, publication.dedup_until) for name, id in sifted.brought.items()}
        if call is not None:
            remembered[call_record(call.name)] = (publication_answer(published, call), call.until)
        if remembered:
            await dedup.remember(db, session, named[HOME].serial, remembered)
        documents = []
        first: list[Event] = []
        if publication.keep != "off" and sifted.fresh:
            reached = [publication.targets[place].queue for place in sifted.targets]
            first.append(events.published(publication, sifted.fresh, reached))
        for place in sifted.targets:
            target = publication.targets[place]
            number = named[target.queue].number
            blocks: list[Block] = []
            told: dict[str, list[Event]] = {}
            for stretch in sifted.fresh:
                if place in stretch.targets:
                    copies = stretch.copies(target)
                    blocks += blocks_for(copies, number)
                    if target.keep != "off":
                        told |= {copy.id: [events.sent(copy, now, "published", target.keep)] for copy in copies}
            if first:  # it precedes the arrivals, and is copied with those of its block
                told[blocks[0].ids[0]] = [first.pop(), *told.get(blocks[0].ids[0], ())]
            had[target.queue] = await groups.join(db, session, number, blocks)
            documents += writes.insert(blocks, now, told)
        if documents:
            await db.blocks.insert_many(documents, ordered=False, session=session)
        await self._log.append(db, session, first)  # there is no block
        return published, sifted

    async def _check_room(self, session: Session, target: Target, named: Numbers, more: tuple[int, int]) -> None:
        if target.room is None:
            return
        db, number = self._link.database, named[target.queue].number
        turn = await db.blocks.update_one({"_id": number}, {"$inc": {"turn": 1}}, session=session)
        if not turn.matched_count:
            raise Outdated(target.queue)
        check_room(target.room, target.queue, await counting.total(db, session, number), more)

    async def _announce(
        self,
        publication: Publication,
        added: SiftedPublication,
        named: Numbers,
        had: dict[str, groups.Joined],
    ) -> None:
        """Note the highest ids, and wake consumers."""
        lasts: dict[ObjectId, str] = {}
        for place in added.targets:
            number = named[publication.targets[place].queue].number
            lasts[number] = max(stretch.ids[-1] for stretch in added.fresh if place in stretch.targets)
        changes = [UpdateOne({"_id": number}, {"$max": {"last_id": last}}) for number, last in lasts.items()]
        if changes:
            with self._link.call() as db:
                await self._link.patiently(lambda: db.blocks.bulk_write(changes, ordered=False))
        for place in added.targets:
            queue = publication.targets[place].queue
            recipients = [
                message.recipient for stretch in added.fresh if place in stretch.targets for message in stretch.messages
            ]
            self._ready(queue, recipients)
            joined = had.get(queue, {})
            self._ready(queue, await groups.joined(self._link, named[queue].number, joined, publication.now))


def _check_size(sifted: SiftedPublication) -> None:
    """Raise if a publication is too large for one transaction."""
    size = sum(size_of(stretch.messages) * len(stretch.targets) for stretch in sifted.fresh)
    if size > BYTES:
        text = f"messages: {size} bytes in all queues; on MongoDB at most {BYTES} in one call, publish fewer at a time"
        raise TooLarge(text, field="messages")
    documents = sum(len(stretch.targets) for stretch in sifted.fresh)
    if documents > DOCUMENTS:
        text = (
            f"messages: {documents} documents in all queues, with one for each message that has a recipient, group or "
            f"dedup id; on MongoDB at most {DOCUMENTS} in one call, publish fewer at a time"
        )
        raise TooLarge(text, field="messages")


def _grouped(sifted: SiftedPublication, publication: Publication) -> dict[str, list[Message]]:
    """By queue, the messages that belong to groups."""
    grouped: dict[str, list[Message]] = {}
    for stretch in sifted.fresh:
        if stretch.first.group is not None:
            for place in stretch.targets:
                target = publication.targets[place]
                grouped.setdefault(target.queue, []).extend(stretch.copies(target))
    return grouped
