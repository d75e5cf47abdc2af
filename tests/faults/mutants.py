"""MiniQ with one promise broken on purpose: `python -m tests.faults.mutants NAME MODULE …`.

A suite that does not notice these would not notice the real thing.
"""

from __future__ import annotations

import asyncio
import runpy
import sys
from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

from miniq.batch import Claim
from miniq.broker import Broker
from miniq.broker.claims import Claims
from miniq.broker.intake import Intake
from miniq.message import Lease, Outcome
from miniq.store.embedded import messages as embedded
from miniq.store.embedded.blocks import Shelf
from miniq.store.embedded.commit import GroupCommit
from miniq.store.embedded.log import CommitLog
from miniq.store.embedded.states import States


def no_fsync() -> None:
    """A confirmation does not wait for the disk."""
    append = CommitLog.append
    CommitLog.append = lambda self, payload, sync: append(self, payload, False)  # type: ignore[method-assign]


def hasty() -> None:
    """A confirmation does not wait for the write."""
    commit = GroupCommit.commit
    writing = set()

    async def at_once(self: GroupCommit, sync: bool) -> None:
        task = asyncio.create_task(commit(self, sync))
        writing.add(task)
        task.add_done_callback(writing.discard)

    GroupCommit.commit = at_once  # type: ignore[method-assign]


def any_receipt() -> None:
    """Whoever knows the id of a message may ack it, also when somebody else holds it by now."""
    check = embedded._check

    def trusting(found: Any, receipt: str, now: int) -> Outcome:
        outcome = check(found, receipt, now)
        return "done" if outcome == "stale" else outcome

    embedded._check = trusting


def no_expiry() -> None:
    """A lease never ends."""

    def sleep(self: States, shelf: Shelf, now: int) -> None:
        pass

    States.wake = sleep  # type: ignore[method-assign]


def early_expiry() -> None:
    """A lease ends before its time."""
    wake = States.wake

    def too_soon(self: States, shelf: Shelf, now: int) -> None:
        wake(self, shelf, now + 1_500_000)

    States.wake = too_soon  # type: ignore[method-assign]


def no_dedup() -> None:
    """A call that is repeated is carried out again."""
    send, add = Broker.send, Intake.add

    async def forgetful(self: Broker, queue: str, drafts: Any, *call: str | None) -> list[str]:
        return await send(self, queue, drafts)

    def add_forgetful(self: Intake, queue: str, kind: str, body: bytes, call: str | None, *rest: Any) -> bool:
        return add(self, queue, kind, body, None, *rest)

    Broker.send = forgetful  # type: ignore[method-assign]
    Intake.add = add_forgetful  # type: ignore[method-assign,assignment]


def thawed_claims() -> None:
    """A claim is made anew each time it is asked for."""
    next_claim = Claims.next

    async def thawed(self: Claims, queue: str, group: str, after: int, **asked: Any) -> tuple[Claim | None, int]:
        await self.release(queue, group)
        return await next_claim(self, queue, group, after, **asked)

    Claims.next = thawed  # type: ignore[method-assign,assignment]


def said_acks() -> None:
    """Some acks are confirmed, and nothing is removed."""
    ack = Broker.ack
    calls = count(1)

    async def say(self: Broker, queue: str, leases: Sequence[Lease]) -> list[Outcome]:
        number = next(calls)
        if number % 4 == 0 and number <= 100:
            return ["done"] * len(leases)
        return await ack(self, queue, leases)

    Broker.ack = say  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    "no-fsync": no_fsync,
    "hasty": hasty,
    "any-receipt": any_receipt,
    "no-expiry": no_expiry,
    "early-expiry": early_expiry,
    "no-dedup": no_dedup,
    "thawed-claims": thawed_claims,
    "said-acks": said_acks,
}

if __name__ == "__main__":
    MUTANTS[sys.argv.pop(1)]()
    runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
