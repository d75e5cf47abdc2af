"""Results: kept with the ack or the last failure in one change, waited for, and forgotten in time; on every store."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec import UNSET, Raw

from miniq.broker import Broker
from miniq.errors import Denied, InvalidRequest, QueueNotFound, ResultsOff, TooLarge, Unauthorized
from miniq.message import LEASE_EXPIRED, AckedLease, Stored, moment
from miniq.options import Options
from miniq.result import Progress
from miniq.store import open_store
from miniq.store.contract import Store
from miniq.store.transfer import Kept, copy
from tests.clock import FrozenClock
from tests.conftest import ENGINES, store_url
from tests.kit import case, draft, ids, leases, send, settle, sleepers, states, waiting

KEPT = 100


@pytest.fixture
async def broker(url: str, clock: FrozenClock) -> AsyncIterator[Broker]:
    """A broker whose queue `q` keeps results."""
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as opened:
        await opened.configure("q", {"results": KEPT})
        yield opened


def with_results(got: list[Stored], *results: Any) -> list[AckedLease]:
    """Leases to ack with results; `...` is none."""
    raws = [UNSET if result is ... else Raw(json.dumps(result).encode()) for result in results]
    return [AckedLease(lease.id, lease.receipt, raw) for lease, raw in zip(leases(got), raws, strict=True)]


async def kept(store: Store) -> list[Kept]:
    return [item async for portion in store.dump() for item in portion if isinstance(item, Kept)]


async def test_a_message_waits_runs_and_is_done_with_its_result(broker: Broker, clock: FrozenClock) -> None:
    (id,) = await send(broker, "q", 1)
    assert await broker.results.get("q", id) == Progress(id, "waiting")
    got = await broker.receive("q")
    assert await broker.results.get("q", id) == Progress(id, "running")
    clock.advance(3)
    assert await broker.ack("q", with_results(got, {"ok": [1, None, "ü"]})) == ["done"]
    done = Progress(id, "done", b'{"ok": [1, null, "\\u00fc"]}', None, clock.now())
    assert await broker.results.get("q", id) == done
    clock.advance(KEPT - 0.1)
    assert await broker.results.get("q", id) == done
    clock.advance(0.1)
    assert await broker.results.get("q", id) == Progress(id, "unknown")


async def test_many_acks_keep_each_its_own_result(broker: Broker, clock: FrozenClock) -> None:
    sent = await send(broker, "q", *range(300))
    got = await broker.receive("q", max=300)
    results = [... if number % 3 == 0 else number for number in range(300)]
    assert await broker.ack("q", with_results(got[:200], *results[:200])) == ["done"] * 200
    # Not in order, one twice, one with a wrong receipt, one that never was.
    rest = with_results(got[200:], *results[200:])[::-1]
    strange = [AckedLease(sent[0], "wrong", Raw(b"0")), AckedLease("nowhere", "wrong", Raw(b"0"))]
    outcomes = await broker.ack("q", [*rest, AckedLease(rest[0].id, rest[0].receipt, Raw(b'"again"')), *strange])
    assert outcomes == ["done"] * 100 + ["missing"] * 3
    for id, result in zip(sent, results, strict=True):
        expected = None if result is ... else str(result).encode()
        assert await broker.results.get("q", id) == Progress(id, "done", expected, None, clock.now())
    assert await broker.results.get("q", "nowhere") == Progress("nowhere", "unknown")


async def test_an_ack_that_comes_too_late_changes_no_result(broker: Broker, clock: FrozenClock) -> None:
    (id,) = await send(broker, "q", 1)
    late = await broker.receive("q", visibility_timeout=1)
    clock.advance(1)
    assert await broker.results.get("q", id) == Progress(id, "waiting", error=LEASE_EXPIRED)
    got = await broker.receive("q")
    assert await broker.ack("q", with_results(late, "late")) == ["stale"]
    assert (await broker.results.get("q", id)).status == "running"
    assert await broker.ack("q", with_results(got, "right")) == ["done"]
    assert await broker.ack("q", with_results(got, "again")) == ["missing"]
    assert (await broker.results.get("q", id)).result == b'"right"'


async def test_a_dead_message_has_its_error_until_it_is_redriven(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_receives": 2, "retry": {"delay": 0, "jitter": 0}})
    (id,) = await send(broker, "q", 1)
    await broker.deliveries.fail("q", leases(await broker.receive("q")), "first")
    assert await broker.results.get("q", id) == Progress(id, "waiting", error="first")
    await broker.deliveries.fail("q", leases(await broker.receive("q")), "second \0 ü")
    dead = Progress(id, "dead", None, "second \0 ü", clock.now())
    assert await broker.results.get("q", id) == dead
    await broker.purge("q.dead")
    assert await broker.results.get("q", id) == dead

    (id,) = await send(broker, "q", 2)
    await broker.deliveries.fail("q", leases(await broker.receive("q")), "bad", dead=True)
    await broker.redrive("q.dead")
    assert await broker.results.get("q", id) == Progress(id, "waiting")
    clock.advance(1)
    await broker.ack("q", with_results(await broker.receive("q"), 7))
    assert await broker.results.get("q", id) == Progress(id, "done", b"7", None, clock.now())


async def test_a_message_that_wore_out_without_a_word_is_dead_too(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"max_receives": 1})
    (id,) = await send(broker, "q", 1)
    await broker.receive("q", visibility_timeout=1)
    clock.advance(1)
    task = await waiting(broker, broker.results.get("q", id, wait=60))
    assert await broker.receive("q") == []
    assert await asyncio.wait_for(task, 5) == Progress(id, "dead", None, LEASE_EXPIRED, clock.now())


async def test_a_dead_copy_of_a_published_message_is_dead_in_its_queue(broker: Broker, clock: FrozenClock) -> None:
    await broker.topics.subscribe("t", "q")
    (id,) = (await broker.publish("t", [draft(1)])).ids
    await send(broker, "q", 2)
    got = await broker.receive("q", max=2)
    await broker.deliveries.fail("q", leases(got), "bad", dead=True)
    for each in ids(got):
        assert await broker.results.get("q", each) == Progress(each, "dead", None, "bad", clock.now())
    assert id in ids(got)


async def test_what_leaves_without_an_ack_is_unknown_and_at_most_once_is_done(
    broker: Broker, clock: FrozenClock
) -> None:
    removed, purged = await send(broker, "q", 1, 2)
    short = (await send(broker, "q", 3, ttl=1))[0]
    await broker.remove("q", removed)
    clock.advance(1)
    assert (await broker.results.get("q", short)).status == "unknown"
    await broker.upkeep()
    await broker.purge("q")
    for id in (removed, purged, short):
        assert await broker.results.get("q", id) == Progress(id, "unknown")
    (once,) = await send(broker, "q", 4)
    await broker.receive("q", mode="at-most-once")
    assert await broker.results.get("q", once) == Progress(once, "done", None, None, clock.now())
    (short_route,) = await send(broker, "q", 5)
    assert await broker.ack_by_id("q", short_route)
    assert (await broker.results.get("q", short_route)).status == "done"


async def test_a_message_of_a_claim_runs_until_the_claim_is_acked(broker: Broker) -> None:
    (id,) = await send(broker, "q", 1)
    await broker.claims.next("q", "g", 0)
    assert (await broker.results.get("q", id)).status == "running"
    await broker.claims.fetch("q", "g", 1)
    await broker.claims.ack("q", "g", 1)
    assert (await broker.results.get("q", id)).status == "unknown"


async def test_groups_go_on_after_an_ack_with_a_result(broker: Broker) -> None:
    for group_batch in (False, True):
        await broker.configure("q", {"group_batch": group_batch})
        sent = await send(broker, "q", 1, 2, 3, group="g")
        while got := await broker.receive("q", max=10):
            assert set(await broker.ack("q", with_results(got, *ids(got)))) == {"done"}
        for id in sent:
            assert (await broker.results.get("q", id)).result == json.dumps(id).encode()


async def test_history_and_numbers_are_the_same_with_results(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("q", {"history": "events", "max_length": 2})
    (first, second) = await send(broker, "q", 1, 2)
    await broker.ack("q", with_results(await broker.receive("q"), 1))
    await broker.deliveries.fail("q", leases(await broker.receive("q")), "bad", dead=True)
    events = [(record.event.event, record.event.id) for record in (await broker.history(queue="q")).records]
    assert events == [
        ("sent", first), ("sent", second), ("received", first), ("acked", first),
        ("received", second), ("dead", second),
    ]  # fmt: skip
    assert await states(broker, "q") == (0, 0, 0)
    assert (await broker.queue("q")).counts.bytes == 0
    await send(broker, "q", 3, 4)  # there is room: results do not count
    assert broker.metrics.messages["q", "acked"] == 1


async def test_a_queue_that_keeps_no_results_says_so(broker: Broker) -> None:
    (id,) = await send(broker, "plain", 1)
    with pytest.raises(
        ResultsOff, match=r"queue: 'plain' keeps no results; set `results` to the number of seconds to keep them"
    ):
        await broker.results.get("plain", id)
    assert await broker.ack("plain", with_results(await broker.receive("plain"), "ignored")) == ["done"]
    with pytest.raises(QueueNotFound):
        await broker.results.get("nowhere", id)
    assert not await kept(broker.store)


async def test_a_result_has_a_limit_and_a_refused_ack_changes_nothing(broker: Broker) -> None:
    ones = await send(broker, "q", 1, 2)
    got = await broker.receive("q", max=2)
    largest = "x" * (64 * 1024 - 2)
    with pytest.raises(TooLarge, match=r"leases\[1\]\.result: 65537 bytes; at most 65536") as raised:
        await broker.ack("q", with_results(got, 1, largest + "x"))
    assert raised.value.field == "leases[1].result"
    assert (await broker.results.get("q", ones[0])).status == "running"
    assert await broker.ack("q", with_results(got, largest, ...)) == ["done", "done"]
    assert (await broker.results.get("q", ones[0])).result == json.dumps(largest).encode()


async def test_settings_outside_the_range_are_refused(broker: Broker) -> None:
    for value in (-1, "1", True, float("nan"), 4e9):
        with case(value), pytest.raises(InvalidRequest, match=r"^results: "):
            await broker.configure("q", {"results": value})
    assert (await broker.queue("q")).settings.results == KEPT


async def test_results_are_removed_when_their_time_is_over_and_with_their_queue(
    broker: Broker, clock: FrozenClock
) -> None:
    await broker.configure("other", {"results": 5})
    for queue in ("q", "other"):
        await send(broker, queue, 1, 2, 3)
        await broker.ack(queue, leases(await broker.receive(queue, max=3)))
    assert len(await kept(broker.store)) == 6
    clock.advance(5)
    await broker.upkeep()
    assert {item.queue for item in await kept(broker.store)} == {"q"}
    await broker.purge("q")
    assert len(await kept(broker.store)) == 3
    await broker.delete_queue("q")
    await broker.upkeep()
    await broker.configure("q", {"results": KEPT})
    assert not await kept(broker.store)


async def test_a_redriven_message_keeps_its_newer_result_when_the_older_is_over(
    broker: Broker, clock: FrozenClock
) -> None:
    (id,) = await send(broker, "q", 1)
    await broker.deliveries.fail("q", leases(await broker.receive("q")), "bad", dead=True)
    clock.advance(KEPT - 1)
    await broker.redrive("q.dead")
    await broker.ack("q", with_results(await broker.receive("q"), 2))
    clock.advance(1)
    await broker.upkeep()
    assert (await broker.results.get("q", id)).result == b"2"
    clock.advance(KEPT - 1)
    await broker.upkeep()
    assert not await kept(broker.store)


@pytest.mark.parametrize("kind", [*ENGINES, "postgresql", "mongodb"])
async def test_results_survive_a_restart_and_are_copied(kind: str, clock: FrozenClock, tmp_path: Path) -> None:
    url = store_url(kind, tmp_path)
    options = Options(upkeep_interval=0)
    async with Broker(open_store(url), options, clock) as broker:
        await broker.configure("q", {"results": KEPT})
        done, dead = await send(broker, "q", 1, 2)
        await broker.ack("q", with_results(await broker.receive("q"), {"a": 1}))
        await broker.deliveries.fail("q", leases(await broker.receive("q")), "bad", dead=True)
    expected = [
        Progress(done, "done", b'{"a": 1}', None, clock.now()),
        Progress(dead, "dead", None, "bad", clock.now()),
    ]
    source = open_store(url)
    await source.open()
    target = open_store(f"rocksdb:{tmp_path / 'copy'}")
    await target.open()
    await copy(source, target, now=clock.now())
    await target.close()
    await source.close()
    for again in (url, f"rocksdb:{tmp_path / 'copy'}"):
        async with Broker(open_store(again), options, clock) as broker:
            assert [await broker.results.get("q", id) for id in (done, dead)] == expected


# Waiting


async def test_an_ack_wakes_the_calls_that_wait_for_this_result(broker: Broker, clock: FrozenClock) -> None:
    first, second = await send(broker, "q", 1, 2)
    tasks = [await waiting(broker, broker.results.get("q", id, wait=60)) for id in (first, first, second)]
    got = await broker.receive("q")
    await settle(broker)
    assert not any(task.done() for task in tasks)
    await broker.ack("q", with_results(got, "done"))
    for task in tasks[:2]:
        assert await asyncio.wait_for(task, 5) == Progress(first, "done", b'"done"', None, clock.now())
    await broker.deliveries.fail("q", leases(await broker.receive("q")), "bad", dead=True)
    assert (await asyncio.wait_for(tasks[2], 5)).error == "bad"
    assert not broker.results._waiting


async def test_the_ack_of_a_claim_wakes_the_calls_that_wait(broker: Broker) -> None:
    (id,) = await send(broker, "q", 1)
    task = await waiting(broker, broker.results.get("q", id, wait=60))
    await broker.claims.next("q", "g", 0)
    await broker.claims.fetch("q", "g", 1)
    await broker.claims.ack("q", "g", 1)
    assert (await asyncio.wait_for(task, 5)).status == "unknown"


async def test_a_wait_ends_at_its_deadline_with_what_is_known(broker: Broker, clock: FrozenClock) -> None:
    (id,) = await send(broker, "q", 1)
    await broker.receive("q")
    task = await waiting(broker, broker.results.get("q", id, wait=5))
    clock.advance(5)
    assert await asyncio.wait_for(task, 5) == Progress(id, "running")
    assert await broker.results.get("q", "never", wait=60) == Progress("never", "unknown")
    for wait in (-1, 61, float("inf")):
        with case(wait), pytest.raises(InvalidRequest, match=r"^wait: "):
            await broker.results.get("q", id, wait=wait)


@pytest.mark.parametrize("how", ["purge", "remove", "delete", "off"])
async def test_a_wait_ends_when_there_is_nothing_to_wait_for(broker: Broker, how: str) -> None:
    (id,) = await send(broker, "q", 1)
    task = await waiting(broker, broker.results.get("q", id, wait=60))
    if how == "purge":
        await broker.purge("q")
    elif how == "remove":
        await broker.remove("q", id)
    elif how == "delete":
        await broker.delete_queue("q")
    else:
        await broker.configure("q", {"results": 0})
    if how in ("purge", "remove"):
        assert await asyncio.wait_for(task, 5) == Progress(id, "unknown")
    else:
        with pytest.raises(QueueNotFound if how == "delete" else ResultsOff):
            await asyncio.wait_for(task, 5)
    assert not broker.results._waiting


async def test_a_wait_ends_with_its_permit_its_caller_and_its_broker(broker: Broker) -> None:
    (id,) = await send(broker, "q", 1)
    allowed = [True]

    def permit() -> None:
        if not allowed[0]:
            raise Unauthorized("revoked")

    revoked = await waiting(broker, broker.results.get("q", id, wait=60, permit=permit))
    left = await waiting(broker, broker.results.get("q", id, wait=60))
    last = await waiting(broker, broker.results.get("q", id, wait=60))
    allowed[0] = False
    broker._check_permits()
    with pytest.raises(Denied):
        await asyncio.wait_for(revoked, 5)
    await settle(broker)
    left.cancel()
    await asyncio.gather(left, return_exceptions=True)
    assert len(sleepers(broker)) == 1
    broker.begin_shutdown()
    assert (await asyncio.wait_for(last, 5)).status == "waiting"
    assert not broker.results._waiting


@pytest.mark.parametrize("kind", ["postgresql", "mongodb"])
async def test_a_broker_wakes_the_waits_at_another_one(kind: str, tmp_path: Path) -> None:
    url = store_url(kind, tmp_path)
    # No regular look comes to the rescue: only the hint can end the wait.
    options = Options(upkeep_interval=0, refresh_interval=3600.0)
    async with AsyncExitStack() as stack:
        here, there = [await stack.enter_async_context(Broker(open_store(url), options)) for _ in range(2)]
        await here.configure("q", {"results": KEPT})
        sent = await send(here, "q", *range(5))
        tasks = [await waiting(here, here.results.get("q", id, wait=60)) for id in sent]
        got = await there.receive("q", max=5)
        await there.ack("q", with_results(got[:3], 0, 1, 2))
        await there.deliveries.fail("q", leases(got[3:4]), "bad", dead=True)
        found = await asyncio.wait_for(asyncio.gather(*tasks[:4]), 30)
        assert [(one.status, one.result, one.error) for one in found] == [
            ("done", b"0", None), ("done", b"1", None), ("done", b"2", None), ("dead", None, "bad"),
        ]  # fmt: skip
        await settle(here)
        assert not tasks[4].done()
        assert await there.results.get("q", sent[0]) == found[0]
        await there.ack("q", leases(got[4:]))
        assert (await asyncio.wait_for(tasks[4], 30)).status == "done"


async def test_acks_of_two_brokers_that_meet_keep_every_result(tmp_path: Path, clock: FrozenClock) -> None:
    """Messages of one block, acked one by one by two brokers at the same time."""
    for kind in ("postgresql", "mongodb"):
        url = store_url(kind, tmp_path / kind)
        options = Options(upkeep_interval=0)
        async with Broker(open_store(url), options) as one, Broker(open_store(url), options) as two:
            await one.configure("q", {"results": KEPT})
            await send(one, "q", *range(40))
            got = await one.receive("q", max=40)
            await two.catalog.refresh()
            acks = [
                (one if place % 2 else two).ack("q", with_results([stored], place)) for place, stored in enumerate(got)
            ]
            assert await asyncio.gather(*acks) == [["done"]] * 40
            for place, stored in enumerate(got):
                assert (await one.results.get("q", stored.message.id)).result == str(place).encode()
            assert await states(one, "q") == (0, 0, 0)


# Results under ids of one's own

OWN = "0b2c5e0e-7f0a-4d3f-9a35-7c1a4cb41d3e"
OTHER = "1b2c5e0e-7f0a-4d3f-9a35-7c1a4cb41d3e"


async def test_a_result_is_put_replaced_and_forgotten(broker: Broker, clock: FrozenClock) -> None:
    put, get = broker.results.put, broker.results.get
    assert await put("q", OWN, Raw(b'{"a": 1}'))
    assert await get("q", OWN) == Progress(OWN, "done", b'{"a": 1}', None, clock.now())
    assert await get("q", OTHER) == Progress(OTHER, "unknown")
    clock.advance(KEPT - 1)
    assert await put("q", OWN, Raw(b"2"), final=False)
    assert await get("q", OWN) == Progress(OWN, "running", b"2", None, clock.now())
    await broker.upkeep()
    clock.advance(1)
    await broker.upkeep()
    assert (await get("q", OWN)).result == b"2"
    assert await put("q", OWN, ttl=0)
    assert await get("q", OWN) == Progress(OWN, "unknown")
    assert await put("q", OWN, ttl=0)
    assert await put("q", OWN, Raw(b"null"), ttl=5)
    assert (await get("q", OWN)).result == b"null"
    clock.advance(5)
    assert await get("q", OWN) == Progress(OWN, "unknown")
    await broker.upkeep()
    assert await put("q", OWN)
    assert await get("q", OWN) == Progress(OWN, "done", None, None, clock.now())
    clock.advance(10 * KEPT)
    await broker.upkeep()
    assert not await kept(broker.store)


async def test_a_result_is_replaced_only_if_it_is_the_expected_one(broker: Broker, clock: FrozenClock) -> None:
    put = broker.results.put

    async def kept_at() -> datetime:
        at = (await broker.results.get("q", OWN)).finished_at
        assert at is not None
        return moment(at)

    assert not await put("q", OWN, Raw(b"0"), replaces=moment(clock.now()))
    assert await put("q", OWN, Raw(b"1"), new=True)
    assert not await put("q", OWN, Raw(b"2"), new=True)
    first = await kept_at()
    assert await put("q", OWN, Raw(b"3"), replaces=first)
    second = await kept_at()
    assert second > first  # though the clock stands still
    assert not await put("q", OWN, Raw(b"4"), replaces=first)
    assert not await put("q", OWN, ttl=0, replaces=first)
    assert (await broker.results.get("q", OWN)).result == b"3"
    assert await put("q", OWN, ttl=0, replaces=second)
    assert not await put("q", OWN, Raw(b"5"), replaces=second)
    assert not await put("q", OWN, ttl=0, replaces=second)
    assert await put("q", OWN, Raw(b"6"), new=True)
    third = await kept_at()
    clock.advance(KEPT)  # what is over is not there any more, removed or not
    assert not await put("q", OWN, Raw(b"7"), replaces=third)
    assert await put("q", OWN, Raw(b"8"), new=True)
    assert (await broker.results.get("q", OWN)).result == b"8"


async def test_of_calls_that_replace_the_same_result_one_succeeds(broker: Broker) -> None:
    news = await asyncio.gather(*(broker.results.put("q", OWN, Raw(b"[]"), new=True) for _ in range(8)))
    assert sum(news) == 1

    async def add(number: int) -> None:
        while True:
            found = await broker.results.get("q", OWN)
            assert found.result is not None
            assert found.finished_at is not None
            numbers = [*json.loads(found.result), number]
            if await broker.results.put(
                "q", OWN, Raw(json.dumps(numbers).encode()), final=False, replaces=moment(found.finished_at)
            ):
                return

    await asyncio.gather(*(add(number) for number in range(12)))
    found = await broker.results.get("q", OWN)
    assert found.result is not None
    assert sorted(json.loads(found.result)) == list(range(12))


async def test_a_wait_for_an_unknown_result_ends_when_it_is_put(broker: Broker, clock: FrozenClock) -> None:
    task = await waiting(broker, broker.results.get("q", OWN, wait=60, unknown="wait"))
    await broker.results.put("q", OTHER, Raw(b"0"))
    await broker.results.put("q", OWN, Raw(b'"started"'), final=False)
    await settle(broker)
    assert not task.done()
    await broker.results.put("q", OWN, Raw(b'"done"'))
    assert await asyncio.wait_for(task, 5) == Progress(OWN, "done", b'"done"', None, clock.now())
    assert (await broker.results.get("q", OWN, wait=60, unknown="wait")).status == "done"
    task = await waiting(broker, broker.results.get("q", "never", wait=5, unknown="wait"))
    clock.advance(5)
    assert await asyncio.wait_for(task, 5) == Progress("never", "unknown")


async def test_what_cannot_be_put_is_refused(broker: Broker, clock: FrozenClock) -> None:
    put = broker.results.put
    now = moment(clock.now())
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("id", {"id": "x"}), ("id", {"id": OWN.upper()}), ("ttl", {"ttl": -1}), ("ttl", {"ttl": 4e9}),
        ("replaces", {"replaces": now.replace(tzinfo=None)}), ("new", {"replaces": now, "new": True}),
    ]  # fmt: skip
    for field, given in wrong:
        with case(given), pytest.raises(InvalidRequest) as raised:
            await put(**{"queue": "q", "id": OWN} | given)
        assert raised.value.field == field
    with pytest.raises(TooLarge, match=r"^result: 1048577 bytes; at most 1048576"):
        await put("q", OWN, Raw(b'"' + b"x" * (2**20 - 1) + b'"'))
    assert await put("q", OWN, Raw(b'"' + b"x" * (2**20 - 2) + b'"'))
    with pytest.raises(InvalidRequest, match=r"^unknown: \"x\"; use return or wait|^unknown: 'x'; use return or wait"):
        await broker.results.get("q", OWN, unknown="x")  # type: ignore[arg-type]
    await send(broker, "plain", 1)
    with pytest.raises(ResultsOff):
        await put("plain", OWN)
    with pytest.raises(QueueNotFound):
        await put("nowhere", OWN)


@pytest.mark.parametrize("kind", ["postgresql", "mongodb"])
async def test_a_put_wakes_the_waits_at_another_broker_and_of_two_one_succeeds(kind: str, tmp_path: Path) -> None:
    url = store_url(kind, tmp_path)
    options = Options(upkeep_interval=0, refresh_interval=3600.0)
    async with Broker(open_store(url), options) as here, Broker(open_store(url), options) as there:
        await here.configure("q", {"results": KEPT})
        await there.catalog.refresh()
        task = await waiting(here, here.results.get("q", OWN, wait=60, unknown="wait"))
        puts = [broker.results.put("q", OWN, Raw(b"1"), new=True) for broker in (here, there) * 3]
        assert sum(await asyncio.gather(*puts)) == 1
        assert (await asyncio.wait_for(task, 30)).result == b"1"
        task = await waiting(here, here.results.get("q", OTHER, wait=60, unknown="wait"))
        await there.results.put("q", OTHER, Raw(b"2"))
        assert (await asyncio.wait_for(task, 30)).result == b"2"
