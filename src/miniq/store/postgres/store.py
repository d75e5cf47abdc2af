"""The store contract on PostgreSQL: one statement per call, or a few in one transaction that go out together.

Nothing that is cached here is ever the truth, so several brokers may share a database. `queries.sql` has the
statements, `schema.sql` the tables, `access.py` brings them together; `parcels.py` says which messages share a row,
`claims.py` keeps claims and `stages.py` stages, `connections.py` lends the connections, `listener.py` carries wake-ups
between brokers, `rows.py` turns rows into records and `faults.py` the driver's errors into ours.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec
import psycopg

from miniq.errors import InvalidRequest, StoreUnavailable
from miniq.message import (
    Counts,
    EventName,
    History,
    HistoryPage,
    HistoryRecord,
    HistorySpan,
    Message,
    Outcome,
    Page,
    PlainBatch,
    QueueSettings,
    Status,
    Stored,
)
from miniq.store import transfer
from miniq.store.contract import FREE, Edit, Fence, Once, Room, fence_outcome, full
from miniq.store.postgres import copying, parcels, rows, schema
from miniq.store.postgres.access import (
    FIRST_ID,
    LONG,
    RETURNED,
    Row,
    Step,
    execute,
    no_queue,
    pipeline,
    tags,
    transaction,
)
from miniq.store.postgres.claims import Claims
from miniq.store.postgres.connections import Connection
from miniq.store.postgres.parcels import Cut
from miniq.store.postgres.rows import Blobs, escape
from miniq.store.postgres.stages import Stages
from miniq.store.transfer import Item, portions

T = TypeVar("T")
log = logging.getLogger("miniq.store.postgres")
FULL = "MQ001"
"""What the function `refuse_full` raises."""
FOREVER = 2**63 - 1
DUMPED = 200
"""Messages read in one statement while everything is copied."""
NUMBERED = 10_000
"""Rows of history that get their offsets in one transaction."""
HISTORY_BYTES = 16 * 1024 * 1024
"""A page of history takes no more rows past this."""
PAUSES = (0.002, 0.005, 0.01)
"""Seconds between looks at a line in which there is nothing but parcels that others have just now, perhaps to split
them."""
REMAINS = 600 * 1_000_000
"""How long the traces of a deleted queue are watched: a call that was under way may still add a row."""


class PostgresStore(Claims, Stages):
    """A schema in a database; see `Store` for what each method promises."""

    shared = True

    async def open(self) -> None:
        try:
            await self._connections.call(self._prepare, LONG)
        except BaseException:
            await self._connections.close()
            raise
        self._listener.start()

    async def close(self) -> None:
        await self._listener.stop()
        await self._connections.close()

    def failure(self) -> Exception | None:
        return None  # a database that is away comes back

    async def check(self) -> None:
        await self._all("revision", {})

    # Queues

    async def queues(self) -> dict[str, QueueSettings]:
        found = await self._all("queues", {})
        return {name: msgspec.json.decode(settings, type=QueueSettings) for name, settings in found}

    async def save_queue(self, name: str, settings: QueueSettings) -> None:
        await self._all("save_queue", {"queue": name, "settings": _json(settings)})
        self._listener.changed()

    async def change_queue(self, name: str, was: QueueSettings | None, settings: QueueSettings) -> bool:
        params = {"queue": name, "settings": _json(settings)}

        async def change(connection: Connection) -> bool:
            if was is None:
                return bool(await execute(connection, *self._step("create_queue", params)))
            async with connection.transaction():
                # Compared as records: those of an earlier version lack fields that have defaults now.
                found = await execute(connection, *self._step("lock_settings", params))
                if not found or msgspec.json.decode(found[0][0], type=QueueSettings) != was:
                    return False
                await execute(connection, *self._step("save_queue", params))
                return True

        done = await self._connections.call(change)
        if done:
            self._listener.changed()
        return done

    async def delete_queue(self, name: str) -> bool:
        done = await self._all("delete_queue", {"queue": name})
        self._listener.changed()
        return bool(done)

    async def records(self, kind: str) -> dict[str, bytes]:
        return dict(await self._all("records", {"kind": kind}))

    async def save_record(self, kind: str, name: str, value: bytes | None) -> None:
        params = {"kind": kind, "name": escape(name), "value": value}
        await self._all("drop_record" if value is None else "save_record", params)
        self._listener.changed()

    async def revision(self) -> int:
        return int((await self._all("revision", {}))[0][0])

    async def last_id(self) -> str:
        found = await self._all("last_id", {})
        return str(found[0][0]) if found else ""

    # Messages

    async def put(
        self,
        messages: Sequence[Message],
        *,
        now: int,
        dedup_until: int,
        room: Room | None,
        keep: History,
        call: Once | None = None,
    ) -> list[str]:
        parcel = messages if isinstance(messages, PlainBatch) else parcels.parcel_of(messages)
        if parcel is not None and room is None:
            return await self._put_parcel(parcel, now, keep, call)
        return await self._put_each(messages, now, dedup_until, room, keep, call)

    async def _put_parcel(self, parcel: PlainBatch, now: int, keep: History, call: Once | None) -> list[str]:
        """Messages that are alike but for id and body, and ask for nothing special."""
        queue, ids = parcel.queue, parcel.ids
        params = parcels.columns(parcel) | {
            "queue": queue,
            "each_body": Blobs(parcel.bodies) if keep == "full" else None,
            "sent_at": parcel.sent_at,
            "due_at": parcel.due_at,
            "rank": -parcel.priority,
            "count": len(ids),
            "bytes": parcel.size,
            "last_id": max(ids),
            "now": now,
            "full": keep == "full",
            "content_type": parcel.content_type,
        }
        wanted = tags(keep)
        if call is not None:
            params |= {"call": escape(call.name), "given": rows.pack_ids(ids), "call_until": call.until}
            wanted = (*wanted, "call")
        query = self._queries["put_plain"].pick(*wanted)
        found = await self._connections.call(lambda connection: execute(connection, query, params))
        if not found:
            raise no_queue(queue)
        if not found[0][1]:  # the call stands already
            given = await self._all("call_ids", params)
            if not given:
                raise StoreUnavailable("store: the queue was deleted just now; try again")
            return rows.unpack_ids(given[0][0])
        self._ready(queue, None, len(ids))
        return list(ids)

    async def _put_each(
        self,
        messages: Sequence[Message],
        now: int,
        dedup_until: int,
        room: Room | None,
        keep: History,
        call: Once | None,
    ) -> list[str]:
        """Messages that are not alike, or that may be refused or known already."""
        queue = messages[0].queue
        names: dict[str, str] = {}
        for message in messages:
            if message.dedup_id is not None:
                names.setdefault(message.dedup_id, message.id)
        groups = sorted({message.group for message in messages if message.group is not None})
        params = _columns(messages) | {
            "queue": queue,
            "now": now,
            "full": keep == "full",
            "dedups": [escape(message.dedup_id) for message in messages],
            "call": None if call is None else escape(call.name),
            "given": rows.pack_ids([message.id for message in messages]),
            "max_length": 0 if room is None else room.messages,
            "max_bytes": 0 if room is None else room.bytes,
        }
        steps: list[Step] = []
        if room is not None:
            steps.append(self._step("lock_queue", {"queue": queue}))
        if call is not None:
            steps.append(self._step("claim_call", params | {"call_until": call.until}))
        if names:
            claim = {"names": [escape(name) for name in names], "firsts": list(names.values())}
            steps.append(self._step("claim_dedup", params | claim | {"dedup_until": dedup_until}))
        if groups:
            steps.append(self._step("lock_groups", {"queue": queue, "groups": [escape(group) for group in groups]}))
        steps.append(self._step("put", params, keep))

        async def put(connection: Connection) -> list[Row]:
            if call is None or not names:
                return await transaction(connection, steps)
            async with connection.transaction():
                found = await pipeline(connection, steps)
                if found and rows.unpack_ids(found[0][0]) != [message.id for message in messages]:
                    await execute(connection, *self._step("record_call", params | {"answer": found[0][0]}))
                return found

        try:
            found = await self._connections.call(put)
        except psycopg.DatabaseError as error:
            if error.sqlstate != FULL or room is None:
                raise
            held, size, more, more_bytes = map(int, (error.diag.message_primary or "").split())
            raise full(room, queue, held, size, more, more_bytes) or error from None
        if not found:
            raise no_queue(queue)
        answer, arrived = found[0]
        self._arrived(queue, arrived)
        return rows.unpack_ids(answer)

    async def take(
        self,
        queue: str,
        *,
        limit: int,
        max_bytes: int,
        now: int,
        until: int,
        token: str,
        consumer: str | None,
        keep: History,
    ) -> list[Stored]:
        params = {
            "queue": queue,
            "limit": limit,
            "max_bytes": max_bytes,
            "now": now,
            "until": until,
            "token": token,
            "consumer": escape(consumer),
        }
        query = self._queries["take" if consumer is None else "take_own"].pick(*tags(keep))

        async def take(connection: Connection) -> list[Row]:
            look, pauses = True, iter(PAUSES)
            while True:
                found = await execute(connection, query, params | {"look": look})
                said = found[0][8] if found else None
                if said == "expired":
                    back = {"queue": queue, "now": now, "limit": RETURNED}
                    look = (await execute(connection, *self._step("return_expired", back)))[0][0] == RETURNED
                elif said == "locked" and (pause := next(pauses, None)) is not None:
                    await asyncio.sleep(pause)
                elif said is not None and said.startswith("cut"):
                    _, id, step = said.split()
                    await self._split(connection, queue, [id], int(step))
                else:
                    return found

        found = await self._connections.call(take)
        if not found:
            raise no_queue(queue)
        if found[0][0] is None:
            return []
        return [
            Stored(message, until, row[4], token, consumer) for row in found for message in rows.messages(queue, row)
        ]

    async def drop(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
    ) -> list[Outcome]:
        params = {"queue": queue, "now": now, "event": event, "reason": reason}
        outcomes, heads = await self._change("drop", queue, fences, params, keep)
        self._arrived(queue, heads)
        return outcomes

    async def reschedule(
        self,
        queue: str,
        fences: Sequence[Fence],
        *,
        now: int,
        visible_at: int,
        release: bool,
        event: EventName | None,
        keep: History,
    ) -> list[Outcome]:
        params = {"queue": queue, "now": now, "visible_at": visible_at, "release": release, "event": event}
        outcomes, back = await self._change("reschedule", queue, fences, params, keep if event is not None else "off")
        self._arrived(queue, back)
        return outcomes

    async def edit(self, queue: str, fence: Fence, edit: Edit, *, now: int, keep: History) -> Outcome:
        id, receipt = fence
        if not rows.is_id(id):
            await self.find(queue, FIRST_ID)
            return "missing"

        async def change(connection: Connection) -> tuple[Outcome, list[Row]]:
            async with connection.transaction():
                asked = {"queue": queue, "id": id, "floor": parcels.floor(id)}
                found = await execute(connection, *self._step("lock_message", asked))
                if not found:
                    raise no_queue(queue)
                shelf, count, *row = found[0]
                old = None if row[0] is None else rows.stored(queue, row)[0]
                outcome = fence_outcome(old, receipt, now)
                if outcome != "done" or old is None:
                    return outcome, []
                if count == 1:
                    new = edit.apply(old.message)
                    params = {
                        "shelf": shelf,
                        "queue": queue,
                        "id": id,
                        "now": now,
                        "full": keep == "full",
                        "due_at": new.due_at,
                        "rank": -new.priority,
                        "size": new.size,
                        "old_size": old.message.size,
                        "about": rows.about(new),
                        "body": new.body,
                        "content_type": new.content_type,
                        "reset": edit.visible_at is not None,
                    }
                    return outcome, await execute(connection, *self._step("edit", params, keep))
            raise Cut([old.message.id])

        outcome, found = await self._splitting(queue, change)
        if found and edit.visible_at is not None:
            self._arrived(queue, found[0])
        return outcome

    async def move(
        self,
        queue: str,
        moves: Sequence[tuple[Fence, Message]],
        *,
        now: int,
        event: EventName,
        reason: str | None,
        keep: History,
        keep_to: History,
    ) -> list[Outcome]:
        fences = [fence for fence, _ in moves]
        params = {"queue": queue, "now": now, "event": event, "reason": reason, "keep": keep, "keep_to": keep_to}
        told: History = keep if keep != "off" else keep_to
        rounds = _rounds(fences, [message.queue for _, message in moves])
        done: set[int] = set()
        arrived: list[tuple[str, list[str | None]]] = []

        async def change(connection: Connection) -> None:
            done.clear()
            arrived.clear()
            async with connection.transaction():
                for places in rounds:
                    messages = [moves[place][1] for place in places]
                    to = messages[0].queue
                    asked = {
                        "to": to,
                        "receipts": [escape(fences[place][1]) for place in places],
                        "floors": parcels.floors([message.id for message in messages]),
                    }
                    groups = sorted({message.group for message in messages if message.group is not None})
                    steps = []
                    if groups:
                        names = [escape(group) for group in groups]
                        steps.append(self._step("lock_groups", {"queue": to, "groups": names}))
                    steps.append(self._step("move", params | asked | _columns(messages), told))
                    found = await pipeline(connection, steps)
                    if not found:
                        raise no_queue(queue)
                    moved, recipients, heads, target, cut = found[0]
                    if target is None:
                        raise no_queue(to)
                    if cut:
                        raise Cut(cut)
                    done.update(places[place - 1] for place in moved or ())
                    arrived.extend(((to, recipients or []), (queue, heads or [])))

        if rounds:
            await self._splitting(queue, change)
        for name, recipients in arrived:
            self._arrived(name, recipients)
        return await self._outcomes(queue, fences, done)

    async def clear(self, queue: str, *, now: int, keep: History) -> int:
        params = {"queue": queue, "now": now}
        steps = [self._step("lock_whole_queue", params), self._step("clear", params, keep)]
        found = await self._connections.call(lambda connection: transaction(connection, steps), LONG)
        if not found:
            raise no_queue(queue)
        return int(found[0][0])

    async def find(self, queue: str, id: str) -> Stored | None:
        if not rows.is_id(id):
            id = FIRST_ID
        row = await self._one("find", {"queue": queue, "id": id, "floor": parcels.floor(id)}, queue)
        return None if row[0] is None else rows.stored(queue, row)[0]

    async def scan(
        self, queue: str, *, status: Status | None, after: str | None, limit: int, max_bytes: int, now: int
    ) -> Page:
        later = status in ("leased", "delayed")
        moment, id = _cursor(after, later)
        params = {
            "queue": queue,
            "after_moment": moment,
            "after_id": id,
            "floor": parcels.floor(id),
            "limit": limit,
            "max_bytes": max_bytes,
            "now": now,
            "upto": now if status == "ready" else FOREVER,
            "leased": status == "leased",
        }
        found = await self._all("scan_later" if later else "scan", params)
        if not found:
            raise no_queue(queue)
        page = [stored for row in found if row[6] is not None for stored in rows.stored(queue, row)]
        if len(page) == len(found) or not page:
            return Page(page, None)
        last = page[-1]
        return Page(page, f"{last.visible_at}.{last.message.id}" if later else last.message.id)

    async def held(self, token: str) -> list[Stored]:
        found = await self._all("held", {"token": escape(token)})
        return [stored for row in found for stored in rows.stored(row[11], row)]

    async def counts(self, queue: str, *, now: int) -> Counts:
        ready, delayed, leased, size, oldest = await self._one("counts", {"queue": queue, "now": now}, queue)
        return Counts(ready, delayed, leased, size, None if oldest is None else oldest // 1000 * 1000)

    async def next_visible(self, queue: str, *, now: int) -> int | None:
        moment: int | None = (await self._one("next_visible", {"queue": queue, "now": now}, queue))[0]
        return moment

    # History and upkeep

    async def history(self, *, after: int, limit: int, queue: str | None) -> HistoryPage:
        params = {"after": min(after, FOREVER - 1), "limit": limit, "max_bytes": HISTORY_BYTES}
        found = [record for row in await self._numbered("history", params) for record in rows.records(row)]
        records: list[HistoryRecord] = []
        for record in found:
            if len(records) == limit:
                break
            if record.offset > after:
                after = record.offset
                if queue is None or record.event.queue == queue:
                    records.append(record)
        return HistoryPage(records, after)

    async def history_span(self) -> HistorySpan:
        first, last, size, oldest = (await self._numbered("history_span", {}))[0]
        return HistorySpan(first, last, size, oldest)

    async def trim_history(self, upto: int) -> None:
        steps = [self._step("lock_history", {}), self._step("trim_history", {"upto": min(upto, FOREVER)})]
        await self._connections.call(lambda connection: transaction(connection, steps), LONG)

    async def tidy(self, *, now: int, limit: int) -> int:
        removed = 0
        for name in ("tidy_dedup", "tidy_claimed", "tidy_claims", "tidy_stages"):
            removed += int((await self._all(name, {"now": now, "limit": limit}))[0][0])
        for shelf, until in await self._all("remains", {}):
            gone = 0
            for name in ("tidy_messages", "tidy_readers", "tidy_stages_of"):
                gone += int((await self._all(name, {"shelf": shelf, "limit": limit}))[0][0])
            removed += gone
            if until is None and not gone:
                await self._all("keep_remains", {"shelf": shelf, "until": now + REMAINS})
            elif until is not None and until <= now and not gone:
                await self._all("drop_remains", {"shelf": shelf})
        return removed

    async def backup(self, path: str) -> None:
        raise InvalidRequest(
            f"store: a PostgreSQL store is backed up with PostgreSQL's tools, not with a copy in {path!r}; "
            f"use `pg_dump --schema={self._address.schema}` or a base backup (docs/howto/postgresql.md)",
            field="store",
        )

    # Copying

    async def dump(self) -> AsyncIterator[list[Item]]:
        async for portion in portions(self._items()):
            yield portion

    async def _items(self) -> AsyncIterator[Item]:
        queues = await self.queues()
        for name, settings in queues.items():
            yield transfer.Queue(name, settings)
            if await self.stages(name, now=0):
                raise transfer.no_stages(name)
            for group, epoch, acked, last in await self._all("dump_readers", {"queue": name}):
                if acked < last:
                    raise transfer.no_held_claims(name, rows.unescape(group) or "", last - acked)
                yield transfer.Readers(name, rows.unescape(group) or "", epoch, last)
        for kind, name, value in await self._all("all_records", {}):
            if kind != transfer.MARK:
                yield transfer.Record(kind, rows.unescape(name) or "", value)
        yield transfer.LastId(await self.last_id())
        for queue in queues:
            for blocked in (False, True):
                after = FIRST_ID
                while found := await self._all(
                    "dump_messages", {"queue": queue, "after": after, "blocked": blocked, "limit": DUMPED}
                ):
                    for row in found:
                        for item in copying.saved(queue, row):
                            yield item
                    after = found[-1][0]
            for row in await self._all("dump_dedup", {"queue": queue}):
                yield copying.dedup(queue, row)
        offset = (await self.history_span()).first
        yield transfer.HistoryStart(offset)
        while records := (await self.history(after=offset - 1, limit=1000, queue=None)).records:
            yield transfer.Events(offset, [record.event for record in records])
            offset = records[-1].offset + 1

    async def load(self, items: Sequence[Item], *, now: int) -> None:
        for item in items:
            if isinstance(item, transfer.Queue):
                await self.save_queue(item.name, item.settings)
            elif isinstance(item, transfer.Record):
                await self.save_record(item.kind, item.name, item.value)
        steps = [self._step(name, params) for name, params in copying.steps(items, _columns)]
        if steps:
            await self._connections.call(lambda connection: transaction(connection, steps), LONG)

    # Inside

    async def _prepare(self, connection: Connection) -> None:
        await schema.prepare(connection, self._address)
        row = await (await connection.execute("SHOW fsync")).fetchone()
        if self._durable and row is not None and row[0] == "off":
            log.warning("PostgreSQL runs with fsync = off: what is confirmed may be lost with the machine's power")

    async def _change(
        self, name: str, queue: str, fences: Sequence[Fence], params: dict[str, Any], keep: History
    ) -> tuple[list[Outcome], list[str | None]]:
        """Change messages, each on its fence: what became of each, and recipients who may look again."""
        query = self._queries[name].pick(*tags(keep))
        rounds = _rounds(fences)
        done: set[int] = set()
        woken: list[str | None] = []

        async def change(connection: Connection, places: list[int]) -> None:
            asked = parcels.asked([fences[place] for place in places])
            found = await execute(connection, query, params | asked)
            if not found:
                raise no_queue(queue)
            whole, cut, count, changed, recipients = found[0]
            if not whole:
                raise Cut(cut)
            if count == len(places):
                done.update(places)
            elif count:
                by_id = {fences[place][0]: place for place in places}
                done.update(by_id[id] for id in rows.unpack_ids(changed))
            woken.extend(recipients or ())

        async def change_all(connection: Connection) -> None:
            done.clear()
            woken.clear()
            if len(rounds) == 1:
                await change(connection, rounds[0])
                return
            async with connection.transaction():
                for places in rounds:
                    await change(connection, places)

        if rounds:
            await self._splitting(queue, change_all)
        return await self._outcomes(queue, fences, done), woken

    async def _splitting(self, queue: str, change: Callable[[Connection], Awaitable[T]]) -> T:
        """Do a change, after parcels of which it needs only some messages are split."""

        async def work(connection: Connection) -> T:
            while True:
                try:
                    return await change(connection)
                except Cut as cut:
                    if cut.ids:
                        await self._split(connection, queue, cut.ids, 1)

        return await self._connections.call(work)

    async def _outcomes(self, queue: str, fences: Sequence[Fence], done: set[int]) -> list[Outcome]:
        """What became of each: those that were not changed are looked up."""
        if len(done) == len(fences):
            return ["done"] * len(fences)
        ids = sorted({id for place, (id, _) in enumerate(fences) if place not in done and rows.is_id(id)})
        found = await self._all("present", {"queue": queue, "ids": rows.array(ids), "floors": parcels.floors(ids)})
        present: dict[str, bool] = {row[0]: row[1] for row in found}
        outcomes: list[Outcome] = []
        for place, (id, receipt) in enumerate(fences):
            if place in done:
                outcomes.append("done")
            elif id not in present:
                outcomes.append("missing")
            else:
                outcomes.append("leased" if receipt == FREE or present[id] else "stale")
        return outcomes

    async def _numbered(self, name: str, params: dict[str, Any]) -> list[Row]:
        """Read history after all that is committed has got its offsets."""

        async def read(connection: Connection) -> tuple[int, list[Row]]:
            async with connection.transaction():
                await execute(connection, *self._step("lock_history", {}))
                numbered = await execute(connection, *self._step("number_history", {"limit": NUMBERED}))
                return int(numbered[0][0]), await execute(connection, *self._step(name, params))

        while True:
            numbered, found = await self._connections.call(read)
            if numbered < NUMBERED:
                return found


def _columns(messages: Sequence[Message]) -> dict[str, Any]:
    return {
        "ids": rows.array([message.id for message in messages]),
        "sent": rows.array([message.sent_at for message in messages]),
        "due": rows.array([message.due_at for message in messages]),
        "sizes": rows.array([message.size for message in messages]),
        "ranks": rows.array([-message.priority for message in messages]),
        "recipients": [escape(message.recipient) for message in messages],
        "groups": [escape(message.group) for message in messages],
        "abouts": [rows.about(message) for message in messages],
        "content_types": [message.content_type for message in messages],
        "bodies": Blobs([message.body for message in messages]),
    }


def _rounds(fences: Sequence[Fence], targets: Sequence[str] | None = None) -> list[list[int]]:
    """The places of fences, in rounds that name no message twice and have one target; what cannot be an id is left
    out."""
    rounds: list[tuple[str, dict[str, int]]] = []
    for place, (id, _) in enumerate(fences):
        if rows.is_id(id):
            target = "" if targets is None else targets[place]
            if not rounds or rounds[-1][0] != target or id in rounds[-1][1]:
                rounds.append((target, {}))
            rounds[-1][1][id] = place
    return [list(found.values()) for _, found in rounds]


def _cursor(after: str | None, later: bool) -> tuple[int, str]:
    if after is None:
        return -1, FIRST_ID
    moment, dot, id = after.partition(".") if later else ("0", ".", after)
    if not dot or not moment.isdigit() or int(moment) > FOREVER or not rows.is_id(id):
        raise InvalidRequest(f"after: {after!r} is not a cursor given as `next`", field="after")
    return int(moment), id


def _json(settings: QueueSettings) -> str:
    return msgspec.json.encode(settings).decode()
