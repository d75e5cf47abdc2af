"""Any store against the oracle: the same random changes, the same answers, through crashes and restarts.

`MINIQ_STEPS` sets how many steps are tried on each store (2,000 by default).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import Coroutine, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from miniq.errors import ClaimGone, ClaimUnknown, Fenced, InvalidRequest, QueueFull, StageUnknown
from miniq.ids import IdSource
from miniq.message import SECOND, ClaimGroup, EventName, History, Message, PlainBatch, QueueSettings, StageName, Stored
from miniq.store import open_store
from miniq.store.arguments import (
    ANY,
    FREE,
    Batch,
    Change,
    Edit,
    Fit,
    NewTime,
    NextClaim,
    Places,
    Put,
    Room,
    Scan,
    Take,
    Upload,
)
from miniq.store.contract import Claimed, Store
from miniq.store.embedded import claims, window
from miniq.store.transfer import copy
from tests import mongod
from tests.clock import START
from tests.conftest import ENGINES, store_url
from tests.oracle import Oracle

STEPS = int(os.environ.get("MINIQ_STEPS", "2000"))
STEPS_PER_EXAMPLE = 50
QUEUES = ("a", "b")
DATABASES = ("postgresql", "mongodb")
"""Stores whose crashes are the database's own: see `tests/faults`."""
T = TypeVar("T")

queues = st.sampled_from(QUEUES)
groups = st.sampled_from(["r", "s"])
batches = st.sampled_from(["1", "2", "3"])
consumers = st.sampled_from([None, None, "ann", "bob"])
keeps = st.sampled_from(["off", "events", "full"])
picks = st.lists(st.integers(0, 10**6), min_size=1, max_size=6)


