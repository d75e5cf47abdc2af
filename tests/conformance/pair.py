"""A store and the oracle side by side: the same changes, the same answers, through crashes and restarts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any, TypeVar

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

from miniq.errors import Conflict, InvalidRequest, NotFound
from miniq.ids import IdSource
from miniq.message import SECOND, EventName, History, Message, QueueSettings, Stored
from miniq.store import open_store
from miniq.store.arguments import ANY, ANYTHING, FREE, Change, Fit, NewTime, Put, Room, Take
from miniq.store.contract import HOME, Store
from miniq.store.transfer import copy
from tests import mongod, postgresql
from tests.clock import START
from tests.conftest import store_url
from tests.oracle import Oracle

QUEUES = ("a", "b")
DATABASES = ("postgresql", "mongodb")
"""Stores whose crashes are the database's own: see `tests/faults`."""
STEPS = {"database": 700, "embedded": 2000}
"""How many steps are tried by default. On a database each takes many milliseconds, and every run tries others."""
T = TypeVar("T")
keeps = st.sampled_from(["off", "events", "full"])
SETTLEMENTS: dict[str, st.SearchStrategy[Any]] = {
    "back": st.integers(0, 2),
    "picked": st.lists(st.integers(0, 5), min_size=1, max_size=3, unique=True),
    "how": st.sampled_from(["ack", "release", "unused", "fail", "extend"]),
    "seconds": st.sampled_from([0, 0, 2]),
    "keep": keeps,
}
"""The arguments of `Pair.settle`."""


class Pair(RuleBasedStateMachine):
    """A store of a kind and the oracle. The rules are those of every machine: time, restarts, crashes, copying."""

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
        self.expired = {role: Counter[str]() for role in ("oracle", "store")}
        """Leases that were found expired in each queue."""
        self.oracle: Store = Oracle()
        self.oracle.on_lease_expired = partial(self.count_expired, "oracle")
        self.store = self.open()

    def run(self, call: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(call)

    def open(self) -> Store:
        store = open_store(store_url(self.kind, self.folder / str(self.generation)))
        store.on_lease_expired = partial(self.count_expired, "store")
        self.run(store.open())
        return store

    def count_expired(self, role: str, queue: str, count: int) -> None:
        self.expired[role][queue] += count

    def both(self, method: str, *args: Any) -> Any:
        """Make a change on both stores and compare what they answer."""
        answers = []
        for store in (self.oracle, self.store):
            try:
                answers.append(self.run(attrgetter(method)(store)(*args)))
            except (NotFound, Conflict) as error:
                answers.append(error.text)
        assert answers[1] == answers[0]
        return answers[0]

    @initialize()
    def begin(self) -> None:
        for queue in (*QUEUES, HOME):
            self.both("save_queue", queue, QueueSettings())

    def teardown(self) -> None:
        self.run(self.store.close())
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        mongod.give_back()
        postgresql.give_back()

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

    def put(self, queue: str, messages: list[Message], keep: History, room: Room | None) -> None:
        until = self.now + 30 * SECOND
        answer = self.both("messages.put", messages, Put(now=self.now, dedup_until=until, room=room, keep=keep))
        if isinstance(answer, list):
            self.known[queue] += [id for id in answer if id not in self.known[queue]]

    def lease(
        self,
        queue: str,
        limit: int,
        seconds: int,
        consumer: str | None,
        keep: History,
        *,
        most: int = 10**6,
        fit: Fit = ANYTHING,
        in_flight: int = 0,
        batch: bool = False,
    ) -> None:
        """Take messages under a token of their own."""
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
            fit=fit,
            in_flight=in_flight,
            group_batch=batch,
        )
        taken: list[Stored] = self.both("messages.take", queue, asked)
        for stored in taken:
            self.receipts.setdefault(stored.message.id, []).append(token)
        assert self.both("messages.held", queue, token, asked.until) == sorted(
            taken, key=lambda stored: stored.message.id
        )

    def settle(self, back: int, picked: list[int], how: str, seconds: int, keep: History) -> None:
        """What a consumer does with some messages of a receive, in any order, in time or late."""
        token = f"t{self.tokens - back}"
        held = self.oracle.messages.of_token(token)
        for pick in picked:
            if pick < len(held):
                queue, fence = held[pick].message.queue, (held[pick].message.id, token)
                at = self.now + seconds * SECOND
                each = {2: at + SECOND, 3: at + 7 * SECOND} if how == "fail" else {}
                to = NewTime(at, how != "extend", "boom" if how == "fail" else None, how == "unused", each)
                if how == "ack":
                    self.both("messages.drop", queue, [fence], Change(self.now, keep, "acked"))
                else:
                    event: EventName | None = {"release": "released", "unused": "released", "fail": "failed"}.get(how)  # type: ignore[assignment]
                    self.both(
                        "messages.reschedule", queue, [fence], to, Change(self.now, keep, event, extra=int(to.unused))
                    )

    @rule(micros=st.sampled_from([1, SECOND, 3 * SECOND + 1, 10 * SECOND, 61 * SECOND]))
    def time_passes(self, micros: int) -> None:
        self.now += micros

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
            oracle.on_lease_expired = partial(self.count_expired, "oracle")
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

    @invariant()
    def counts_agree(self) -> None:
        for queue in QUEUES:
            if queue in self.run(self.oracle.queues()):
                self.both("messages.counts", queue, self.now)
                self.both("messages.next_visible", queue, self.now)
        assert self.expired["store"] == self.expired["oracle"]


def steps(kind: str) -> int:
    """How many steps are tried on a store of a kind."""
    return int(os.environ.get("MINIQ_STEPS", STEPS["database" if kind in DATABASES else "embedded"]))


def listing(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_size for path in folder.rglob("*") if path.is_file()}


def run_machine(rules: type[Pair], kind: str, count: int, steps_per_example: int = 50) -> None:
    """Drive a store of a kind and the oracle by the rules of a machine."""
    machine = type("Machine", (rules,), {"kind": kind})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max(1, count // steps_per_example),
            stateful_step_count=steps_per_example,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )
