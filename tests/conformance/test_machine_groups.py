"""Groups on any store against the oracle, with one message in flight or several: a random walk over few messages, so
that the same group is sent to, taken from and settled again and again.

`MINIQ_STEPS` sets how many steps are tried on each store (2,000 by default, 700 on a database), `MINIQ_SEED` the first
seed.
"""

from __future__ import annotations

import os
from random import Random

import pytest

from miniq.message import SECOND, Message
from miniq.store.arguments import ANY, FREE, Change, Edit, Fit, NextClaim, Scan
from miniq.store.embedded import window
from tests.conformance.pair import DATABASES, Pair, steps
from tests.conftest import ENGINES

SEED = int(os.environ.get("MINIQ_SEED", "0"))
STEPS_PER_WALK = 100


class Walk(Pair):
    """One random walk; the same seed makes the same steps."""

    def __init__(self, kind: str, seed: int) -> None:
        self.kind = kind
        super().__init__()
        self.random = Random(seed)
        self.begin()

    def step(self) -> None:
        """Make a change on both stores, and compare what they hold then."""
        pick = self.random.choice
        kinds = [self.send, self.take, self.settle_some, self.change_any, self.claim, self.release_claims, self.wait]
        [change] = self.random.choices(kinds, [4, 8, 12, 2, 1, 1, 4])
        self.keep = pick(["off", "events", "full"])
        change(pick(["a", "a", "a", "b"]))
        if self.random.random() < 0.03:
            pick([self.migrate] if self.kind in ("memory", *DATABASES) else [self.restart, self.crash, self.migrate])()
        self.counts_agree()

    def send(self, queue: str) -> None:
        pick = self.random.choice
        due = self.now + pick([0, 0, 0, 2]) * SECOND
        priority, recipient, group = (
            pick([0, 0, 0, 4]),
            pick([None, None, None, "ann"]),
            pick(["g", "g", "g", "h", None]),
        )
        messages = [
            Message(id, queue, self.now, due, b"%d" % place, priority=priority, recipient=recipient, group=group)
            for place, id in enumerate(self.ids.run(pick([1, 2, 3, 5]), self.now))
        ]
        self.put(queue, messages, self.keep, None)

    def take(self, queue: str) -> None:
        pick = self.random.choice
        self.lease(
            queue,
            pick([1, 2, 3, 5, 9]),
            pick([0, 1, 5, 60]),
            pick([None, None, "ann"]),
            self.keep,
            most=pick([10**6, 10**6, 3]),
            in_flight=pick([0, 0, 0, 3]),
            batch=pick([True, True, True, False]),
        )

    def settle_some(self, queue: str) -> None:
        pick = self.random.choice
        places = self.random.sample(range(5), pick([1, 2, 3]))
        self.settle(
            pick([0, 0, 1, 2]),
            places,
            pick(["ack", "ack", "release", "unused", "fail", "extend"]),
            pick([0, 0, 2]),
            self.keep,
        )

    def change_any(self, queue: str) -> None:
        """What an operator does with a message."""
        there = self.run(self.oracle.messages.scan(queue, Scan(limit=99, max_bytes=10**9, now=self.now))).messages
        if not there:
            return
        pick = self.random.choice
        message, how = pick(there).message, pick(["drop", "move", "body", "priority", "delay"])
        fence, change = (message.id, pick([FREE, FREE, ANY])), Change(self.now, self.keep)
        if how == "drop":
            self.both("messages.drop", queue, [fence], Change(self.now, self.keep, "purged"))
        elif how == "move":
            id, sent_at = pick([(message.id, message.sent_at), (self.ids.run(1, self.now)[0], self.now)])
            moved = Message(
                id, "b" if queue == "a" else "a", sent_at, self.now, message.body,
                priority=message.priority, recipient=message.recipient, group=message.group,
            )  # fmt: skip
            self.both("messages.move", queue, [(fence, moved)], Change(self.now, self.keep, "redriven"), "off")
        else:
            due_at = self.now + pick([0, 1]) * SECOND
            edit = {"body": Edit(body=b"edited"), "priority": Edit(priority=9), "delay": Edit(due_at=due_at)}[how]
            self.both("messages.edit", queue, fence, edit, change)

    def claim(self, queue: str) -> None:
        last = next(iter(self.run(self.oracle.claims.groups(queue, self.now))), None)
        after = 0 if last is None else last.last
        self.both("claims.mark", queue, "r", after, "")
        consumer, limit = self.random.choice([None, "ann"]), self.random.choice([0, 1, 5])
        asked = NextClaim(
            after=after,
            now=self.now,
            fit=Fit(-1, 10**6),
            limit=limit,
            max_bytes=10**6,
            consumer=consumer,
            keep=self.keep,
        )
        self.both("claims.next", queue, "r", asked)

    def release_claims(self, queue: str) -> None:
        self.both("claims.release", queue, "r", None, Change(self.now, self.keep))

    def wait(self, queue: str) -> None:
        self.time_passes(self.random.choice([1, SECOND, 3 * SECOND, 10 * SECOND]))


@pytest.mark.parametrize("kind", [*ENGINES, *DATABASES])
def test_groups_are_as_those_of_the_oracle(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(window, "LANE_MESSAGES", 4)
    monkeypatch.setattr(window, "READ_MESSAGES", 3)
    monkeypatch.setattr(window, "CACHE_BYTES", 40)
    for seed in range(SEED, SEED + max(1, steps(kind) // 2 // STEPS_PER_WALK)):
        walk = Walk(kind, seed)
        try:
            for number in range(STEPS_PER_WALK):
                try:
                    walk.step()
                except Exception as error:
                    error.add_note(f"step {number} with MINIQ_SEED={seed}")
                    raise
        finally:
            walk.teardown()
