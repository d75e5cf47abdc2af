"""Claims in PostgreSQL: the group's row is locked, so readers of several brokers wait for each other.

Making a claim leases its messages and copies them, numbered, to `claimed`; from there it is read, before and after
its ack. A claim is made in steps, in one transaction, each of which goes on in the line where the last one ended.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from miniq.message import Claim, ClaimGroup, History, Message, Portion, Stored
from miniq.store.contract import UNFIT, Claimed, Fit, check_reader, claim_name, no_claim
from miniq.store.postgres import parcels, rows
from miniq.store.postgres.access import FIRST_ID, LONG, RETURNED, Access, Row, execute, no_queue, pipeline
from miniq.store.postgres.connections import Connection
from miniq.store.postgres.rows import escape, unescape

FIRST_STEP, STEP = 1000, 10_000
"""Messages that are looked at in one statement. The first are few, since large ones may fill a claim at once."""
PAGE = 5000
"""Messages of a claim that are read in one statement."""
LOWEST = -(2**15)
MOST = 2**63 - 1


class Claims(Access):
    """The part of the store that keeps claims."""

    async def open_claims(self, queue: str, group: str) -> ClaimGroup:
        epoch, acked, last = await self._one("open_claims", {"queue": queue, "group": escape(group)}, queue)
        return ClaimGroup(group, epoch, acked, last)

    async def claim(
        self,
        queue: str,
        group: str,
        *,
        after: int,
        epoch: int | None,
        limit: int,
        max_bytes: int,
        fit: Fit,
        consumer: str | None,
        now: int,
        keep_until: int,
        keep: History,
    ) -> Claimed:
        params = {
            "queue": queue,
            "group": escape(group),
            "number": after + 1,
            "now": now,
            "keep_until": keep_until,
            "max_bytes": max_bytes,
            "since": fit.since,
            "most": min(fit.receives, MOST),
            "token": escape(claim_name(group, after + 1)),
            "consumer": escape(consumer),
        }

        async def work(connection: Connection) -> tuple[Claimed, list[str | None]]:
            async with connection.transaction():
                shelf, id, state, there = await self._locked(connection, params, queue, group, add=True)
                check_reader(state, epoch, after)
                if limit and there is None and after < state.last:
                    raise no_claim(state, after + 1)
                known = params | {"shelf": shelf, "readers": id, "acked": state.acked, "upto": after}
                acked = 0
                heads: list[str | None] = []
                if after > state.acked:
                    (row,) = await execute(connection, *self._step("ack_claims", known, keep))
                    acked, heads = row[0], row[1] or []
                if not limit or there is not None:
                    return Claimed(there if limit else None, state.epoch, acked=acked), heads
                made, unfit = await self._make(connection, known, limit, keep)
                return Claimed(made, state.epoch, made is not None, acked, unfit), heads

        done, heads = await self._connections.call(work, LONG)
        self._arrived(queue, heads)
        return done

    async def find_claim(self, queue: str, group: str, number: int, *, now: int) -> Claim:
        row = await self._one("readers", _asked(queue, group, number, now), queue)
        _, _, state, claim = _found(group, row)
        if claim is None:
            raise no_claim(state, number)
        return claim

    async def claimed(
        self, queue: str, group: str, number: int, *, start: int, stop: int, max_bytes: int, now: int
    ) -> list[Portion]:
        found: list[Row] = []
        left, place = max_bytes, start
        while place < stop:
            asked = {"start": place, "stop": stop, "limit": PAGE, "max_bytes": left}
            some = await self._all("claimed", _asked(queue, group, number, now) | asked)
            found += some
            if len(some) < PAGE:
                break
            left -= sum(row[10] for row in some if row[8] >= start)
            place = some[-1][8] + some[-1][9]
        if not found:
            await self.find_claim(queue, group, number, now=now)
        return list(_portions(queue, found, start, _end(found, start, stop, max_bytes)))

    async def release_claims(self, queue: str, group: str, *, epoch: int | None, now: int, keep: History) -> int:
        params = _asked(queue, group, 0, now)

        async def work(connection: Connection) -> list[Row]:
            async with connection.transaction():
                shelf, id, state, _ = await self._locked(connection, params, queue, group)
                check_reader(state, epoch, 0)
                if state.acked == state.last:
                    return []
                known = params | {"shelf": shelf, "readers": id, "acked": state.acked}
                return await execute(connection, *self._step("release_claims", known, keep))

        back = await self._connections.call(work, LONG)
        for recipient, count in back:
            self._ready(queue, unescape(recipient), count)
        return sum(count for _, count in back)

    async def claim_groups(self, queue: str, *, now: int) -> list[ClaimGroup]:
        found = await self._all("claim_groups", {"queue": queue, "now": now})
        if not found:
            raise no_queue(queue)
        groups: list[ClaimGroup] = []
        for (name, epoch, acked, last), some in groupby(found, lambda row: row[:4]):
            if name is not None:
                claims = [Claim(*row[4:]) for row in some if row[4] is not None]
                groups.append(ClaimGroup(unescape(name) or "", epoch, acked, last, claims))
        return groups

    # Inside

    async def _locked(
        self, connection: Connection, params: dict[str, Any], queue: str, group: str, add: bool = False
    ) -> tuple[int, int | None, ClaimGroup, Claim | None]:
        """The ids of the queue and of a group, which nobody else changes until the end of the transaction, its state,
        and the claim that was asked for. With `add` the group is there then."""
        steps = [self._step("lock_readers", params), self._step("readers", params)]
        found = await pipeline(connection, steps)
        if add and found and found[0][1] is None:
            found = await pipeline(connection, [self._step("add_readers", params), *steps])
        if not found:
            raise no_queue(queue)
        return _found(group, found[0])

    async def _make(
        self, connection: Connection, params: dict[str, Any], limit: int, keep: History
    ) -> tuple[Claim | None, list[Stored]]:
        """Make a claim, None if there is nothing to make it from; and what was passed over."""
        queue, now = params["queue"], params["now"]
        back = self._step("return_expired", {"queue": queue, "now": now, "limit": RETURNED})
        while (await execute(connection, *back))[0][0] == RETURNED:
            pass
        name = "claim" if params["consumer"] is None else "claim_own"
        unfit: list[Stored] = []
        count = size = 0
        step, rank, id = FIRST_STEP, LOWEST, FIRST_ID
        while True:
            most = min(step, limit - count)
            so_far = {
                "count": count,
                "bytes": size,
                "unfit": UNFIT - len(unfit),
                "limit": most,
                "after_rank": rank,
                "after_id": id,
            }
            found = await execute(connection, *self._step(name, params | so_far, keep))
            cut, ready, met, more, more_bytes = found[0][:5]
            if cut:  # nothing was taken
                parcel, fits = cut.split()
                await self._split(connection, queue, [parcel], int(fits))
                continue
            rank, id = found[0][5:7]
            unfit += [stored for row in found if row[7] is not None for stored in rows.stored(queue, row[7:])]
            count += more
            size += more_bytes
            if ready < most or met < ready or count == limit or len(unfit) >= UNFIT:
                break
            step = STEP
        if not count:
            return None, unfit
        await execute(connection, *self._step("add_claim", params | {"count": count, "bytes": size}))
        return Claim(params["number"], count, size, now), unfit


def _asked(queue: str, group: str, number: int, now: int) -> dict[str, Any]:
    return {"queue": queue, "group": escape(group), "number": number, "now": now}


def _found(group: str, row: Row) -> tuple[int, int | None, ClaimGroup, Claim | None]:
    """A row of `readers`."""
    shelf, id, *state = row[:5]
    return (
        shelf,
        id,
        ClaimGroup(group, *state) if id is not None else ClaimGroup(group),
        (None if row[5] is None else Claim(*row[5:])),
    )


def _portions(queue: str, found: Sequence[Row], start: int, end: int) -> Iterator[Portion]:
    """The messages from `start` up to `end` in rows of `claimed`; neighbours that differ in id and body alone become
    parcels."""
    for _, some in groupby(found, lambda row: row[1:6]):
        messages: list[Message] = []
        receives = 0
        for row in some:
            receives, place = row[4], row[8]
            messages += rows.messages(queue, row)[max(0, start - place) : max(0, end - place)]
        if messages:
            yield Portion(parcels.parcel_of(messages) or messages, receives)


def _end(found: Sequence[Row], start: int, stop: int, max_bytes: int) -> int:
    """The place before which the messages in rows of `claimed` end that fit; at least one does."""
    total = 0
    for row in found:
        for place, size in enumerate(row[7] or [row[10]], row[8]):
            if place >= start:
                total += size
                if total > max_bytes and place > start:
                    return place
    return stop
