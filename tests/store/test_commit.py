"""Group commit: one fsync for all who wait, nothing confirmed that is not written, nothing after a failure."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from miniq.broker import Broker
from miniq.errors import Closed, MiniQError, StoreFailed
from miniq.message import SECOND, QueueSettings
from miniq.options import Options
from miniq.store import open_store
from miniq.store.arguments import ANY, FREE, Change, Edit, NewTime
from miniq.store.embedded import ledger
from miniq.store.embedded.store import EmbeddedStore
from tests.clock import START
from tests.kit import bodies, leases, send
from tests.store.calls import Maker, drop, find, put, scan, take, take_all
from tests.store.parts import FaultyKV, copy_as_after_kill, in_company, opened, seam, store_in


class Gate:
    """Holds the commit thread after a write, before anybody is told of it, or before the write."""

    def __init__(self, store: EmbeddedStore, kv: FaultyKV, before: bool = False) -> None:
        in_company(store)
        self._kv = kv
        self._loop_thread = threading.get_ident()
        self._reached = threading.Event()
        self._open = threading.Event()
        if before:
            kv.hold_before_write = self._hold
        else:
            kv.hold_after_write = self._hold

    def _hold(self) -> None:
        if threading.get_ident() != self._loop_thread:
            self._reached.set()
            assert self._open.wait(3)

    async def reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 3)

    def release(self) -> None:
        self._kv.hold_before_write = self._kv.hold_after_write = lambda: None
        self._open.set()


# One fsync for all


async def test_callers_who_come_together_share_fsyncs(url: str) -> None:
    async with opened(url) as broker:
        store = broker.store
        assert isinstance(store, EmbeddedStore)
        before = store.commits[1]

        async def caller() -> None:
            for _ in range(10):
                await send(broker, "default", "x")
                got = await broker.receive("default")
                assert await broker.ack("default", leases(got)) == ["done"]

        await asyncio.gather(*[caller() for _ in range(64)])
        # 1,280 changes that each wait for the disk.
        assert store.commits[1] - before <= 80


async def test_one_caller_alone_gets_one_fsync_for_each_change(url: str) -> None:
    async with store_in(url, "q") as store:
        maker = Maker()
        writes, syncs = store.commits
        for _ in range(5):
            await put(store, [maker.one()])
        assert store.commits == (writes + 5, syncs + 5)
        await take(store)
        # The next fsync covers a lease.
        assert store.commits == (writes + 6, syncs + 5)


async def test_one_caller_alone_waits_for_no_turn_of_the_loop_and_those_who_follow_share(url: str) -> None:
    async with store_in(url, "q") as store:
        maker = Maker()
        await asyncio.sleep(0)
        syncs = store.commits[1]
        call = put(store, [maker.one()])
        with pytest.raises(StopIteration):
            call.send(None)
        assert store.commits[1] == syncs + 1
        # In the next turn there are five: one again does not know of the others, who then share.
        await asyncio.gather(*[put(store, [maker.one()]) for _ in range(5)])
        assert store.commits[1] == syncs + 3
        assert len(await take_all(store)) == 6


async def test_relaxed_store_waits_for_no_fsync_and_keeps_what_the_operating_system_has(
    url: str, folder: Path, engine: str
) -> None:
    async with opened(url, durability="relaxed") as broker:
        await send(broker, "default", *range(10))
        assert isinstance(broker.store, EmbeddedStore)
        assert broker.store.commits[1] == 0
        copy_as_after_kill(folder, folder.with_name("crashed"))
    async with opened(f"{engine}:{folder.with_name('crashed')}") as broker:
        assert bodies(await broker.receive("default", max=100)) == list(range(10))


async def test_message_cannot_be_had_or_seen_before_it_is_written(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = seam(monkeypatch)
    maker = Maker()
    async with store_in(url, "q") as store:
        gate = Gate(store, made[-1], before=True)
        messages = [maker.one(), maker.one(group="g"), maker.one(delay=10)]
        sends = [asyncio.create_task(put(store, [message])) for message in messages]
        await gate.reached()
        assert await take(store, limit=10) == []
        finds = [asyncio.create_task(find(store, message.id)) for message in messages]
        for status in (None, "ready", "delayed"):
            assert (await scan(store, status=status)).messages == []
        await asyncio.sleep(0.05)
        assert not any(find.done() for find in finds)
        gate.release()
        await asyncio.gather(*sends)
        assert [found and found.message for found in await asyncio.gather(*finds)] == messages
        assert await take_all(store) == [message.id for message in messages[:2]]


async def test_repeated_send_waits_until_the_first_one_is_on_disk(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = seam(monkeypatch)
    maker = Maker()
    async with store_in(url, "q") as store:
        gate = Gate(store, made[-1])
        first = [asyncio.create_task(put(store, [maker.one(dedup_id=name)])) for name in ("d", "other")]
        await gate.reached()
        second = asyncio.create_task(put(store, [maker.one(dedup_id="d")]))
        await asyncio.sleep(0.05)
        assert not second.done()
        gate.release()
        assert await second == await first[0]
        await first[1]


async def test_ack_that_finds_the_message_being_acked_waits_until_that_is_on_disk(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = seam(monkeypatch)
    maker = Maker()
    async with store_in(url, "q") as store:
        ids = await put(store, maker.run(2))
        await take(store, limit=2)
        gate = Gate(store, made[-1])
        first = [asyncio.create_task(drop(store, [(id, "t")])) for id in ids]
        await gate.reached()
        second = asyncio.create_task(drop(store, [(ids[0], "t")]))
        await asyncio.sleep(0.05)
        assert not second.done()
        gate.release()
        assert await asyncio.gather(*first) == [["done"], ["done"]]
        assert await second == ["missing"]


async def test_cancelled_caller_does_not_disturb_the_others_of_its_batch(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = seam(monkeypatch)
    maker = Maker()
    async with store_in(url, "q") as store:
        gate = Gate(store, made[-1])
        callers = [asyncio.create_task(put(store, [maker.one()])) for _ in range(3)]
        await gate.reached()
        later = [asyncio.create_task(put(store, [maker.one()])) for _ in range(3)]
        await asyncio.sleep(0)
        callers[0].cancel()
        later[1].cancel()
        gate.release()
        done = await asyncio.gather(*callers, *later, return_exceptions=True)
        assert [isinstance(one, asyncio.CancelledError) for one in done] == [True, False, False, False, True, False]
        # Whether a cancelled send counts nobody can know; it must not be there in halves.
        assert len(await take_all(store)) == 6
        await put(store, [maker.one()])


async def test_only_caller_of_a_batch_may_be_cancelled(url: str) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        caller = asyncio.create_task(put(store, [maker.one()]))
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        assert len(await put(store, [maker.one()])) == 1
        assert len(await take_all(store)) == 2


# Failure is final


Call = Callable[[], Coroutine[Any, Any, Any]]


def every_call(store: EmbeddedStore, maker: Maker, id: str, folder: Path) -> dict[str, Call]:
    return {
        "queues": store.queues,
        "save_queue": lambda: store.save_queue("r", QueueSettings()),
        "delete_queue": lambda: store.delete_queue("q", Change(START)),
        "put": lambda: put(store, [maker.one()]),
        "take": lambda: take(store),
        "drop": lambda: drop(store, [(id, ANY)]),
        "drop unknown": lambda: drop(store, [("nothing", ANY)]),
        "reschedule": lambda: store.messages.reschedule("q", [(id, ANY)], NewTime(START, release=True), Change(START)),
        "edit": lambda: store.messages.edit("q", (id, FREE), Edit(body=b"1"), Change(START)),
        "move": lambda: store.messages.move("q", [], Change(START, event="dead"), "off"),
        "clear": lambda: store.messages.clear("q", Change(START)),
        "find": lambda: find(store, id),
        "scan": lambda: scan(store),
        "scan leased": lambda: scan(store, status="leased"),
        "held": lambda: store.messages.held("q", "t", START),
        "counts": lambda: store.messages.counts("q", START),
        "next_visible": lambda: store.messages.next_visible("q", START),
        "history": lambda: store.history.read(0, 1),
        "history_span": store.history.span,
        "trim_history": lambda: store.history.trim(1),
        "tidy": lambda: store.tidy(START, 1),
        "backup": lambda: store.backup(str(folder.with_name("backup"))),
    }


async def end_of(call: Coroutine[Any, Any, Any]) -> type[BaseException] | None:
    """What a call ends with."""
    try:
        await asyncio.wait_for(call, 5)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("together", [1, 8])
@pytest.mark.parametrize("tear", [False, True])
async def test_nothing_is_confirmed_after_a_failed_write(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, together: int, tear: bool
) -> None:
    made = seam(monkeypatch)
    maker = Maker()
    confirmed: list[str] = []
    acked: list[str] = []
    async with store_in(url, "q") as store:
        first = await put(store, maker.run(5))
        await take(store, limit=2)
        made[-1].fail_after = 20
        made[-1].tear = tear

        async def sender() -> None:
            while True:
                confirmed.extend(await put(store, [maker.one()]))

        async def acker() -> None:
            for id in first[:2]:
                await drop(store, [(id, "t")])
                acked.append(id)
            while True:
                (got,) = await take(store, token="u", limit=1)
                await drop(store, [(got.message.id, "u")])
                acked.append(got.message.id)

        tasks = [asyncio.create_task(sender()) for _ in range(together)] + [asyncio.create_task(acker())]
        ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
        assert [type(end) for end in ends] == [StoreFailed] * len(tasks)
        failure = store.failure()
        assert isinstance(failure, StoreFailed)
        assert "Input/output error" in str(failure)
        # The disk is well again, and yet nothing is tried again.
        made[-1].fail_after = None
        for name, call in every_call(store, maker, first[2], folder).items():
            assert await end_of(call()) is StoreFailed, name
    assert isinstance(store.failure(), StoreFailed)
    async with store_in(url) as store:
        there = {id for id in [*first, *confirmed] if await find(store, id) is not None}
        assert set(acked) & there == set()
        assert set(first) | set(confirmed) - set(acked) >= there
        lost = (set(first) | set(confirmed)) - set(acked) - there
        # One removal may have been under way when it failed, and only a torn write can have made it.
        assert len(lost) <= (1 if tear else 0)
        assert len(confirmed) > 3


async def test_failure_wakes_all_who_wait_in_the_batch_and_behind_it(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = seam(monkeypatch)
    maker = Maker()
    async with store_in(url, "q") as store:
        kv = made[-1]
        reached, go_on = threading.Event(), threading.Event()

        def fail() -> None:
            reached.set()
            assert go_on.wait(10)
            raise OSError(28, "No space left on device")

        kv.hold_after_write = fail
        in_company(store)
        callers = [asyncio.create_task(put(store, [maker.one()])) for _ in range(3)]
        assert await asyncio.to_thread(reached.wait, 10)
        behind = [asyncio.create_task(put(store, [maker.one()])) for _ in range(3)]
        behind.append(asyncio.create_task(drop(store, [("unknown", ANY)])))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        go_on.set()
        ends = await asyncio.wait_for(asyncio.gather(*callers, *behind, return_exceptions=True), 5)
        assert [type(end) for end in ends] == [StoreFailed] * 7
        kv.hold_after_write = lambda: None


async def test_broker_on_a_failed_store_refuses_and_can_be_closed(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = seam(monkeypatch)
    async with opened(url) as broker:
        await send(broker, "default", "kept")
        waiting = asyncio.create_task(broker.receive("other", wait=30))
        await asyncio.sleep(0)
        made[-1].fail_after = 0
        for _ in range(2):
            with pytest.raises(StoreFailed):
                await send(broker, "default", "lost")
        with pytest.raises(StoreFailed):
            await broker.receive("default")
        with pytest.raises(StoreFailed):
            await broker.peek("default")
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        made[-1].fail_after = None
    async with opened(url) as broker:
        assert bodies(await broker.receive("default", max=10)) == ["kept"]


VICTIM = """
import asyncio, sys
from miniq.broker import Broker
from miniq.message import Draft
from miniq.store import open_store

