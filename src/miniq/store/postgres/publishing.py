"""Publications in PostgreSQL: rows for all queues in one statement, and what belongs to them in its transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from miniq.message import JSON, Message, PlainBatch
from miniq.store import events
from miniq.store.arguments import Publication, Stretch, Target
from miniq.store.contract import HOME, RecordChanged, no_queue
from miniq.store.decisions import (
    SiftedPublication,
    check_room,
    dedup_names,
    publication_answer,
    repeated_publication,
    sift_publication,
)
from miniq.store.postgres import blocks, rows
from miniq.store.postgres.access import Part, execute
from miniq.store.postgres.connections import Connection
from miniq.store.postgres.rows import Blobs, escape, unescape
from miniq.topic import Published


class Publishing(Part):
    """See `MessageStore.publish`."""

    async def publish(self, publication: Publication) -> Published:
        call = publication.call
        is_remembered = call is not None or bool(dedup_names(publication))
        sifted = sift_publication(publication, lambda name: None)
        if not is_remembered and not sifted.targets and publication.keep == "off" and publication.record is None:
            return Published(sifted.ids, 0)

        async def work(connection: Connection) -> tuple[Published, SiftedPublication | None]:
            async with connection.transaction():
                return await self._perform(connection, publication)

        published, added = await self._db.connections.call(work)
        if added is not None:
            for place in added.targets:
                recipients = [
                    message.recipient
                    for stretch in added.fresh
                    if place in stretch.targets
                    for message in _each(stretch.messages)
                ]
                self._db.arrived(publication.targets[place].queue, map(escape, recipients))
        return published

    async def _perform(
        self, connection: Connection, publication: Publication
    ) -> tuple[Published, SiftedPublication | None]:
        """The answer, and what was added; None if the call is repeated."""
        call, record = publication.call, publication.record
        if record is not None and not await execute(connection, *self._db.record_step(record)):
            raise RecordChanged(record)
        await self._lock_rooms(connection, publication)
        if call is not None:
            given = await self._claim(connection, publication, {call.name: ""}, call.until)
            if given:
                return repeated_publication(given[call.name], call), None
        own = sift_publication(publication, lambda name: None).brought
        standing = await self._claim(connection, publication, own, publication.dedup_until) if own else {}
        sifted = sift_publication(publication, standing.get)
        reached = sifted.targets
        for place in reached:
            await self._check_room(connection, publication.targets[place], sifted.more(place))
        published = Published(sifted.ids, len(reached))
        if call is not None:
            answer = {"queue": HOME, "call": escape(call.name), "answer": publication_answer(published, call)}
            await execute(connection, *self._db.step("record_call", answer))
        if reached:
            await self._put(connection, publication, sifted)
        await self._tell(connection, publication, sifted)
        return published, sifted

    async def _claim(
        self, connection: Connection, publication: Publication, names: dict[str, str], until: int
    ) -> dict[str, str]:
        """Record names with their answers; the answers of those that were on record already."""
        columns = {"names": [escape(name) for name in names], "given": list(names.values())}
        params = columns | {"queue": HOME, "until": until, "now": publication.now}
        claimed = {unescape(row[0]) for row in await execute(connection, *self._db.step("claim_published", params))}
        if len(claimed) == len(names):
            return {}
        known = {"queue": HOME, "names": [escape(name) for name in names if name not in claimed]}
        found = await execute(connection, *self._db.step("published", known))
        return {unescape(name) or "": ids for name, ids in found}

    async def _lock_rooms(self, connection: Connection, publication: Publication) -> None:
        """One at a time checks the limits of a queue; always in the same order."""
        for queue in sorted(target.queue for target in publication.targets if target.room is not None):
            await execute(connection, *self._db.step("lock_queue", {"queue": queue}))

    async def _check_room(self, connection: Connection, target: Target, more: tuple[int, int]) -> None:
        if target.room is not None:
            held = await execute(connection, *self._db.step("room_used", {"queue": target.queue}))
            check_room(target.room, target.queue, (int(held[0][0]), int(held[0][1])), more)

    async def _put(self, connection: Connection, publication: Publication, sifted: SiftedPublication) -> None:
        reached = sifted.targets
        targets = [publication.targets[place] for place in reached]
        fresh = [stretch for stretch in sifted.fresh if stretch.targets]
        for place, target in zip(reached, targets, strict=True):
            of_target = [stretch.first.group for stretch in fresh if place in stretch.targets]
            groups = sorted({group for group in of_target if group is not None})
            if groups:
                locked = {"queue": target.queue, "groups": [escape(group) for group in groups]}
                await execute(connection, *self._db.step("lock_groups", locked))
        more = [sifted.more(place) for place in reached]
        last_ids = [max(stretch.ids[-1] for stretch in fresh if place in stretch.targets) for place in reached]
        params = _columns(fresh, dict(zip(reached, targets, strict=True))) | {
            "queues": [target.queue for target in targets],
            "now": publication.now,
            "messages": rows.array([count for count, _ in more]),
            "bytes": rows.array([size for _, size in more]),
            "last_ids": rows.array(last_ids),
        }
        there = {row[0] for row in await execute(connection, *self._db.step("publish", params))}
        for target in targets:
            if target.queue not in there:
                raise no_queue(target.queue)

    async def _tell(self, connection: Connection, publication: Publication, sifted: SiftedPublication) -> None:
        """Add to the history."""
        common = {"now": publication.now, "reason": None, "bodies": None, "content_types": None, "targets": None}
        reached = [publication.targets[place] for place in sifted.targets]
        if publication.keep != "off" and sifted.fresh:
            event = events.published(publication, sifted.fresh, [target.queue for target in reached])
            told: dict[str, Any] = {
                "event": event.event,
                "queue": event.queue,
                "count": 1,
                "bytes": 64,
                "ids": [event.id],
            }
            told |= {"reason": event.reason, "sizes": [event.size], "messages": event.count, "targets": event.queues}
            await execute(connection, *self._db.step("tell_published", common | told))
        for place, target in zip(sifted.targets, reached, strict=True):
            if target.keep == "off":
                continue
            stretches = [stretch for stretch in sifted.fresh if place in stretch.targets]
            messages = [message for stretch in stretches for message in _each(stretch.messages)]
            sizes = [message.size for message in messages]
            told = {
                "event": "sent",
                "reason": "published",
                "queue": target.queue,
                "count": len(messages),
                "bytes": 64 * len(messages),
                "ids": [message.id for message in messages],
                "sizes": sizes,
                "messages": None,
            }
            if target.keep == "full":
                told["bytes"] = 64 * len(messages) + sum(sizes)
                told["bodies"] = [message.body for message in messages]
                told["content_types"] = [message.content_type for message in messages]
            await execute(connection, *self._db.step("tell_published", common | told))


def _each(messages: Sequence[Message]) -> Sequence[Message]:
    return list(messages)


def _columns(fresh: Sequence[Stretch], targets: dict[int, Target]) -> dict[str, Any]:
    """The rows of messages, and which queue gets which of them."""
    numbers = {place: number for number, place in enumerate(targets, 1)}
    firsts: list[str] = []
    lasts: list[str] = []
    starts: list[int] = []
    counts: list[int] = []
    wholes: list[int] = []
    ranks: list[int] = []
    recipients: list[str | None] = []
    groups: list[str | None] = []
    abouts: list[str | None] = []
    bodies: list[bytes] = []
    sizes: list[int] = []
    to: list[int] = []
    which: list[int] = []
    dues: list[int] = []
    for stretch in fresh:
        messages, before = stretch.messages, len(firsts)
        if isinstance(messages, PlainBatch):
            own = [len(body) for body in messages.bodies]
            is_usual = messages.content_type == JSON and messages.topic is None
            about = None if is_usual else rows.about(messages[0])
            for some in blocks.cut(messages.ids, own):
                firsts.append(messages.ids[some.start])
                lasts.append(messages.ids[some.stop - 1] if len(some) > 1 else "NULL")
                starts.append(len(sizes) + some.start + 1)
                counts.append(len(some))
                wholes.append(sum(own[some.start : some.stop]))
                ranks.append(-messages.priority)
                recipients.append(None)
                groups.append(None)
                abouts.append(about)
                bodies.append(b"".join(messages.bodies[some.start : some.stop]))
            sizes += own
        else:
            for message in messages:
                firsts.append(message.id)
                lasts.append("NULL")
                starts.append(1)
                counts.append(1)
                wholes.append(message.size)
                ranks.append(-message.priority)
                recipients.append(escape(message.recipient))
                groups.append(escape(message.group))
                abouts.append(rows.about(message))
                bodies.append(message.body)
        for place in stretch.targets:
            own_rows = range(before + 1, len(firsts) + 1)
            to += [numbers[place]] * len(own_rows)
            which += own_rows
            dues += [stretch.due_at(targets[place])] * len(own_rows)
    return {
        "firsts": rows.array(firsts),
        "lasts": rows.array(lasts),
        "starts": rows.array(starts),
        "counts": rows.array(counts),
        "wholes": rows.array(wholes),
        "ranks": rows.array(ranks),
        "recipients": recipients,
        "groups": groups,
        "abouts": abouts,
        "bodies": Blobs(bodies),
        "sizes": rows.array(sizes),
        "to": rows.array(to),
        "rows": rows.array(which),
        "dues": rows.array(dues),
    }
