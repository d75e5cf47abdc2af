"""Messages in PostgreSQL: one statement per call, or a few in one transaction and round trip."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import psycopg
from msgspec.structs import asdict

from miniq.consumer import Holding
from miniq.errors import InvalidRequest, StoreUnavailable
from miniq.ids import from_spans
from miniq.message import Counts, History, Message, Outcome, Page, PlainBatch, Stored
from miniq.store import decisions
from miniq.store.arguments import FREE, Change, Draw, Edit, Fence, NewTime, Publication, Put, Room, Scan, Take
from miniq.store.contract import MessageStore, RecordChanged, no_queue
from miniq.store.decisions import call_answer, check_room, plain_batch, repeated_call
from miniq.store.postgres import blocks, results, rows
from miniq.store.postgres.access import (
    FIRST_ID,
    LONG,
    Access,
    Part,
    Row,
    Step,
    execute,
    existing,
    pipeline,
    tags,
)
from miniq.store.postgres.blocks import Cut
from miniq.store.postgres.connections import Connection
from miniq.store.postgres.publishing import Publishing
from miniq.store.postgres.rows import Blobs, escape, unescape
from miniq.store.postgres.taking import Taking
from miniq.topic import Published

T = TypeVar("T")
FULL = "MQ001"
"""The error code raised by the SQL function `refuse_full`."""
FOREVER = 2**63 - 1
CLEARED = 10_000
"""Rows that one statement of a purge removes."""


class Messages(Part, MessageStore):
    """See `MessageStore`."""

    def __init__(self, db: Access) -> None:
        super().__init__(db)
        self._publishing = Publishing(db)
        self._taking = Taking(db)

    async def put(self, messages: Sequence[Message], put: Put) -> list[str]:
        block = messages if isinstance(messages, PlainBatch) else plain_batch(messages)
        if block is not None and put.room is None and put.record is None and put.reason is None:
            return await self._put_block(block, put)
        return await self._put_mixed(messages, put)

    async def _put_block(self, block: PlainBatch, put: Put) -> list[str]:
        """Add messages that differ only in id and body."""
        queue, ids, call = block.queue, block.ids, put.call
        params = blocks.columns(block) | {
            "queue": queue,
            "each_body": Blobs(block.bodies) if put.keep == "full" else None,
            "sent_at": block.sent_at,
            "due_at": block.due_at,
            "rank": -block.priority,
            "count": len(ids),
            "bytes": block.size,
            "last_id": max(ids),
            "now": put.now,
            "full": put.keep == "full",
            "content_type": block.content_type,
        }
        wanted = tags(put.keep)
        if call is not None:
            params |= {"call": escape(call.name), "given": call_answer(ids, call), "call_until": call.until}
            wanted = (*wanted, "call")
        query = self._db.queries["put_plain"].pick(*wanted)
        result = existing(queue, await self._db.connections.call(lambda connection: execute(connection, query, params)))
        if call is not None and not result[0][1]:  # a repeated call
            answer = await self._db.all("call_ids", params)
            if not answer:
                raise StoreUnavailable("store: the queue was deleted just now; try again")
            return repeated_call(answer[0][0], call)
        self._db.ready(queue, None, len(ids))
        return list(ids)

    async def _put_mixed(self, messages: Sequence[Message], put: Put) -> list[str]:
        """Add messages that differ, have dedup ids, go to a queue with a limit, or change a record."""
        queue, room, call, record = messages[0].queue, put.room, put.call, put.record
        names: dict[str, str] = {}
        for message in messages:
            if message.dedup_id is not None:
                names.setdefault(message.dedup_id, message.id)
        groups = sorted({message.group for message in messages if message.group is not None})
        params = rows.columns(messages) | {
            "queue": queue,
            "now": put.now,
            "full": put.keep == "full",
            "reason": put.reason,
            "dedups": [escape(message.dedup_id) for message in messages],
            "call": None if call is None else escape(call.name),
            "given": None if call is None else call_answer([message.id for message in messages], call),
            "max_length": 0 if room is None else room.messages,
            "max_bytes": 0 if room is None else room.bytes,
        }
        steps: list[Step] = []
        if room is not None:
            steps.append(self._db.step("lock_queue", {"queue": queue}))
        if call is not None:
            steps.append(self._db.step("claim_call", params | {"call_until": call.until}))
        if names:
            claim = {"names": [escape(name) for name in names], "firsts": list(names.values())}
            steps.append(self._db.step("claim_dedup", params | claim | {"dedup_until": put.dedup_until}))
        if groups:
            steps.append(self._db.step("lock_groups", {"queue": queue, "groups": [escape(group) for group in groups]}))
        steps.append(self._db.step("put", params, put.keep))

        async def work(connection: Connection) -> list[Row]:
            if record is None and (call is None or not names):
                return await pipeline(connection, steps, atomic=True)
            async with connection.transaction():
                if record is not None and not await execute(connection, *self._db.record_step(record)):
                    raise RecordChanged(record)
                result = existing(queue, await pipeline(connection, steps))
                if call is not None and names:
                    ids = repeated_call(result[0][0], call)
                    if ids != [message.id for message in messages]:
                        recorded = {"answer": call_answer(ids, call)}
                        await execute(connection, *self._db.step("record_call", params | recorded))
                return result

        try:
            result = await self._db.connections.call(work)
        except psycopg.DatabaseError as error:
            if error.sqlstate != FULL or room is None:
                raise
            held, size, more, more_bytes = map(int, (error.diag.message_primary or "").split())
            check_room(room, queue, (held, size), (more, more_bytes))
            raise
        answer, recipients = existing(queue, result)[0]
        self._db.arrived(queue, recipients)
        return from_spans(answer) if call is None else repeated_call(answer, call)

    async def publish(self, publication: Publication) -> Published:
        return await self._publishing.publish(publication)

    async def take(self, queue: str, take: Take) -> list[Stored]:
        return await self._taking.take(queue, take)

    async def draw(self, queue: str, draw: Draw) -> int:
        return int((await self._db.one("draw", asdict(draw) | {"queue": queue}))[0])

    async def drop(self, queue: str, fences: Sequence[Fence], change: Change) -> list[Outcome]:
        more = {"reason": change.reason, "extra": change.extra}
        outcomes = await self._change("drop", queue, fences, change, more)
        if change.remember is not None and "done" in outcomes:
            self._db.listener.finished(queue)
        return outcomes

    async def reschedule(self, queue: str, fences: Sequence[Fence], to: NewTime, change: Change) -> list[Outcome]:
        params = {"visible_at": to.visible_at, "release": to.release, "error": escape(to.error)}
        params |= {"unused": to.unused, "extra": change.extra}
        params |= {"numbers": rows.array(list(to.by_receives)), "moments": rows.array(list(to.by_receives.values()))}
        return await self._change("reschedule", queue, fences, change, params)

    async def edit(self, queue: str, fence: Fence, edit: Edit, change: Change) -> Outcome:
        id, receipt = fence
        if not rows.is_id(id):
            await self.find(queue, [])
            return "missing"

        async def work(connection: Connection) -> tuple[Outcome, bool, list[Row]]:
            async with connection.transaction():
                key = {"queue": queue, "id": id, "floor": blocks.floor(id)}
                locked = existing(queue, await execute(connection, *self._db.step("lock_message", key)))
                shelf, count, *row = locked[0]
                if row[0] is None:
                    return "missing", False, []
                old = rows.stored(queue, row)[0]
                outcome = decisions.fence(old.visible_at, old.receipt, receipt, change.now)
                if outcome != "done":
                    return outcome, False, []
                if count == 1:
                    new = edit.apply(old.message)
                    expired = edit.due_at is not None and receipt == FREE and old.receipt is not None
                    params = {
                        "shelf": shelf,
                        "queue": queue,
                        "id": id,
                        "now": change.now,
                        "full": change.keep == "full",
                        "due_at": new.due_at,
                        "rank": -new.priority,
                        "size": new.size,
                        "old_size": old.message.size,
                        "about": rows.about(new),
                        "body": new.body,
                        "content_type": new.content_type,
                        "reset": edit.due_at is not None,
                        "expired": expired,
                    }
                    if expired and change.keep != "off":
                        lease = {"receives": old.receives, "consumer": row[10], "held": old.visible_at - row[12]}
                        await execute(connection, *self._db.step("record_expired", params | lease))
                    return outcome, expired, await execute(connection, *self._db.step("edit", params, change.keep))
            raise Cut([old.message.id])

        outcome, expired, edited = await self._splitting(queue, work)
        self._db.lease_expired(queue, int(expired))
        if edited and edit.due_at is not None:
            recipient, heads = edited[0]
            self._db.arrived(queue, [recipient, *(heads or ())])
        return outcome

    async def move(
        self,
        queue: str,
        moves: Sequence[tuple[Fence, Message]],
        change: Change,
        keep_to: History,
        room: Room | None = None,
    ) -> list[Outcome]:
        fences = [fence for fence, _ in moves]
        params = {"queue": queue, "now": change.now, "event": change.event, "reason": change.reason}
        params |= {"keep": change.keep, "keep_to": keep_to, "extra": change.extra}
        keep: History = change.keep if change.keep != "off" else keep_to
        wanted = _tags(keep, change)
        rounds = _rounds(fences, [message.queue for _, message in moves])
        done: set[int] = set()
        arrived: list[tuple[str, list[str | None]]] = []
        expired: list[int] = []

        async def work(connection: Connection) -> None:
            done.clear()
            arrived.clear()
            expired.clear()
            async with connection.transaction():
                for places in rounds:
                    messages = [moves[place][1] for place in places]
                    to = messages[0].queue
                    targets = {
                        "to": to,
                        "receipts": [escape(fences[place][1]) for place in places],
                        "floors": blocks.floors([fences[place][0] for place in places]),
                        "errors": [escape(message.dead.error) if message.dead else None for message in messages],
                    }
                    groups = sorted({message.group for message in messages if message.group is not None})
                    if room is not None:
                        await execute(connection, *self._db.step("lock_queue", {"queue": to}))
                        held = await execute(connection, *self._db.step("room_used", {"queue": to}))
                        more = (len(messages), sum(message.size for message in messages))
                        check_room(room, to, (int(held[0][0]), int(held[0][1])), more)
                    steps = []
                    if groups:
                        names = [escape(group) for group in groups]
                        steps.append(self._db.step("lock_groups", {"queue": to, "groups": names}))
                    targets |= _kept(change, fences, places)
                    arriving = rows.columns(messages)
                    arriving |= {"new_ids": arriving["ids"], "ids": rows.array([fences[place][0] for place in places])}
                    move = self._db.queries["move"].pick(*wanted)
                    steps.append((move, params | targets | arriving))
                    result = existing(queue, await pipeline(connection, steps))
                    moved, recipients, heads, target, cut, leases = result[0]
                    if target is None:
                        raise no_queue(to)
                    if cut:
                        raise Cut(cut)
                    done.update(places[place - 1] for place in moved or ())
                    arrived.extend(((to, recipients or []), (queue, heads or [])))
                    expired.append(leases)

        if rounds:
            await self._splitting(queue, work)
        self._db.lease_expired(queue, sum(expired))
        for name, recipients in arrived:
            self._db.arrived(name, recipients)
        if change.remember is not None and done:
            self._db.listener.finished(queue)
        return await self._outcomes(queue, fences, done)

    async def clear(self, queue: str, change: Change, forget: bool = False) -> int:
        """In portions, so that no statement takes long, and in one transaction, so that it is one change."""
        params: dict[str, Any] = {"queue": queue, "now": change.now, "limit": CLEARED}

        async def work(connection: Connection) -> int:
            after: str | None = FIRST_ID
            messages = size = 0
            async with connection.transaction():
                existing(queue, await execute(connection, *self._db.step("lock_whole_queue", params)))
                while after is not None:
                    step = self._db.step("clear_some", params | {"after": after})
                    after, *removed = (await execute(connection, *step))[0]
                    messages += int(removed[0])
                    size += int(removed[1])
                totals = params | {"messages": messages, "bytes": size}
                for name in ("forget_dedup", "clear") if forget else ("clear",):
                    await execute(connection, *self._db.step(name, totals, change.keep))
            return messages

        return await self._db.connections.call(work, LONG)

    async def find(self, queue: str, ids: Sequence[str]) -> dict[str, Stored]:
        possible = [id for id in ids if rows.is_id(id)]
        params = {"queue": queue, "ids": rows.array(possible), "floors": blocks.floors(possible)}
        return {row[0]: rows.stored(queue, row)[0] for row in await self._db.some("find", params) if row[0] is not None}

    async def scan(self, queue: str, scan: Scan) -> Page:
        later = scan.status in ("leased", "delayed")
        moment, id = _cursor(scan.after, later)
        params = {
            "queue": queue,
            "after_moment": moment,
            "after_id": id,
            "floor": blocks.floor(id),
            "limit": scan.limit,
            "max_bytes": scan.max_bytes,
            "now": scan.now,
            "upto": scan.now if scan.status == "ready" else FOREVER,
            "leased": scan.status == "leased",
        }
        scanned = await self._db.some("scan_later" if later else "scan", params)
        page = [stored for row in scanned if row[6] is not None for stored in rows.stored(queue, row)]
        if len(page) == len(scanned) or not page:
            return Page(page, None)
        last = page[-1]
        return Page(page, f"{last.visible_at}.{last.message.id}" if later else last.message.id)

    async def held(self, queue: str, token: str, until: int) -> list[Stored]:
        held = await self._db.all("held", {"queue": queue, "token": escape(token), "until": until})
        return [stored for row in held for stored in rows.stored(queue, row)]

    async def counts(self, queue: str, now: int) -> Counts:
        ready, delayed, leased, size, oldest = await self._db.one("counts", {"queue": queue, "now": now})
        return Counts(ready, delayed, leased, size, None if oldest is None else oldest // 1000 * 1000)

    async def holdings(self, queue: str, now: int) -> dict[str | None, Holding]:
        found = await self._db.all("holdings", {"queue": queue, "now": now})
        return {unescape(name): Holding(count, taken_at or 0) for name, count, taken_at in found}

    async def next_visible(self, queue: str, now: int) -> int | None:
        moment: int | None = (await self._db.one("next_visible", {"queue": queue, "now": now}))[0]
        return moment

    # Inside

    async def _change(
        self, name: str, queue: str, fences: Sequence[Fence], change: Change, more: dict[str, Any]
    ) -> list[Outcome]:
        """Change messages, each under its fence, and wake consumers that may have something to take now."""
        query = self._db.queries[name].pick(*_tags("off" if change.recorded is None else change.keep, change))
        params = {"queue": queue, "now": change.now, "event": change.event} | more
        rounds = _rounds(fences)
        done: set[int] = set()
        woken: list[str | None] = []
        expired: list[int] = []

        async def change_some(connection: Connection, places: list[int]) -> None:
            ranges = blocks.ranges([fences[place] for place in places])
            kept = _kept(change, fences, places)
            result = existing(queue, await execute(connection, query, params | ranges | kept))
            whole, cut, count, changed, recipients, leases = result[0]
            if not whole:
                raise Cut(cut)
            if count == len(places):
                done.update(places)
            elif count:
                by_id = {fences[place][0]: place for place in places}
                done.update(by_id[id] for id in from_spans(changed))
            woken.extend(recipients or ())
            expired.append(leases)

        async def change_all(connection: Connection) -> None:
            done.clear()
            woken.clear()
            expired.clear()
            if len(rounds) == 1:
                await change_some(connection, rounds[0])
                return
            async with connection.transaction():
                for places in rounds:
                    await change_some(connection, places)

        if rounds:
            await self._splitting(queue, change_all)
        self._db.lease_expired(queue, sum(expired))
        self._db.arrived(queue, woken)
        return await self._outcomes(queue, fences, done)

    async def _splitting(self, queue: str, change: Callable[[Connection], Awaitable[T]]) -> T:
        """Make a change, splitting blocks of which it needs only some messages."""

        async def work(connection: Connection) -> T:
            while True:
                try:
                    return await change(connection)
                except Cut as cut:
                    if cut.ids:
                        await self._db.split(connection, queue, cut.ids, 1)

        return await self._db.connections.call(work)

    async def _outcomes(self, queue: str, fences: Sequence[Fence], done: set[int]) -> list[Outcome]:
        """The outcome of each fence; messages that were not changed are looked up."""
        if len(done) == len(fences):
            return ["done"] * len(fences)
        ids = sorted({id for place, (id, _) in enumerate(fences) if place not in done and rows.is_id(id)})
        params = {"queue": queue, "ids": rows.array(ids), "floors": blocks.floors(ids)}
        present: dict[str, bool] = {row[0]: row[1] for row in await self._db.all("present", params)}
        outcomes: list[Outcome] = []
        for place, (id, receipt) in enumerate(fences):
            if place in done:
                outcomes.append("done")
            elif id not in present:
                outcomes.append("missing")
            else:
                outcomes.append("leased" if receipt == FREE or present[id] else "stale")
        return outcomes


def _rounds(fences: Sequence[Fence], targets: Sequence[str] | None = None) -> list[list[int]]:
    """The positions of fences, in rounds that name no message twice and have one target; invalid ids are left out."""
    rounds: list[tuple[str, dict[str, int]]] = []
    for place, (id, _) in enumerate(fences):
        if rows.is_id(id):
            target = "" if targets is None else targets[place]
            if not rounds or rounds[-1][0] != target or id in rounds[-1][1]:
                rounds.append((target, {}))
            rounds[-1][1][id] = place
    return [list(places.values()) for _, places in rounds]


def _tags(keep: History, change: Change) -> tuple[str, ...]:
    """The variant of a query that changes messages."""
    return tags(keep) if change.remember is None else (*tags(keep), "results")


def _kept(change: Change, fences: Sequence[Fence], places: Sequence[int]) -> dict[str, Any]:
    """Parameters for the results of some fences."""
    if change.remember is None:
        return {}
    each = change.remember.each
    of_places = results.columns([fences[place][0] for place in places], [each[place] for place in places])
    return of_places | {"kept_until": change.remember.until}


def _cursor(after: str | None, later: bool) -> tuple[int, str]:
    if after is None:
        return -1, FIRST_ID
    moment, dot, id = after.partition(".") if later else ("0", ".", after)
    if not dot or not moment.isdigit() or int(moment) > FOREVER or not rows.is_id(id):
        raise InvalidRequest(f"after: {after!r} is not a cursor given as `next`", field="after")
    return int(moment), id
