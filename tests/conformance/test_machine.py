"""Any store against the oracle: the same random changes, the same answers, through crashes and restarts.

`MINIQ_STEPS` sets how many steps are tried on each store (2,000 by default, 700 on a database).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

from miniq.batch import ClaimGroup, StageName
from miniq.errors import ClaimGone, ClaimUnknown
from miniq.message import SECOND, DeadLetter, EventName, History, Message, PlainBatch, QueueSettings, Stored
from miniq.result import Finished
from miniq.store.arguments import (
    Batch,
    Change,
    Edit,
    Fence,
    Fit,
    NewTime,
    NextClaim,
    Once,
    Places,
    Publication,
    Put,
    PutResult,
    Remember,
    Room,
    Scan,
    Stretch,
    Target,
    Upload,
)
from miniq.store.contract import Claimed, Store
from miniq.store.decisions import plain_batch
from miniq.store.embedded import claims, window
from miniq.store.names import publication_name
from miniq.topic import Published
from tests.conformance.pair import DATABASES, QUEUES, SETTLEMENTS, Pair, keeps, run_machine, steps
from tests.conftest import ENGINES

queues = st.sampled_from(QUEUES)
groups = st.sampled_from(["r", "s"])
batches = st.sampled_from(["1", "2", "3"])
consumers = st.sampled_from([None, None, "ann", "bob"])

OWN = ["0b2c5e0e-7f0a-4d3f-9a35-7c1a4cb41d3e", "1b2c5e0e-7f0a-4d3f-9a35-7c1a4cb41d3e"]
"""Ids of results that belong to no message."""
seconds_kept = st.sampled_from([0, 0, 2, 70])
"""How long results are kept."""
picks = st.lists(st.integers(0, 10**6), min_size=1, max_size=6)


class Machine(Pair):
    # Changes

    @rule(
        queue=queues,
        count=st.integers(1, 9),
        priority=st.sampled_from([0, 0, 0, 5, 9]),
        delay=st.sampled_from([0, 0, 0, 3, 20]),
        keep=keeps,
        room=st.sampled_from([None, None, None, Room(12, 0), Room(0, 300)]),
    )
    def send(self, queue: str, count: int, priority: int, delay: int, keep: History, room: Room | None) -> None:
        due = self.now + delay * SECOND
        messages = [
            Message(id, queue, self.now, due, b"%d" % place, priority=priority)
            for place, id in enumerate(self.ids.run(count, self.now))
        ]
        self.put(queue, messages, keep, room)

    @rule(
        queue=queues,
        count=st.integers(1, 4),
        group=st.sampled_from([None, "g", "h"]),
        recipient=st.sampled_from([None, None, "ann", "bob"]),
        dedup=st.sampled_from([None, None, "d1", "d2"]),
        delay=st.sampled_from([0, 0, 5]),
        keep=keeps,
    )
    def send_special(
        self,
        queue: str,
        count: int,
        group: str | None,
        recipient: str | None,
        dedup: str | None,
        delay: int,
        keep: History,
    ) -> None:
        due = self.now + delay * SECOND
        messages = [
            Message(
                self.ids.run(1, self.now)[0],
                queue,
                self.now,
                due,
                b"%d" % place,
                headers={"n": str(place)},
                group=group,
                recipient=recipient,
                dedup_id=dedup,
                priority=place,
            )
            for place in range(count)
        ]
        self.put(queue, messages, keep, None)

    @rule(
        parts=st.lists(
            st.tuples(
                st.sampled_from([(), (0,), (1,), (0, 1), (0, 1)]),
                st.integers(1, 9),
                st.sampled_from(
                    [{}, {}, {"group": "g"}, {"recipient": "ann"}, {"dedup_id": "d1"}, {"headers": {"h": "v"}}]
                ),
                st.sampled_from([None, None, 0, 5]),
            ),
            min_size=1,
            max_size=3,
        ),
        priority=st.sampled_from([0, 0, 5]),
        kept=st.tuples(keeps, keeps, st.sampled_from(["off", "events"])),
        delay=st.sampled_from([0, 0, 3]),
        room=st.sampled_from([None, None, Room(12, 0)]),
        call=st.sampled_from([None, None, "c1"]),
    )
    def publish(
        self,
        parts: list[tuple[tuple[int, ...], int, dict[str, Any], int | None]],
        priority: int,
        kept: tuple[History, History, History],
        delay: int,
        room: Room | None,
        call: str | None,
    ) -> None:
        """To both queues, to one or to none, part by part."""
        stretches = []
        for targets, count, fields, own in parts:
            due = self.now + (own or 0) * SECOND
            many = 1 if fields.keys() & {"group", "recipient", "dedup_id"} else count
            messages = [
                Message(id, "", self.now, due, b"%d" % place, priority=priority, topic="t", **fields)
                for place, id in enumerate(self.ids.run(many, self.now))
            ]
            stretches.append(Stretch(plain_batch(messages) or messages, targets, own is not None))
        until = self.now + 30 * SECOND
        publication = Publication(
            topic="t",
            scope="id",
            stretches=stretches,
            targets=[Target("a", kept[0], None, delay * SECOND), Target("b", kept[1], room)],
            now=self.now,
            keep=kept[2],
            dedup_until=until,
            call=None if call is None else Once(publication_name("id", call), until, "content"),
        )
        published = self.both("messages.publish", publication)
        if isinstance(published, Published):
            for queue in QUEUES:
                self.known[queue] += [id for id in published.ids if id not in self.known[queue]]

    @rule(
        queue=queues,
        limit=st.integers(1, 12),
        seconds=st.sampled_from([0, 1, 5, 60]),
        consumer=consumers,
        most=st.sampled_from([10**6, 10**6, 3]),
        age=st.sampled_from([10**6, 30]),
        receives=st.sampled_from([10**6, 2]),
        in_flight=st.sampled_from([0, 0, 0, 1, 4]),
        group_batch=st.booleans(),
        keep=keeps,
    )
    def take(
        self,
        queue: str,
        limit: int,
        seconds: int,
        consumer: str | None,
        most: int,
        age: int,
        receives: int,
        in_flight: int,
        group_batch: bool,
        keep: History,
    ) -> None:
        fit = Fit(self.now - age * SECOND, receives)
        self.lease(queue, limit, seconds, consumer, keep, most=most, fit=fit, in_flight=in_flight, batch=group_batch)

    @rule(
        queue=queues,
        group=groups,
        back=st.sampled_from([0, 0, 0, 1, 2, -1]),
        epoch=st.sampled_from([None, None, 0, -1]),
        limit=st.sampled_from([0, 1, 5, 30]),
        most=st.sampled_from([10**6, 10**6, 3]),
        age=st.sampled_from([10**6, 10**6, 30]),
        receives=st.sampled_from([10**6, 10**6, 2]),
        consumer=consumers,
        kept=st.sampled_from([0, 5, 100]),
        keep=keeps,
        reader=st.sampled_from([None, None, "ann", "bob"]),
        fetched=st.booleans(),
    )
    def claim(
        self,
        queue: str,
        group: str,
        back: int,
        epoch: int | None,
        limit: int,
        most: int,
        age: int,
        receives: int,
        consumer: str | None,
        kept: int,
        keep: History,
        reader: str | None = None,
        fetched: bool = True,
    ) -> None:
        state = self.group(queue, group)
        if fetched:
            self.both("claims.mark", queue, group, state.last, reader or "")
        asked = NextClaim(
            after=max(0, state.last - back),
            epoch=None if epoch is None else state.epoch + epoch,
            limit=limit,
            max_bytes=most,
            fit=Fit(self.now - age * SECOND, receives),
            consumer=consumer,
            reader=reader,
            now=self.now,
            keep_until=self.now + kept * SECOND,
            keep=keep,
        )
        answer = self.both("claims.next", queue, group, asked)
        if isinstance(answer, Claimed) and answer.made and answer.claim is not None:
            for stored in self.content(self.oracle, queue, group, answer.claim.number, 0, 10**6, 10**9):
                self.receipts.setdefault(stored.message.id, []).append(stored.receipt or "")
        self.read_claims(queue, group, 1, 5, most)

    @rule(queue=queues, group=groups, count=st.integers(1, 30), most=st.sampled_from([10**6, 4]), keep=keeps)
    def send_and_claim(self, queue: str, group: str, count: int, most: int, keep: History) -> None:
        """What a stream does; the one before is acked, and stays readable."""
        self.send(queue, count, count % 3, 0, keep, None)
        self.claim(queue, group, 0, None, 20, most, 10**6, 10**6, None, 50, keep)
        self.claim(queue, group, 1, None, 20, most, 10**6, 10**6, None, 50, keep)

    @rule(queue=queues, limit=st.integers(2, 6), seconds=st.sampled_from([1, 5, 60]), keep=keeps)
    def send_and_take_a_batch(self, queue: str, limit: int, seconds: int, keep: History) -> None:
        """Several messages of a group are in flight."""
        self.send_special(queue, 3, "g", None, None, 0, keep)
        self.take(queue, limit, seconds, None, 10**6, 10**6, 10**6, 0, True, keep)

    @rule(queue=queues, group=groups)
    def open_claims(self, queue: str, group: str) -> None:
        self.both("claims.open", queue, group)

    @rule(queue=queues, group=groups, epoch=st.sampled_from([None, 0, -1]), keep=keeps)
    def release_claims(self, queue: str, group: str, epoch: int | None, keep: History) -> None:
        given = None if epoch is None else self.group(queue, group).epoch + epoch
        self.both("claims.release", queue, group, given, Change(self.now, keep))

    @rule(
        queue=queues, group=groups, start=st.integers(0, 8), count=st.integers(0, 9), most=st.sampled_from([2, 10**6])
    )
    def read_claims(self, queue: str, group: str, start: int, count: int, most: int) -> None:
        self.both("claims.groups", queue, self.now)
        for number in range(self.group(queue, group).last + 2):
            self.both("claims.find", queue, group, number, self.now)
            found = [
                self.content(s, queue, group, number, start, start + count, most) for s in (self.oracle, self.store)
            ]
            assert found[1] == found[0]

    def group(self, queue: str, group: str) -> ClaimGroup:
        found = self.run(self.oracle.claims.groups(queue, self.now))
        return next((state for state in found if state.group == group), ClaimGroup(group))

    def content(
        self, store: Store, queue: str, group: str, number: int, start: int, stop: int, most: int
    ) -> list[Stored]:
        try:
            places = Places(start=start, stop=stop, max_bytes=most, now=self.now)
            some = self.run(store.claims.read(queue, group, number, places))
        except (ClaimGone, ClaimUnknown):
            return []
        return [stored for portion in some for stored in portion.each(f"{group}/{number}", group)]

    @rule(
        queue=queues,
        batch=batches,
        partition=st.sampled_from(["0", "1"]),
        part=st.integers(0, 2),
        count=st.sampled_from([0, 1, 5, 140]),
        special=st.booleans(),
        plain=st.booleans(),
        ttl=st.sampled_from([20, 10**6]),
    )
    def stage(
        self, queue: str, batch: str, partition: str, part: int, count: int, special: bool, plain: bool, ttl: int
    ) -> None:
        bodies = [b"%d" % n for n in range(count)]
        messages: Sequence[Message] = PlainBatch([""] * count, queue, 0, 0, bodies, priority=part)
        if not plain:
            messages = [
                Message(
                    "",
                    queue,
                    0,
                    (n // 3 % 2) * 4 * SECOND,
                    body,
                    headers={"n": "1"} if n % 2 else None,
                    expires_at=10 * SECOND if n == 4 else None,
                    group="g" if special and n == 1 else None,
                    recipient="ann" if special and n == 2 else None,
                    dedup_id="d1" if special and n == 3 else None,
                )
                for n, body in enumerate(bodies[:5])
            ]
        upload = Upload(StageName("job", batch, partition, "0"), part, self.now, self.now + ttl * SECOND)
        self.both("stages.upload", queue, upload, messages)
        self.both("stages.list", queue, self.now)

    @rule(
        queue=queues,
        batch=batches,
        room=st.sampled_from([None, None, Room(12, 0), Room(0, 300)]),
        known=st.sampled_from([2, 1000]),
        all=st.booleans(),
        keep=keeps,
    )
    def commit_stages(self, queue: str, batch: str, room: Room | None, known: int, all: bool, keep: History) -> None:
        there = self.run(self.oracle.stages.list(queue, self.now))
        listed = [(stage.name.partition, "0") for stage in there if stage.name.batch == batch]
        before = self.run(self.oracle.last_id())
        first: list[str] = []

        def reserve(count: int) -> str:
            """The same ids for both stores."""
            if not first:
                first.append(self.ids.reserve(count, self.now))
            return first[0]

        put = Put(now=self.now, dedup_until=self.now + 30 * SECOND, room=room, keep=keep)
        some = listed if all or not listed else listed[:1]
        self.both("stages.commit", queue, Batch("job", batch, some, reserve, put, self.now + known * SECOND))
        self.both("stages.list", queue, self.now)
        page = self.run(self.oracle.messages.scan(queue, Scan(limit=10**6, max_bytes=10**9, now=self.now)))
        fresh = [stored.message.id for stored in page.messages if stored.message.id > before]
        self.known[queue] += [id for id in sorted(fresh) if id not in self.known[queue]]

    @rule(queue=queues, batch=batches)
    def discard_stages(self, queue: str, batch: str) -> None:
        self.both("stages.discard", queue, "job", batch)

    @rule(
        queue=queues,
        picked=picks,
        how=st.sampled_from(["new", "new", "old", "free", "any"]),
        keep=keeps,
        results=seconds_kept,
    )
    def drop(self, queue: str, picked: list[int], how: str, keep: History, results: int) -> None:
        fences = self.fences(queue, picked, how)
        remember = self.remember("done", fences, results)
        change = Change(self.now, keep, "acked", extra=how == "new" and len(picked) % 2, remember=remember)
        self.both("messages.drop", queue, fences, change)

    @rule(queue=queues, keep=keeps, results=seconds_kept)
    def drop_all_held(self, queue: str, keep: History, results: int) -> None:
        held = self.oracle.messages.of_token(f"t{self.tokens}")
        fences = [(stored.message.id, f"t{self.tokens}") for stored in held]
        change = Change(self.now, keep, "acked", remember=self.remember("done", fences, results))
        self.both("messages.drop", queue, fences, change)

    def remember(self, status: Literal["done", "dead"], fences: Sequence[Fence], seconds: int) -> Remember | None:
        """A result for each fence, every third without a value."""
        if not seconds:
            return None
        values = [
            None if place % 3 == 0 else b'["%s", %d]' % (id.encode(), place) for place, (id, _) in enumerate(fences)
        ]
        each = [
            Finished(status, self.now, value) if status == "done" else Finished(status, self.now, error=str(value))
            for value in values
        ]
        return Remember(each, self.now + seconds * SECOND)

    @rule(queue=queues)
    def look_for_results(self, queue: str) -> None:
        self.both("results.find", queue, [*self.known[queue], *OWN, "never"], self.now)

    @rule(
        queue=queues,
        id=st.sampled_from(OWN),
        seconds=seconds_kept,
        expected=st.sampled_from(["any", "none", "kept", "kept", "other"]),
    )
    def put_result(self, queue: str, id: str, seconds: int, expected: str) -> None:
        kept = self.run(self.oracle.results.find(queue, [id], self.now)).get(id)
        at = {"any": None, "none": 0, "kept": 1 if kept is None else kept.finished_at, "other": 1}[expected]
        finished = Finished("running" if seconds == 2 else "done", self.now, b"[%d]" % self.now) if seconds else None
        self.both("results.put", queue, id, PutResult(self.now, finished, self.now + seconds * SECOND, at))

    settle_some = rule(**SETTLEMENTS)(Pair.settle)

    @rule(
        queue=queues,
        picked=picks,
        how=st.sampled_from(["new", "new", "old", "any"]),
        seconds=st.sampled_from([0, 2, 40]),
        release=st.sampled_from(["no", "yes", "unused"]),
        keep=keeps,
    )
    def reschedule(self, queue: str, picked: list[int], how: str, seconds: int, release: str, keep: History) -> None:
        fences = list(dict.fromkeys(self.fences(queue, picked, how)))
        at = self.now + seconds * SECOND
        event: EventName | None = None if release == "no" else "released"
        to = NewTime(at, release != "no", unused=release == "unused")
        self.both("messages.reschedule", queue, fences, to, Change(self.now, keep, event))

    @rule(
        queue=queues,
        picked=picks,
        how=st.sampled_from(["new", "new", "old", "any"]),
        seconds=st.sampled_from([0, 2, 40]),
        error=st.sampled_from(["boom", "a\0b\\", "long " * 200]),
        keep=keeps,
    )
    def fail(self, queue: str, picked: list[int], how: str, seconds: int, error: str, keep: History) -> None:
        fences = list(dict.fromkeys(self.fences(queue, picked, how)))
        to = NewTime(self.now + seconds * SECOND, True, error)
        self.both("messages.reschedule", queue, fences, to, Change(self.now, keep, "failed"))

    @rule(
        queue=queues,
        pick=st.integers(0, 10**6),
        how=st.sampled_from(["new", "free", "free", "any"]),
        body=st.sampled_from([None, b"edited", b""]),
        priority=st.sampled_from([None, None, 0, 5]),
        delay=st.sampled_from([None, None, 0, 7]),
        keep=keeps,
    )
    def edit(
        self,
        queue: str,
        pick: int,
        how: str,
        body: bytes | None,
        priority: int | None,
        delay: int | None,
        keep: History,
    ) -> None:
        for fence in self.fences(queue, [pick], how):
            at = None if delay is None else self.now + delay * SECOND
            edit = Edit(body=body, priority=priority, due_at=at, headers={"e": "1"} if body else None)
            self.both("messages.edit", queue, fence, edit, Change(self.now, keep))

    @rule(
        queue=queues,
        picked=picks,
        how=st.sampled_from(["new", "free", "any"]),
        delay=st.sampled_from([0, 0, 4]),
        dead=st.sampled_from([None, "rejected", "max_receives"]),
        renamed=st.booleans(),
        keep=keeps,
        results=seconds_kept,
    )
    def move(
        self,
        queue: str,
        picked: list[int],
        how: str,
        delay: int,
        dead: str | None,
        renamed: bool,
        keep: History,
        results: int,
    ) -> None:
        to = "b" if queue == "a" else "a"
        moves = []
        for id, receipt in dict(self.fences(queue, picked, how)).items():
            stored = self.run(self.oracle.messages.find(queue, [id]))
            new = self.ids.run(1, self.now)[0] if renamed and len(moves) % 2 == 0 else id
            if stored and new not in self.run(self.oracle.messages.find(to, [new])):
                old = stored[id].message
                sent_at = old.sent_at if new == id else self.now  # the oldest message has the lowest id
                letter = None if dead is None else DeadLetter(queue, dead, 3, self.now, stored[id].error)
                moved = Message(
                    new, to, sent_at, self.now + delay * SECOND, old.body, old.content_type, old.priority,
                    old.headers, None, old.key, old.recipient, old.group, old.dedup_id, letter,
                )  # fmt: skip
                moves.append(((id, receipt), moved))
        remember = self.remember("dead", [fence for fence, _ in moves], results if dead else 0)
        extra = how == "new" and delay // 4
        change = Change(self.now, keep, "dead" if dead else "redriven", dead, extra=extra, remember=remember)
        done = self.both("messages.move", queue, moves, change, "events")
        for (_, message), outcome in zip(moves, done, strict=True):
            if outcome == "done" and message.id not in self.known[to]:
                self.known[to].append(message.id)

    @precondition(lambda self: self.now % 5 == 0)
    @rule(queue=queues, keep=keeps)
    def clear(self, queue: str, keep: History) -> None:
        self.both("messages.clear", queue, Change(self.now, keep))

    @precondition(lambda self: self.now % 7 == 0)
    @rule(queue=queues, keep=keeps)
    def delete(self, queue: str, keep: History) -> None:
        self.both("delete_queue", queue, Change(self.now, keep))
        self.both("save_queue", queue, QueueSettings())

    @rule()
    def tidy(self) -> None:
        for store in (self.oracle, self.store):
            self.run(store.tidy(self.now, 5))

    # Looking

    @rule(queue=queues, status=st.sampled_from([None, "ready", "delayed", "leased"]), limit=st.integers(1, 7))
    def browse(self, queue: str, status: Any, limit: int) -> None:
        expected = self.run(
            self.oracle.messages.scan(queue, Scan(status=status, limit=10**6, max_bytes=10**9, now=self.now))
        ).messages
        found: list[Stored] = []
        after: str | None = None
        while True:
            page = self.run(
                self.store.messages.scan(
                    queue, Scan(status=status, after=after, limit=limit, max_bytes=10**9, now=self.now)
                )
            )
            found += page.messages
            after = page.next
            if after is None:
                break
        by_id = {stored.message.id: stored for stored in found}
        assert len(by_id) == len(found)
        assert by_id == {stored.message.id: stored for stored in expected}

    @rule(queue=queues, picked=picks)
    def find(self, queue: str, picked: list[int]) -> None:
        self.both("messages.find", queue, self.chosen(queue, picked))

    @rule()
    def read_history(self) -> None:
        if self.kind == "mongodb":
            # In MongoDB the events of different messages may change places.
            pages = [self.run(store.history.read(0, 10**6)) for store in (self.oracle, self.store)]
            expected, found = [sorted((one.event for one in page.records), key=lambda one: one.id) for page in pages]
            assert found == expected
            assert [one.offset for one in pages[1].records] == [one.offset for one in pages[0].records]
            return
        self.both("history.read", 0, 10**6)
        self.both("history.read", 3, 10**6, "a")


@pytest.mark.parametrize("kind", DATABASES)
def test_a_store_in_a_database_answers_as_the_oracle_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "postgresql":
        # Blocks end in the midst of a send, and of what is claimed or read in steps.
        monkeypatch.setattr("miniq.store.postgres.blocks.MOST", 6)
        monkeypatch.setattr("miniq.store.postgres.blocks.LEAST", 2)
        monkeypatch.setattr("miniq.store.postgres.claims.FIRST_STEP", 4)
        monkeypatch.setattr("miniq.store.postgres.claims.STEP", 7)
        monkeypatch.setattr("miniq.store.postgres.claims.PAGE", 2)
    if kind == "mongodb":
        # What is made in steps takes several.
        monkeypatch.setattr("miniq.store.mongodb.claims.STEP", 3)
        monkeypatch.setattr("miniq.store.mongodb.claims.SMALL_STEP", 1)
        monkeypatch.setattr("miniq.store.mongodb.uploads.CHUNK_MESSAGES", 2)
        monkeypatch.setattr("miniq.store.mongodb.stages.FEW", 2)
        monkeypatch.setattr("miniq.store.mongodb.stages.STEP", 3)
    run_machine(Machine, kind, steps(kind) // 2)


@pytest.mark.parametrize("kind", ENGINES)
@pytest.mark.parametrize("size", ["small", "real"])
def test_a_store_answers_as_the_oracle_does(kind: str, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a window of a few messages every path between memory and disk is taken; half of the steps each."""
    if size == "small":
        monkeypatch.setattr(window, "LANE_MESSAGES", 4)
        monkeypatch.setattr(window, "READ_MESSAGES", 3)
        monkeypatch.setattr(window, "CACHE_BYTES", 40)
        monkeypatch.setattr(window, "OWNERS", 1)
        monkeypatch.setattr(claims, "STEP_MESSAGES", 3)
        monkeypatch.setattr(claims, "STEP_BYTES", 20)
    run_machine(Machine, kind, steps(kind) // 2)