class Machine(RuleBasedStateMachine):
    kind = "rocksdb"

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = Path(tempfile.mkdtemp(prefix="miniq-machine-"))
        self.generation = self.made = 0
        self.now = START
        self.ids = IdSource()
        self.tokens = 0
        self.known: dict[str, list[str]] = {queue: [] for queue in QUEUES}
        """Ids that are or were in each queue."""
        self.receipts: dict[str, list[str]] = {}
        """By id, all receipts it ever had, the newest last."""
        self.oracle: Store = Oracle()
        self.store = self.open()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def open(self) -> Store:
        store = open_store(store_url(self.kind, self.folder / str(self.generation)))
        self.run(store.open())
        return store

    def both(self, method: str, *args: Any) -> Any:
        """Make a change on both stores and compare what they answer."""
        answers = []
        for store in (self.oracle, self.store):
            try:
                answers.append(self.run(attrgetter(method)(store)(*args)))
            except (ClaimGone, ClaimUnknown, Fenced, QueueFull, StageUnknown) as error:
                answers.append(error.text)
        assert answers[1] == answers[0]
        return answers[0]

    @initialize()
    def begin(self) -> None:
        for queue in QUEUES:
            self.both("save_queue", queue, QueueSettings())

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        mongod.give_back()

    def chosen(self, queue: str, picked: list[int]) -> list[str]:
        known = self.known[queue]
        return [known[pick % len(known)] for pick in picked] if known else []

    def fences(self, queue: str, picked: list[int], how: str) -> list[tuple[str, str]]:
        found = []
        for id in self.chosen(queue, picked):
            receipts = self.receipts.get(id, ["never-given"])
            receipt = {"new": receipts[-1], "old": receipts[0], "free": FREE, "any": ANY}[how]
            found.append((id, receipt))
        return found

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

    def put(self, queue: str, messages: list[Message], keep: History, room: Room | None) -> None:
        until = self.now + 30 * SECOND
        answer = self.both("messages.put", messages, Put(now=self.now, dedup_until=until, room=room, keep=keep))
        if isinstance(answer, list):
            self.known[queue] += [id for id in answer if id not in self.known[queue]]

    @rule(
        queue=queues,
        limit=st.integers(1, 12),
        seconds=st.sampled_from([0, 1, 5, 60]),
        consumer=consumers,
        most=st.sampled_from([10**6, 10**6, 3]),
        keep=keeps,
    )
    def take(self, queue: str, limit: int, seconds: int, consumer: str | None, most: int, keep: History) -> None:
        self.tokens += 1
        token = f"t{self.tokens}"
        asked = Take(
            limit=limit,
            max_bytes=most,
            now=self.now,
            until=self.now + seconds * SECOND,
            token=token,
            consumer=consumer,
            keep=keep,
        )
        taken: list[Stored] = self.both("messages.take", queue, asked)
        for stored in taken:
            self.receipts.setdefault(stored.message.id, []).append(token)
        assert self.both("messages.held", token) == sorted(taken, key=lambda stored: stored.message.id)

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
    ) -> None:
        state = self.group(queue, group)
        asked = NextClaim(
            after=max(0, state.last - back),
            epoch=None if epoch is None else state.epoch + epoch,
            limit=limit,
            max_bytes=most,
            fit=Fit(self.now - age * SECOND, receives),
            consumer=consumer,
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

    @rule(queue=queues, picked=picks, how=st.sampled_from(["new", "new", "old", "free", "any"]), keep=keeps)
    def drop(self, queue: str, picked: list[int], how: str, keep: History) -> None:
        fences = self.fences(queue, picked, how)
        self.both("messages.drop", queue, fences, Change(self.now, keep, "acked"))

    @rule(queue=queues, keep=keeps)
    def drop_all_held(self, queue: str, keep: History) -> None:
        held = self.run(self.oracle.messages.held(f"t{self.tokens}"))
        fences = [(stored.message.id, f"t{self.tokens}") for stored in held]
        self.both("messages.drop", queue, fences, Change(self.now, keep, "acked"))

    @rule(
        queue=queues,
        picked=picks,
        how=st.sampled_from(["new", "new", "old", "any"]),
        seconds=st.sampled_from([0, 2, 40]),
        release=st.booleans(),
        keep=keeps,
    )
    def reschedule(self, queue: str, picked: list[int], how: str, seconds: int, release: bool, keep: History) -> None:
        fences = list(dict.fromkeys(self.fences(queue, picked, how)))
        at = self.now + seconds * SECOND
        event: EventName | None = "released" if release else None
        self.both("messages.reschedule", queue, fences, NewTime(at, release), Change(self.now, keep, event))

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
        keep=keeps,
    )
    def move(self, queue: str, picked: list[int], how: str, delay: int, keep: History) -> None:
        to = "b" if queue == "a" else "a"
        moves = []
        for id, receipt in dict(self.fences(queue, picked, how)).items():
            stored = self.run(self.oracle.messages.find(queue, [id]))
            if stored:
                old = stored[id].message
                moved = Message(
                    old.id, to, old.sent_at, self.now + delay * SECOND, old.body, old.content_type, old.priority,
                    old.headers, None, old.key, old.recipient, old.group, old.dedup_id,
                )  # fmt: skip
                moves.append(((id, receipt), moved))
        done = self.both("messages.move", queue, moves, Change(self.now, keep, "redriven"), "events")
        for (fence, _), outcome in zip(moves, done, strict=True):
            if outcome == "done" and fence[0] not in self.known[to]:
                self.known[to].append(fence[0])

    @precondition(lambda self: self.now % 5 == 0)
    @rule(queue=queues, keep=keeps)
    def clear(self, queue: str, keep: History) -> None:
        self.both("messages.clear", queue, Change(self.now, keep))

    @precondition(lambda self: self.now % 7 == 0)
    @rule(queue=queues)
    def delete(self, queue: str) -> None:
        self.both("delete_queue", queue)
        self.both("save_queue", queue, QueueSettings())

    @rule(micros=st.sampled_from([1, SECOND, 3 * SECOND + 1, 10 * SECOND, 61 * SECOND]))
    def time_passes(self, micros: int) -> None:
        self.now += micros

    @rule()
    def tidy(self) -> None:
        for store in (self.oracle, self.store):
            self.run(store.tidy(self.now, 5))

    @precondition(lambda self: self.kind != "memory")
    @rule()
    def restart(self) -> None:
        self.run(self.store.close())
        self.store = self.open()

    @rule()
    def migrate(self) -> None:
        """Go on in another store that everything was copied to."""
        old, place = self.store, self.generation
        self.made += 1
        self.generation = self.made
        self.store = self.open()
        try:
            self.run(copy(old, self.store, now=self.now))
            oracle = Oracle()  # claims that are acked and can still be read are not copied
            self.run(copy(self.oracle, oracle, now=self.now))
            self.oracle = oracle
        except InvalidRequest:  # a claim is held
            self.store, old, self.generation = old, self.store, place
        self.run(old.close())

    @precondition(lambda self: self.kind not in ("memory", *DATABASES))
    @rule()
    def crash(self) -> None:
        """What `kill -9` leaves is what the operating system has: a copy of the files as they are now."""
        old = self.folder / str(self.generation)
        self.made += 1
        self.generation = self.made
        new = self.folder / str(self.generation)
        while True:
            # What compaction does in the background must not fall between two files of the copy.
            with contextlib.suppress(shutil.Error, FileNotFoundError):
                before = listing(old)
                shutil.copytree(old, new)
                if listing(old) == before == listing(new):
                    break
            shutil.rmtree(new, ignore_errors=True)
        self.run(self.store.close())
        shutil.rmtree(old, ignore_errors=True)
        self.store = self.open()

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
        self.both("history.read", 0, 10**6)
        self.both("history.read", 3, 10**6, "a")

    @invariant()
    def counts_agree(self) -> None:
        for queue in QUEUES:
            if queue in self.run(self.oracle.queues()):
                oracle, store = (self.run(s.messages.counts(queue, self.now)) for s in (self.oracle, self.store))
                assert (store.ready, store.delayed, store.leased, store.bytes) == (
                    oracle.ready,
                    oracle.delayed,
                    oracle.leased,
                    oracle.bytes,
                )
                self.both("messages.next_visible", queue, self.now)


def listing(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kind", DATABASES)
def test_a_store_in_a_database_answers_as_the_oracle_does(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if kind == "postgresql":
        # Parcels end in the midst of a send, and of what is claimed or read in steps.
        monkeypatch.setattr("miniq.store.postgres.parcels.MOST", 6)
        monkeypatch.setattr("miniq.store.postgres.parcels.LEAST", 2)
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
    run_machine(kind, STEPS // 2)


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
    run_machine(kind, STEPS // 2)


def run_machine(kind: str, steps: int) -> None:
    machine = type("Machine", (Machine,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, steps // STEPS_PER_EXAMPLE),
            stateful_step_count=STEPS_PER_EXAMPLE,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
