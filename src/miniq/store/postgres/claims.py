"""Claims in PostgreSQL: calls lock the group's row, so readers at several brokers wait for each other.

Making a claim leases its messages and copies them, numbered, to `claimed`, from which it is read before and after its
ack. A claim is made in one transaction, in steps that each continue where the previous one ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from msgspec.structs import replace

from miniq.batch import Claim, ClaimGroup, Portion
from miniq.message import Message, Stored
from miniq.store.arguments import Change, NextClaim, Places
from miniq.store.contract import UNFIT, Claimed, ClaimStore
from miniq.store.decisions import Budget, check_reader, claim_name, no_claim, plain_batch, plan_claim
from miniq.store.postgres import rows
from miniq.store.postgres.access import FIRST_ID, LONG, RETURNED, Part, Row, execute, existing, pipeline
from miniq.store.postgres.connections import Connection
from miniq.store.postgres.rows import escape, unescape

FIRST_STEP, STEP = 1000, 10_000
"""Messages examined per statement. The first step is small, since large messages may fill a claim at once."""
PAGE = 5000
"""Messages of a claim read per statement."""
LOWEST = -(2**15)
MOST = 2**63 - 1


class Claims(Part, ClaimStore):
    """See `ClaimStore`."""

    async def open(self, queue: str, group: str, id: str = "") -> ClaimGroup:
        params = {"queue": queue, "group": escape(group), "uid": id}
        epoch, acked, last, uid = await self._db.one("open_claims", params)
        return ClaimGroup(group, epoch, acked, last, id=uid)

    async def next(self, queue: str, group: str, asked: NextClaim) -> Claimed:
        params = {
            "queue": queue,
            "group": escape(group),
            "number": asked.number,
            "now": asked.now,
            "keep_until": asked.keep_until,
            "max_bytes": asked.max_bytes,
            "since": asked.fit.since,
            "most": min(asked.fit.receives, MOST),
            "token": escape(claim_name(group, asked.number)),
            "consumer": escape(asked.consumer),
        }

        async def work(connection: Connection) -> tuple[Claimed, list[str | None], int]:
            async with connection.transaction():
                shelf, id, state, following = await self._locked(connection, params, group, add=True)
                known = params | {"shelf": shelf, "readers": id, "acked": state.acked, "upto": asked.after}
                if asked.after > state.acked:
                    held = await execute(connection, *self._db.step("held_claims", known))
                    state = replace(state, claims=[_claim(row) for row in held])
                plan = plan_claim(state, following, asked)
                acked = 0
                heads: list[str | None] = []
                if plan.ack:
                    (row,) = await execute(connection, *self._db.step("ack_claims", known, asked.keep))
                    acked, heads = row[0], row[1] or []
                if not plan.make:
                    return Claimed(plan.give, state.epoch, acked=acked), heads, 0
                made, unfit, expired = await self._make(connection, known, asked)
                return Claimed(made, state.epoch, made is not None, acked, unfit), heads, expired

        done, heads, expired = await self._db.connections.call(work, LONG)
        self._db.lease_expired(queue, expired)
        self._db.arrived(queue, heads)
        return done

    async def find(self, queue: str, group: str, number: int, now: int) -> Claim:
        row = await self._db.one("readers", _key(queue, group, number, now))
        _, _, state, claim = _parse(group, row)
        if claim is None:
            raise no_claim(state, number)
        return claim

    async def read(self, queue: str, group: str, number: int, places: Places) -> list[Portion]:
        claimed: list[Row] = []
        left, place = places.max_bytes, places.start
        while place < places.stop:
            limits = {"start": place, "stop": places.stop, "limit": PAGE, "max_bytes": left}
            page = await self._db.all("claimed", _key(queue, group, number, places.now) | limits)
            claimed += page
            if len(page) < PAGE:
                break
            left -= sum(row[10] for row in page if row[8] >= places.start)
            place = page[-1][8] + page[-1][9]
        if not claimed:
            await self.find(queue, group, number, places.now)
        return list(_portions(queue, claimed, places.start, _end(claimed, places)))

    async def mark(self, queue: str, group: str, number: int, reader: str) -> None:
        await self._db.all("mark_claim", _key(queue, group, number, 0) | {"reader": escape(reader)})

    async def release(self, queue: str, group: str, epoch: int | None, change: Change) -> int:
        params = _key(queue, group, 0, change.now)

        async def work(connection: Connection) -> list[Row]:
            async with connection.transaction():
                shelf, id, state, _ = await self._locked(connection, params, group)
                check_reader(state, epoch, 0)
                if state.acked == state.last:
                    return []
                known = params | {"shelf": shelf, "readers": id, "acked": state.acked}
                return await execute(connection, *self._db.step("release_claims", known, change.keep))

        back = await self._db.connections.call(work, LONG)
        for recipient, count in back:
            self._db.ready(queue, unescape(recipient), count or 1)
        return sum(count for _, count in back)

    async def groups(self, queue: str, now: int) -> list[ClaimGroup]:
        joined = await self._db.some("claim_groups", {"queue": queue, "now": now})
        groups: list[ClaimGroup] = []
        for (name, epoch, acked, last, uid), claimed in groupby(joined, lambda row: row[:5]):
            if name is not None:
                claims = [_claim(row[5:]) for row in claimed if row[5] is not None]
                groups.append(ClaimGroup(unescape(name) or "", epoch, acked, last, claims, uid))
        return groups

    async def all_groups(self, now: int, held: bool = False) -> dict[str, list[ClaimGroup]]:
        joined = await self._db.all("all_claim_groups", {"now": now, "held": held})
        found: dict[str, list[ClaimGroup]] = {}
        for (queue, name, epoch, acked, last, uid), claimed in groupby(joined, lambda row: row[:6]):
            claims = [_claim(row[6:]) for row in claimed if row[6] is not None]
            found.setdefault(queue, []).append(ClaimGroup(unescape(name) or "", epoch, acked, last, claims, uid))
        return found

    # Inside

    async def _locked(
        self, connection: Connection, params: dict[str, Any], group: str, add: bool = False
    ) -> tuple[int, int | None, ClaimGroup, Claim | None]:
        """Lock a group until the end of the transaction, creating it if `add`: the ids of the queue and the group, its
        state, and the requested claim."""
        steps = [self._db.step("lock_readers", params), self._db.step("readers", params)]
        result = await pipeline(connection, steps)
        if add and result and result[0][1] is None:
            result = await pipeline(connection, [self._db.step("add_readers", params), *steps])
        return _parse(group, existing(params["queue"], result)[0])

    async def _make(
        self, connection: Connection, params: dict[str, Any], asked: NextClaim
    ) -> tuple[Claim | None, list[Stored], int]:
        """Make a claim, None if there are no messages for it; the unfit messages that were skipped; and the number of
        expired leases."""
        queue, now = params["queue"], params["now"]
        back = self._db.step("return_due", {"queue": queue, "now": now, "limit": RETURNED})
        while (await execute(connection, *back))[0][0] >= RETURNED:
            pass
        name = "claim" if params["consumer"] is None else "claim_own"
        unfit: list[Stored] = []
        count = size = expired = 0
        step, rank, id = FIRST_STEP, LOWEST, FIRST_ID
        while True:
            most = min(step, asked.limit - count)
            so_far = {
                "count": count,
                "bytes": size,
                "unfit": UNFIT - len(unfit),
                "limit": most,
                "after_rank": rank,
                "after_id": id,
            }
            result = await execute(connection, *self._db.step(name, params | so_far, asked.keep))
            cut, ready, met, more, more_bytes = result[0][:5]
            if cut:  # nothing was taken
                block, fits = cut.split()
                await self._db.split(connection, queue, [block], int(fits))
                continue
            rank, id, leases = result[0][5:8]
            unfit += [stored for row in result if row[8] is not None for stored in rows.stored(queue, row[8:])]
            expired += leases
            count += more
            size += more_bytes
            if ready < most or met < ready or count == asked.limit or len(unfit) >= UNFIT:
                break
            step = STEP
        if not count:
            return None, unfit, expired
        await execute(connection, *self._db.step("add_claim", params | {"count": count, "bytes": size}))
        return Claim(params["number"], count, size, now), unfit, expired


def _key(queue: str, group: str, number: int, now: int) -> dict[str, Any]:
    return {"queue": queue, "group": escape(group), "number": number, "now": now}


def _parse(group: str, row: Row) -> tuple[int, int | None, ClaimGroup, Claim | None]:
    """A row of the query `readers`."""
    shelf, id, epoch, acked, last, uid = row[:6]
    readers = ClaimGroup(group, epoch, acked, last, id=uid) if id is not None else ClaimGroup(group)
    return shelf, id, readers, None if row[6] is None else _claim(row[6:])


def _claim(row: Row) -> Claim:
    number, messages, bytes, made_at, acked_at, reader = row
    return Claim(number, messages, bytes, made_at, acked_at, unescape(reader))


def _portions(queue: str, claimed: Sequence[Row], start: int, end: int) -> Iterator[Portion]:
    """The messages from `start` to `end` in rows of `claimed`; neighbours that differ only in id and body become
    blocks."""
    for _, alike in groupby(claimed, lambda row: row[1:6]):
        messages: list[Message] = []
        receives = 0
        for row in alike:
            receives, place = row[4], row[8]
            messages += rows.messages(queue, row)[max(0, start - place) : max(0, end - place)]
        if messages:
            yield Portion(plain_batch(messages) or messages, receives)


def _end(claimed: Sequence[Row], places: Places) -> int:
    """The end of the messages in rows of `claimed` that fit."""
    budget = Budget(places.stop - places.start, places.max_bytes)
    for row in claimed:
        for place, size in enumerate(row[7] or [row[10]], row[8]):
            if place >= places.start and not budget.admits(size):
                return place
    return places.stop