async def main():
    async with Broker(open_store(sys.argv[1])) as broker:
        async def sender():
            while True:
                (id,) = await broker.send("default", [Draft(b"1")])
                print("sent", id, flush=True)
        ends = await asyncio.gather(*[sender() for _ in range(int(sys.argv[2]))], return_exceptions=True)
        print("end", [type(end).__name__ for end in ends], type(broker.store.failure()).__name__, flush=True)

asyncio.run(main())
"""


FAILING = ["full", *(["fsync"] if shutil.which("strace") else [])]
"""How the kernel refuses: a file may not grow any further; an fsync fails, where strace can be had to make it fail."""


@pytest.mark.parametrize("together", [1, 4])
@pytest.mark.parametrize("failing", FAILING)
async def test_real_write_error_ends_everything_and_costs_nothing_confirmed(
    url: str, folder: Path, together: int, failing: str
) -> None:
    async with opened(url):
        pass
    command = [sys.executable, "-c", VICTIM, url, str(together)]
    if failing == "fsync":
        inject = ["-e", "trace=pwritev,pwritev2", "-e", "inject=pwritev,pwritev2:error=EIO:when=20+"]
        command = ["strace", "-f", "-qq", "-o", os.devnull, *inject, *command]
    else:
        # Python ignores SIGXFSZ, so a write past the limit fails with EFBIG, as one on a full disk does.
        command[2] = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))\n" + VICTIM
    run = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = run.stdout.splitlines()
    assert lines[-1] == f"end {['StoreFailed'] * together} StoreFailed", run.stderr
    confirmed = [line.split()[1] for line in lines[:-1]]
    assert confirmed
    async with Broker(open_store(url)) as broker:
        there = {stored.message.id for stored in await broker.receive("default", max=1000)}
        assert set(confirmed) <= there
        assert len(there) <= len(confirmed) + together


# Closing


async def test_close_writes_what_is_staged(url: str) -> None:
    store = open_store(url)
    await store.open()
    await store.save_queue("q", QueueSettings())
    maker = Maker()
    sends = [asyncio.create_task(put(store, [maker.one()])) for _ in range(5)]  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.wait_for(store.close(), 5)
    sent = [id for ids in await asyncio.wait_for(asyncio.gather(*sends), 5) for id in ids]
    async with store_in(url) as again:
        assert await take_all(again) == sent


async def test_callers_who_go_on_while_the_store_closes_are_refused_and_not_left_waiting(url: str) -> None:
    maker = Maker()
    confirmed: list[str] = []
    store = open_store(url)
    await store.open()
    await store.save_queue("q", QueueSettings(history="events"))

    async def sender() -> None:
        while True:
            confirmed.extend(await put(store, [maker.one()], keep="events"))  # type: ignore[arg-type]

    async def trimmer() -> None:
        while True:
            await store.history.trim(10**6)
            await asyncio.sleep(0)

    async def tidier() -> None:
        while True:
            await store.tidy(START, 10)
            await asyncio.sleep(0)

    async def saver(folder: str) -> None:
        await store.backup(folder)
        raise Closed("done")

    backup = url.partition(":")[2] + "-backup"
    calls = [sender(), sender(), sender(), trimmer(), tidier(), saver(backup)]
    tasks = [asyncio.create_task(call) for call in calls]
    while len(confirmed) < 50:  # noqa: ASYNC110
        await asyncio.sleep(0)
    await asyncio.wait_for(store.close(), 5)
    ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    assert {type(end) for end in ends} == {Closed}
    async with store_in(url) as again:
        assert await take_all(again) == confirmed


async def test_at_most_once_receive_that_meets_the_close_hands_out_or_refuses(url: str) -> None:
    broker = Broker(open_store(url), Options(upkeep_interval=0))
    await broker.open()
    await send(broker, "q", *range(20))
    receives = [asyncio.create_task(broker.receive("q", mode="at-most-once")) for _ in range(5)]
    await asyncio.sleep(0)
    await asyncio.wait_for(broker.close(), 5)
    ends = await asyncio.wait_for(asyncio.gather(*receives, return_exceptions=True), 5)
    got = [body for end in ends if isinstance(end, list) for body in bodies(end)]
    assert all(isinstance(end, list | Closed) for end in ends)
    async with opened(url) as again:
        left = (await again.queue("q")).counts.total
        assert left + len(got) == 20


async def test_close_with_many_groups_in_memory_comes_to_an_end(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "GROUPS_IN_MEMORY", 2)
    maker = Maker()
    store = open_store(url)
    await store.open()
    await store.save_queue("q", QueueSettings())
    for number in range(5):
        await put(store, [maker.one(group=f"g{number}")])  # type: ignore[arg-type]
    last = asyncio.create_task(put(store, [maker.one(group="last")]))  # type: ignore[arg-type]
    await asyncio.sleep(0)
    await asyncio.wait_for(store.close(), 5)
    await asyncio.wait_for(last, 5)


async def test_closed_store_refuses_with_closed(url: str, folder: Path) -> None:
    async with store_in(url, "q") as store:
        (id,) = await put(store, [Maker().one()])
    assert store.failure() is None
    for name, call in every_call(store, Maker(), id, folder).items():
        assert await end_of(call()) is Closed, name


# Changes of one tick


async def test_follower_of_a_group_can_be_taken_in_the_tick_in_which_the_head_is_acked(url: str) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        head, follower = maker.one(group="g"), maker.one(group="g", delay=5)
        await put(store, [head])
        await put(store, [follower])
        later = START + 10 * SECOND
        await take(store, limit=2, now=later, until=later + 30 * SECOND)
        done, taken, found = await asyncio.gather(
            drop(store, [(head.id, "t")], now=later),
            take(store, token="u", now=later, until=later + 30 * SECOND),
            find(store, follower.id),
        )
        assert done == ["done"]
        assert found is not None
        rest = await take(store, token="v", now=later, until=later + 30 * SECOND)
        assert [stored.message.id for stored in taken + rest] == [follower.id]


async def test_dedup_record_that_is_renewed_while_old_ones_are_tidied_away_stays(url: str) -> None:
    maker = Maker()
    async with store_in(url, "q") as store:
        await put(store, [maker.one(dedup_id="d")], dedup_until=START + 1)
        later = START + 10
        (new,), _ = await asyncio.gather(
            put(store, [maker.one(dedup_id="d")], now=later, dedup_until=later + 300 * SECOND),
            store.tidy(later, 100),
        )
        assert await put(store, [maker.one(dedup_id="d")], now=later) == [new]


async def test_queue_deleted_and_swept_while_changes_are_under_way_leaves_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = seam(monkeypatch)
    maker = Maker()
    async with store_in(url, "q") as store:
        await put(store, maker.run(10))
        await asyncio.gather(
            put(store, [maker.one(group="g")]),
            put(store, [maker.one(group="g", delay=100)]),
            take(store, limit=5),
            store.delete_queue("q", Change(START)),
            store.tidy(START, 1000),
            return_exceptions=True,
        )
        while await store.tidy(START, 1000):
            pass
        assert {key[:1] for key, _ in made[-1].kv.scan(b"", b"\xff")} <= {b"a", b"l"}
    for _ in range(2):
        async with store_in(url, "q") as store:
            assert (await store.messages.counts("q", START)).total == 0


async def test_queue_deleted_under_a_call_is_an_error_that_has_a_name(url: str) -> None:
    async with opened(url) as broker:
        for _ in range(3):
            await send(broker, "q", *range(5))
            got = await broker.receive("q", max=2)
            ends = await asyncio.gather(
                broker.delete_queue("q"),
                send(broker, "q", "new"),
                broker.receive("q", mode="at-most-once"),
                broker.ack("q", leases(got)),
                broker.release("q", leases(got)),
                broker.queue("q"),
                broker.peek("q"),
                broker.purge("q"),
                broker.get("q", got[0].message.id),
                broker.upkeep(),
                return_exceptions=True,
            )
            strange = [end for end in ends if isinstance(end, BaseException) and not isinstance(end, MiniQError)]
            assert strange == []


async def test_closing_again_is_harmless_while_the_commit_thread_ends(url: str) -> None:
    for _ in range(20):
        store = open_store(url)
        await store.open()
        await store.close()
        await asyncio.wait_for(store.close(), 5)
