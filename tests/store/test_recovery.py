"""What is there after a restart: all that was confirmed, or a refusal that says what is damaged."""

from __future__ import annotations

import asyncio
import random
import shutil
import threading
from pathlib import Path
from typing import cast

import pytest

from miniq.errors import StoreCorrupt, StoreError
from miniq.message import SECOND, Draft, Message, QueueSettings
from miniq.store import open_store
from miniq.store.arguments import ANY, FREE, Change, Edit, NewTime
from miniq.store.embedded import log as commit_log
from miniq.store.embedded import logged, window
from miniq.store.embedded.check import check
from miniq.store.embedded.extent import NAME as EXTENT
from miniq.store.embedded.folder import log_id_of
from miniq.store.embedded.segments import LogReader
from miniq.store.embedded.store import EmbeddedStore
from tests.clock import START, FrozenClock
from tests.kit import bodies, drain, ids, leases, send, states
from tests.store.calls import Maker, drop, find, put, take, take_all
from tests.store.parts import copy_as_after_kill, in_company, opened, seam, store_in


def log_of(folder: Path) -> Path:
    """The segment of the commit log that is written to."""
    return max((folder / "log").glob("*.segment"))


async def crashed_after(url: str, folder: Path, sends: int) -> tuple[Path, list[str]]:
    """A folder as a kill leaves it after some sends, and the confirmed ids."""
    async with opened(url) as broker:
        sent = [(await send(broker, "default", number))[0] for number in range(sends)]
        crashed = folder.with_name("crashed")
        copy_as_after_kill(folder, crashed)
    return crashed, sent


def end_of(folder: Path) -> int:
    """Where the log ends."""
    reader = LogReader(str(folder / "log"), cast(bytes, log_id_of(str(folder))), 0)
    assert list(reader)
    return reader.tail.at


async def ids_in(engine: str, folder: Path) -> list[str]:
    """Open a folder and take everything."""
    async with store_in(f"{engine}:{folder}") as store:
        return await take_all(store, "default")


async def refusal(engine: str, folder: Path) -> str:
    store = open_store(f"{engine}:{folder}")
    with pytest.raises(StoreCorrupt) as caught:
        await store.open()
    await store.close()
    return caught.value.text


def flip(path: Path, at: int, bit: int = 4) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1 << bit
    path.write_bytes(raw)


# Damage


async def test_one_flipped_byte_in_the_middle_of_the_log_is_refused_and_says_what_to_do(
    url: str, engine: str, folder: Path
) -> None:
    crashed, sent = await crashed_after(url, folder, 200)
    log = log_of(crashed)
    middle = end_of(crashed) // 2
    flip(log, middle)
    text = await refusal(engine, crashed)
    assert str(log) in text
    assert "damaged" in text
    assert "backup" in text
    # Nothing was changed: with the byte put right everything is there.
    flip(log, middle)
    assert await ids_in(engine, crashed) == sent


async def test_flipped_byte_anywhere_in_the_log_is_never_passed_over_in_silence(
    url: str, engine: str, folder: Path
) -> None:
    crashed, sent = await crashed_after(url, folder, 12)
    log = log_of(crashed)
    chance = random.Random(7)
    raw = log.read_bytes()
    refused = 0
    for at in range(0, end_of(crashed), 29):
        flip(log, at, chance.randrange(8))
        copy = folder.with_name("copy")
        shutil.copytree(crashed, copy)
        try:
            assert await ids_in(engine, copy) == sent, f"byte {at}"
        except StoreCorrupt:
            refused += 1
        shutil.rmtree(copy)
        log.write_bytes(raw)
    assert refused > 100


