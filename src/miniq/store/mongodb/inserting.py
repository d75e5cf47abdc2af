"""Sends of one block, without a transaction: the command that inserts the block also verifies the queue's number and
notes the highest id. Those of one process that wait for the same queue share a command, which is written to the journal
once."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from msgspec import Struct
from pymongo import ReplaceOne, UpdateOne
from pymongo.errors import BulkWriteError, PyMongoError

from miniq.message import Message
from miniq.store.arguments import Put
from miniq.store.decisions import repeated_call
from miniq.store.mongodb import calls, writes
from miniq.store.mongodb.blocks import Block, blocks_for
from miniq.store.mongodb.changes import Named
from miniq.store.mongodb.connection import DUPLICATE, Database
from miniq.store.mongodb.history import Tools
from miniq.store.mongodb.turns import Turn, Turns


class _New(Struct, eq=False):
    """A block, its document, and how it is sent."""

    block: Block
    document: dict[str, Any]
    named: Named
    put: Put


_Answer = bool | str
"""Whether a block was inserted, or the answer to an earlier call of the same name. If not, it may be tried again."""


class Inserting:
    """The sends of this process."""

    def __init__(self, tools: Tools) -> None:
        self._link, self._changes, self._log, self._ready = tools
        self._turns: Turns[_New, _Answer] = Turns(self._insert, at_once=True)

    async def close(self) -> None:
        await self._turns.close()

    async def put(self, queue: str, messages: Sequence[Message], put: Put, named: Named, block: Block) -> list[str]:
        """Add a block of messages."""
        told = writes.arrivals(messages, put.now, put.keep, put.reason)
        while True:
            [document] = writes.insert([block], put.now, told)
            if put.call is not None:
                document["call"] = calls.record(named.serial, put.call, block.ids)
            answer = await self._turns.make(queue, _New(block, document, named, put))
            if isinstance(answer, str) and put.call is not None:
                return repeated_call(answer, put.call)
            if answer:
                self._ready(queue, [block.lane or None] * len(block.ids))
                return list(block.ids)
            named = await self._changes.know(queue)
            [block] = blocks_for(messages, named.number)

    async def _insert(self, queue: str, turns: list[Turn[_New, _Answer]]) -> None:
        """Insert blocks of one queue, unless its number is outdated."""
        number = turns[0].call.block.number
        now = [turn for turn in turns if turn.call.block.number == number]
        last = max(turn.call.block.ids[-1] for turn in now)
        changes: list[UpdateOne | ReplaceOne[dict[str, Any]]] = [
            UpdateOne({"_id": number}, {"$max": {"last_id": last}})
        ]
        for turn in now:
            document = turn.call.document
            changes.append(ReplaceOne({"_id": document["_id"], "v": document["v"]}, document, upsert=True))
        deadline = time.monotonic() + self._link.patience
        late = False
        refused: set[int] = set()
        while True:
            with self._link.call() as db:
                try:
                    with self._link.watching(deadline):
                        current = (await db.blocks.bulk_write(changes, ordered=False)).matched_count > 0
                    break
                except BulkWriteError as error:
                    refused = {one["index"] - 1 for one in error.details["writeErrors"]}
                    named = all(now[place].call.put.call is not None for place in refused)
                    if not _only_duplicates(error) or not (named or late):
                        raise
                    current = error.details["nMatched"] > 0
                    break
                except PyMongoError as error:
                    if not error.timeout or time.monotonic() >= deadline:
                        raise
                    late = True
                    await self._link.abort_abandoned()
        with self._link.call() as db:
            if late:
                current = await db.blocks.find_one({"_id": number}, {"_id": 1}) is not None
            if not current:
                self._changes.forget(queue)
                # Another broker purged or deleted the queue.
                for turn in now:
                    document = turn.call.document
                    await db.blocks.delete_one({"_id": document["_id"], "v": document["v"]})
            for place, turn in enumerate(now):
                turn.done(current and (place not in refused or await _reason(db, turn.call)))
        for turn in turns:
            if turn.call.block.number != number:
                turn.done(False)  # sent with another number of the queue


def _only_duplicates(error: BulkWriteError) -> bool:
    errors = error.details["writeErrors"]
    return bool(errors) and not error.details["writeConcernErrors"] and all(one["code"] == DUPLICATE for one in errors)


async def _reason(db: Database, new: _New) -> _Answer:
    """Why a block was refused: an earlier attempt has inserted it, or there is one of the same call."""
    document = new.document
    if await db.blocks.find_one({"_id": document["_id"], "past": document["v"]}, {"_id": 1}) is not None:
        return True
    call = new.put.call
    if call is None:
        return True  # inserted by an earlier attempt, and gone since
    return await calls.find(db, None, new.named.serial, call, new.put.now) or False