async def test_a_last_change_that_was_torn_is_dropped_and_stays_away(url: str, engine: str, folder: Path) -> None:
    async with opened(url) as broker:
        sent = [(await send(broker, "default", number))[0] for number in range(5)]
        await broker.send("default", [Draft(b"x" * 9000, "text/plain")])
        crashed = folder.with_name("crashed")
        copy_as_after_kill(folder, crashed)
    log = log_of(crashed)
    raw = log.read_bytes()
    end = end_of(crashed)
    for cut in range(end // 512 * 512 - 8192, end, 512):
        copy = folder.with_name("copy")
        shutil.copytree(crashed, copy)
        log_of(copy).write_bytes(raw[:cut] + bytes(len(raw) - cut))
        async with opened(f"{engine}:{copy}") as broker:
            more = await send(broker, "default", "after")
        assert await ids_in(engine, copy) == [*sent, *more]
        shutil.rmtree(copy)


async def test_leases_that_were_not_synced_may_be_gone_after_a_power_loss(url: str, engine: str, folder: Path) -> None:
    async with opened(url) as broker:
        sent = [(await send(broker, "default", number))[0] for number in range(5)]
        copy_as_after_kill(folder, folder.with_name("before"))
        assert len(await broker.receive("default")) == 1
        crashed = folder.with_name("crashed")
        copy_as_after_kill(folder, crashed)
    log = log_of(crashed)
    before, raw = end_of(folder.with_name("before")), log.read_bytes()
    assert before < end_of(crashed)
    log.write_bytes(raw[:before] + bytes(len(raw) - before))
    assert await ids_in(engine, crashed) == sent


async def test_a_log_that_is_missing_is_refused(url: str, engine: str, folder: Path) -> None:
    crashed, sent = await crashed_after(url, folder, 3)
    (crashed / "log").rename(crashed / "elsewhere")
    assert f"{crashed / 'log'} is damaged (it has no segment)" in await refusal(engine, crashed)
    (crashed / "elsewhere").rename(crashed / "log")
    assert await ids_in(engine, crashed) == sent


async def test_changes_that_the_engine_has_not_written_are_applied_at_the_start(
    url: str, engine: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is cut into small segments, and the engine is stopped in the middle of them."""
    monkeypatch.setattr(commit_log, "LARGEST", 64 * 1024)
    monkeypatch.setattr(logged, "LARGEST", 1024 * 1024 * 1024)
    crashed, sent = await crashed_after(url, folder, 1500)
    assert len(list((crashed / "log").glob("*.segment"))) >= 4
    assert await ids_in(engine, crashed) == sent


async def test_extent_that_is_damaged_or_missing_stands_in_nobodys_way(folder: Path) -> None:
    crashed, sent = await crashed_after(f"rocksdb:{folder}", folder, 3)
    for raw in (b"", b"\0" * 44, b"x" * 44, (crashed / "data" / EXTENT).read_bytes()[:-1]):
        copy = folder.with_name("copy")
        shutil.copytree(crashed, copy)
        (copy / "data" / EXTENT).write_bytes(raw)
        assert await ids_in("rocksdb", copy) == sent
        shutil.rmtree(copy)


async def test_extent_that_cannot_be_opened_is_told(folder: Path) -> None:
    crashed, _ = await crashed_after(f"rocksdb:{folder}", folder, 1)
    (crashed / "data" / EXTENT).unlink()
    (crashed / "data" / EXTENT).mkdir()
    store = open_store(f"rocksdb:{crashed}")
    with pytest.raises(StoreError, match=r"cannot open .*EXTENT"):
        await store.open()
    await store.close()


@pytest.mark.parametrize("part", [0.3, 0.7])
async def test_damage_in_a_table_is_an_error_and_never_a_wrong_message_or_one_less(
    url: str, engine: str, folder: Path, part: float
) -> None:
    chance = random.Random(3)
    async with opened(url) as broker:
        for _ in range(30):
            await broker.send("default", [Draft(chance.randbytes(1500), "application/x-noise") for _ in range(500)])
    async with opened(url):
        pass  # what the log held is in tables now
    tables = [path for path in (folder / "data").iterdir() if path.suffix in (".sst", ".ldb")]
    table = max(tables, key=lambda path: path.stat().st_size)
    flip(table, int(table.stat().st_size * part))
    with pytest.raises(StoreCorrupt) as caught:
        await ids_in(engine, folder)
    assert str(folder) in caught.value.text
    assert ".log" not in caught.value.text
    assert "backup" in caught.value.text


# What survives


async def test_every_kind_of_state_survives_a_restart(url: str) -> None:
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        await broker.configure("q", {"history": "events", "dedup_window": 600, "max_receives": 7})
        plain = await send(broker, "q", *range(6))
        await send(broker, "q", "low", priority=0)
        await send(broker, "q", "high", priority=9)
        await send(broker, "q", "later", delay=100)
        await send(broker, "q", "for ann", recipient="ann")
        for number in range(3):
            await send(broker, "q", f"g{number}", group="g")
        dup = await send(broker, "q", "once", dedup_id="d")
        high = await broker.receive("q")
        assert bodies(high) == ["high"]
        held = await broker.receive("q", max=3, visibility_timeout=50)
        assert await broker.ack("q", leases(held[:1])) == ["done"]
        assert await broker.release("q", leases(held[1:2])) == ["done"]
        await broker.extend("q", leases(high), 70)
        before = await broker.queue("q")
        history = (await broker.history(limit=1000)).records
        found = {id: await broker.get("q", id) for id in [*plain[1:], ids(high)[0], dup[0]]}
    async with opened(url, clock) as broker:
        assert await broker.queue("q") == before
        assert {id: await broker.get("q", id) for id in found} == found
        assert (await broker.history(limit=1000)).records == history
        assert await send(broker, "q", "twice", dedup_id="d") == dup
        # The released one first, with one receive; the leased ones not at all.
        got = await broker.receive("q", max=100)
        assert bodies(got) == [1, 3, 4, 5, "low", "g0", "once"]
        assert [stored.receives for stored in got] == [2, 1, 1, 1, 1, 1, 1]
        assert bodies(await broker.receive("q", consumer="ann")) == ["for ann"]
        assert await broker.receive("q", max=100) == []
        # Receipts from before the restart still count, and count once.
        assert await broker.ack("q", leases(high)) == ["done"]
        assert await broker.ack("q", leases(high)) == ["missing"]
        assert await broker.ack("q", [leases(got)[5]]) == ["done"]
        assert bodies(await broker.receive("q", max=100)) == ["g1"]
        assert await states(broker, "q") == (0, 2, 9) or await states(broker, "q") == (1, 1, 9)
        clock.advance(100)
        again = await broker.receive("q", max=100)
        assert "later" in bodies(again)
        assert {stored.message.id: stored.receives for stored in again}[plain[2]] == 2
        offsets = [record.offset for record in (await broker.history(limit=1000)).records]
        assert offsets == list(range(1, len(offsets) + 1))


async def test_lease_goes_on_across_a_restart_to_the_microsecond(url: str) -> None:
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        await send(broker, "q", "x")
        (held,) = await broker.receive("q", visibility_timeout=30)
    clock.advance(29.999999)
    async with opened(url, clock) as broker:
        assert await broker.receive("q") == []
        assert (await broker.get("q", held.message.id)).visible_at == held.visible_at
        clock.advance(0.000001)
        (again,) = await broker.receive("q")
        assert again.receives == 2


async def test_lease_that_ran_out_while_the_store_was_closed_is_over(url: str) -> None:
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        await broker.configure("q", {"history": "events"})
        await send(broker, "q", "a", "b")
        (held,) = await broker.receive("q")
    clock.advance(31)
    async with opened(url, clock) as broker:
        assert await states(broker, "q") == (2, 0, 0)
        (again,) = await broker.receive("q")
        assert (again.message.id, again.receives) == (held.message.id, 2)
        assert await broker.ack("q", leases([held])) == ["stale"]
        events = [record.event for record in (await broker.history(limit=100)).records]
        assert [(event.event, event.reason) for event in events[-2:]] == [("expired", "lease"), ("received", None)]


async def test_late_ack_after_a_restart_counts_if_nobody_else_got_the_message(url: str) -> None:
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        await send(broker, "q", "a")
        held = await broker.receive("q")
    clock.advance(3600)
    async with opened(url, clock) as broker:
        assert await broker.ack("q", leases(held)) == ["done"]
    async with opened(url, clock) as broker:
        assert await broker.receive("q") == []
        assert await states(broker, "q") == (0, 0, 0)


async def test_group_keeps_its_head_and_its_order_across_restarts(url: str) -> None:
    clock = FrozenClock()
    order: list[str] = []
    async with opened(url, clock) as broker:
        for number in range(4):
            await send(broker, "q", number, group="g", priority=number)
        held = await broker.receive("q", max=10)
        assert bodies(held) == [0]
    for _ in range(4):
        async with opened(url, clock) as broker:
            # The one in flight still blocks the others.
            assert await broker.receive("q", max=10) == []
            order += bodies(held)
            assert await broker.ack("q", leases(held)) == ["done"]
        async with opened(url, clock) as broker:
            held = await broker.receive("q", max=10)
            assert len(held) <= 1
    assert order == [0, 1, 2, 3]
    assert held == []


async def test_ids_keep_rising_when_the_clock_was_set_back_while_closed(url: str) -> None:
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        first = await send(broker, "q", *range(300))
    async with opened(url, FrozenClock(START - 3600 * SECOND)) as broker:
        second = await send(broker, "q", *range(300))
        third = await send(broker, "q", "x")
    async with opened(url, FrozenClock(START - 7200 * SECOND)) as broker:
        fourth = await send(broker, "q", "y")
        sent = first + second + third + fourth
        assert sent == sorted(sent)
        assert len(set(sent)) == len(sent)
        assert ids(await broker.receive("q", max=1000)) == sent


async def test_ids_keep_rising_though_everything_was_acked_and_purged(url: str) -> None:
    async with opened(url) as broker:
        before = await send(broker, "q", 1)
        await drain(broker, "q")
        before += await send(broker, "q", 2)
        await broker.purge("q")
        await broker.delete_queue("q")
    async with opened(url, FrozenClock(START - 3600 * SECOND)) as broker:
        assert before + (after := await send(broker, "q", 3)) == sorted(before + after)


async def test_history_offsets_go_on_after_everything_was_trimmed(url: str) -> None:
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        await broker.configure("q", {"history": "events"})
        await send(broker, "q", 1, 2, 3)
        await broker.store.history.trim(10)
        assert (await broker.history()).records == []
    async with opened(url, clock) as broker:
        span = await broker.history_span()
        assert (span.first, span.last, span.bytes) == (4, 3, 0)
        await send(broker, "q", 4)
        assert [record.offset for record in (await broker.history()).records] == [4]


async def test_purged_and_deleted_queues_stay_so_and_are_swept(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = seam(monkeypatch)
    clock = FrozenClock()
    async with opened(url, clock) as broker:
        for queue in ("purged", "deleted"):
            await send(broker, queue, *range(300))
            await send(broker, queue, "g", "g", group="g")
            await send(broker, queue, "d", dedup_id="d")
            await broker.receive(queue, max=50)
        await broker.purge("purged")
        await broker.delete_queue("deleted")
    async with opened(url, clock) as broker:
        assert (await broker.queue("purged")).counts.total == 0
        assert await broker.receive("purged") == []
        assert "deleted" not in broker.catalog.names()
        await send(broker, "deleted", "new")
        assert await drain(broker, "deleted") == ["new"]
        clock.advance(301)
        while await broker.store.tidy(now=clock.now(), limit=100):
            pass
        kinds = {key[:1] for key, _ in made[-1].kv.scan(b"", b"\xff")}
        assert kinds <= {b"a", b"q", b"c", b"l", b"k"}


async def test_start_reads_what_is_leased_and_not_the_backlog(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = seam(monkeypatch)
    maker = Maker()
    async with store_in(url, "q") as store:
        for _ in range(200):
            await put(store, [message for _ in range(8) for message in maker.run(125)])
        assert (await store.messages.counts("q", START)).ready == 200_000
        first = await take(store, limit=1000)
        await drop(store, [(stored.message.id, "t") for stored in first])
        await take(store, limit=3)
    async with store_in(url) as store:
        assert made[-1].reads < 50
        (next_one,) = await take(store, now=START)
        assert next_one.message.id > first[-1].message.id
        assert (await store.messages.counts("q", START)).total == 199_000
        assert made[-1].reads < 100


async def test_start_of_an_emptied_queue_does_not_pass_over_what_was_removed(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = seam(monkeypatch)
    maker = Maker()
    async with store_in(url, "q") as store:
        for _ in range(20):
            await put(store, [message for _ in range(8) for message in maker.run(125)])
        while got := await take(store, limit=1000):
            await drop(store, [(stored.message.id, "t") for stored in got])
        last = await put(store, maker.run(1))
    async with store_in(url) as store:
        assert await take_all(store) == last
        assert made[-1].reads < 30


# The lows in the counter record


async def test_block_that_was_read_before_it_was_confirmed_is_not_hidden_by_a_restart(
    url: str, folder: Path, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receive may read from disk what the commit thread has just written and the event loop has not yet
    confirmed. It passes it over, and lets it in later, out of turn."""
    made = seam(monkeypatch)
    maker = Maker()
    crashed = folder.with_name("crashed")
    async with store_in(url, "q") as store:
        await put(store, maker.run(1))
        await take(store)
    async with store_in(url) as store:
        written, go_on = threading.Event(), threading.Event()

        def hold() -> None:
            written.set()
            assert go_on.wait(10)

        made[-1].hold_after_write = hold
        in_company(store)
        sends = [asyncio.create_task(put(store, maker.run(100))) for _ in range(2)]
        assert await asyncio.to_thread(written.wait, 10)
        assert await take(store) == []
        made[-1].hold_after_write = lambda: None
        go_on.set()
        sent = [id for ids in await asyncio.gather(*sends) for id in ids]
        taken = await take(store, limit=60, token="u")
        await put(store, [maker.one()])
        copy_as_after_kill(folder, crashed)
    assert [stored.message.id for stored in taken] == sent[:60]
    async with store_in(f"{engine}:{crashed}") as store:
        assert (await take_all(store))[:-1] == sent[60:]


@pytest.mark.parametrize("seed", range(6))
async def test_nothing_is_hidden_by_restarts_at_any_moment(
    url: str, folder: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Send, take, release, redrive, change priorities, purge, restart in any order; then drain and compare."""
    for name, value in {"LANE_MESSAGES": 8, "TOTAL_MESSAGES": 24, "READ_MESSAGES": 4, "OWNERS": 2}.items():
        monkeypatch.setattr(window, name, value)
    chance = random.Random(seed)
    maker = Maker()
    there: dict[str, set[str]] = {"q": set(), "dead": set()}
    now = START
    token = 0
    engine = url.partition(":")[0]
    generation = folder
    store = EmbeddedStore(engine, str(generation))
    await store.open()
    for queue in there:
        await store.save_queue(queue, QueueSettings())
    for step in range(400):
        queue = chance.choice(["q", "q", "q", "dead"])
        other = "dead" if queue == "q" else "q"
        some = sorted(there[queue])
        picked = chance.sample(some, min(len(some), chance.randint(1, 6)))
        maker.queue, maker.now = queue, now
        match chance.randrange(12):
            case 0 | 1:
                sent = await put(store, maker.run(chance.randint(1, 20), priority=chance.choice([0, 0, 5])), now=now)
                there[queue] |= set(sent)
            case 2:
                fields = chance.choice([{"group": "g"}, {"group": "h"}, {"recipient": "ann"}, {"delay": 5}])
                there[queue] |= set(await put(store, [maker.one(**fields)], now=now))
            case 3 | 4 | 5:
                token += 1
                until = now + chance.choice([0, 3, 20]) * SECOND
                asked = {"limit": chance.randint(1, 15), "consumer": chance.choice([None, "ann", "bob", "cy", "di"])}
                got = await take(store, queue, now=now, until=until, token=f"t{token}", **asked)
                assert {stored.message.id for stored in got} <= there[queue]
                for stored in got[: chance.randint(0, len(got))]:
                    if chance.random() < 0.5:
                        assert await drop(store, [(stored.message.id, f"t{token}")], queue, now=now) == ["done"]
                        there[queue].discard(stored.message.id)
                    else:
                        await _release(store, queue, stored.message.id, now, now + chance.choice([0, 4]) * SECOND)
            case 6:
                for id in picked:
                    edit = Edit(priority=chance.choice([0, 5, 9]), body=b'"edited"')
                    await store.messages.edit(queue, (id, ANY), edit, Change(now))
            case 7 | 8:
                moves = [((id, FREE), await _moved(store, queue, id, other, now)) for id in picked]
                done = await store.messages.move(queue, moves, Change(now, event="redriven"), "off")
                for id, outcome in zip(picked, done, strict=True):
                    if outcome == "done":
                        there[queue].discard(id)
                        there[other].add(id)
            case 9 if step % 7 == 0:
                assert await store.messages.clear(queue, Change(now)) == len(there[queue])
                there[queue].clear()
            case 10:
                now += chance.choice([1, 2, 10]) * SECOND
            case 11:
                if chance.random() < 0.5:
                    await store.close()
                else:
                    # As after a kill: what was staged at the end is not written by a close.
                    copy = folder.with_name(f"after-{step}")
                    copy_as_after_kill(generation, copy)
                    await store.close()
                    generation = copy
                store = EmbeddedStore(engine, str(generation))
                await store.open()
    for queue, expected in there.items():
        assert (await store.messages.counts(queue, now)).total == len(expected)
    await store.close()
    report = check(str(generation))
    assert (report.damage, report.unverified) == ([], [])
    assert {queue.name: queue.messages for queue in report.queues} == {name: len(ids) for name, ids in there.items()}
    store = EmbeddedStore(engine, str(generation))
    await store.open()
    now += 3600 * SECOND
    for queue, expected in there.items():
        got_ids: set[str] = set()
        while got := await take(store, queue, now=now, limit=7, token="end", until=now + SECOND, consumer="ann"):
            found = {stored.message.id for stored in got}
            assert not found & got_ids
            got_ids |= found
            await drop(store, [(id, "end") for id in found], queue, now=now)
        assert got_ids == expected
        counts = await store.messages.counts(queue, now)
        assert (counts.total, counts.bytes) == (0, 0)
    await store.close()


async def _release(store: EmbeddedStore, queue: str, id: str, now: int, at: int) -> None:
    await store.messages.reschedule(queue, [(id, ANY)], NewTime(at, release=True), Change(now, event="released"))


async def _moved(store: EmbeddedStore, queue: str, id: str, to: str, now: int) -> Message:
    stored = await find(store, id, queue)
    assert stored is not None
    old = stored.message
    return Message(
        old.id, to, old.sent_at, now, old.body, old.content_type, old.priority, None, None, None, old.recipient,
        old.group,
    )  # fmt: skip
