"""Schedules on every store: what is sent when, once per moment, whatever clocks and brokers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from miniq.broker import Broker
from miniq.broker import firing as module
from miniq.errors import (
    BadName,
    InvalidRequest,
    QueueFull,
    ScheduleNotFound,
    StoreUnavailable,
    TooLarge,
    TooManySchedules,
)
from miniq.message import SECOND, Draft
from miniq.options import Limits, Options
from miniq.schedule import MOMENT_HEADER, NAME_HEADER, Definition, Schedule
from miniq.server.http import prometheus
from miniq.store import open_store
from miniq.store.embedded.backup import restore
from miniq.store.transfer import copy
from tests.clock import FrozenClock
from tests.kit import draft

MINUTE, HOUR = 60, 3600
START = datetime(2026, 1, 5, 12, 0, tzinfo=UTC)


def at(text: str) -> int:
    """A moment of a test."""
    return round(datetime.fromisoformat(text).timestamp()) * SECOND


@pytest.fixture
def clock() -> FrozenClock:
    """Monday noon."""
    return FrozenClock(round(START.timestamp()) * SECOND)


async def put(broker: Broker, name: str = "nightly", body: Any = "x", **given: Any) -> Schedule:
    paused = given.pop("paused", None)
    fields = {name: given.pop(name) for name in [*given] if name in Draft.__struct_fields__}
    definition = Definition(draft(body, **fields), **({} if "topic" in given else {"queue": "reports"}) | given)
    return await broker.schedules.put(name, definition, paused)


async def sent(broker: Broker, queue: str = "reports") -> list[str]:
    """The moments of all messages in a queue, which are received, in UTC."""
    moments: list[str] = []
    while taken := await broker.receive(queue, max=1000, mode="at-most-once"):
        moments += [(stored.message.headers or {})[MOMENT_HEADER] for stored in taken]
    return [moment.removesuffix(":00Z").removesuffix("+00:00") for moment in moments]


async def advance(broker: Broker, clock: FrozenClock, seconds: float) -> None:
    clock.advance(seconds)
    await broker.firings.fire_due()


def soon(clock: FrozenClock, seconds: int) -> datetime:
    return datetime.fromtimestamp(clock.wall() / SECOND + seconds, UTC)


def next_of(schedule: Schedule) -> list[str]:
    return [moment.isoformat()[:16] for moment in schedule.next]


def outcomes(schedule: Schedule) -> list[str]:
    return [result.outcome for result in schedule.results]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("target", [{"queue": "reports"}, {"topic": "news"}])
async def test_a_schedule_that_is_deleted_while_it_is_run_stops_nobody(broker: Broker, target: dict[str, str]) -> None:
    for _ in range(20):
        await put(broker, every=HOUR, **target)
        # With others in the middle of a commit, the removal has to wait for its own.
        others = [broker.send("other", [draft(number)]) for number in range(3)]
        calls = [broker.schedules.delete("nightly"), *(broker.schedules.run("nightly") for _ in range(3))]
        *_, deleted, first, second, third = await asyncio.gather(*others, *calls, return_exceptions=True)
        assert deleted is None
        ran = [first, second, third]
        assert all(isinstance(result, Schedule | ScheduleNotFound) for result in ran)
        assert await broker.schedules.all() == []


# Moments


async def test_a_cron_schedule_sends_at_its_moments(broker: Broker, clock: FrozenClock) -> None:
    schedule = await put(broker, cron="0 3 * * mon-fri", headers={"a": "b"}, priority=4, key="k", body={"n": 1})
    assert next_of(schedule) == [f"2026-01-{day:02}T03:00" for day in (6, 7, 8, 9, 12)]
    await advance(broker, clock, 15 * HOUR - 1)
    assert await broker.receive("reports") == []
    await advance(broker, clock, 1)
    [stored] = await broker.receive("reports")
    message = stored.message
    assert (message.body, message.priority, message.key) == (b'{"n": 1}', 4, "k")
    assert message.headers == {"a": "b", NAME_HEADER: "nightly", MOMENT_HEADER: "2026-01-06T03:00:00Z"}
    schedule = await broker.schedules.get("nightly")
    assert next_of(schedule)[0] == "2026-01-07T03:00"
    [result] = schedule.results
    assert (result.moment, result.outcome, result.id) == (datetime(2026, 1, 6, 3, tzinfo=UTC), "sent", message.id)


async def test_every_counts_from_when_it_was_set(broker: Broker, clock: FrozenClock) -> None:
    clock.advance(7)
    schedule = await put(broker, every=90)
    assert schedule.next == [START + timedelta(seconds=7 + 90 * n) for n in range(1, 6)]
    for _ in range(3):
        await advance(broker, clock, 90)
    assert len(await sent(broker)) == 3


async def test_at_sends_once_and_stays_with_its_result(broker: Broker, clock: FrozenClock) -> None:
    moment = START + timedelta(hours=2)
    schedule = await put(broker, at=moment)
    assert schedule.next == [moment]
    await advance(broker, clock, 2 * HOUR)
    assert await sent(broker) == ["2026-01-05T14:00"]
    schedule = await put(broker, at=moment)  # as a program does at each start
    assert (schedule.next, outcomes(schedule)) == ([], ["sent"])
    await advance(broker, clock, 24 * HOUR)
    assert await sent(broker) == []


async def test_the_broker_itself_fires_when_the_moment_comes(broker: Broker, clock: FrozenClock) -> None:
    await put(broker, every=30)
    waiting = asyncio.create_task(broker.receive("reports", wait=60))
    while not waiting.done():
        await asyncio.sleep(0.001)
        clock.advance(1)
    assert len(await waiting) == 1


@pytest.mark.parametrize(
    ("night", "cron", "moments"),
    [
        ("2026-03-28T22:00Z", "30 2 * * *", ["2026-03-29T01:00", "2026-03-30T00:30"]),
        ("2026-10-24T22:00Z", "30 2 * * *", ["2026-10-25T00:30", "2026-10-26T01:30"]),
        ("2026-03-29T00:10Z", "*/30 2 * * *", ["2026-03-30T00:00", "2026-03-30T00:30"]),
        ("2026-10-24T23:30Z", "0 * * * *", [f"2026-10-25T{hour:02}:00" for hour in range(26) if hour < 24]),
    ],
)
async def test_a_job_runs_once_in_both_nights_of_daylight_saving(
    url: str, night: str, cron: str, moments: list[str]
) -> None:
    clock = FrozenClock(at(night))
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as broker:
        await put(broker, cron=cron, timezone="Europe/Berlin")
        for _ in range(30 * 4):
            await advance(broker, clock, 900)
        seen = await sent(broker)
        assert seen[: len(moments)] == moments
        assert len(seen) == len(set(seen))


async def test_a_clock_that_is_set_back_sends_nothing_twice(broker: Broker, clock: FrozenClock) -> None:
    await put(broker, cron="*/10 * * * *")
    for _ in range(6):
        await advance(broker, clock, 600)
    clock.ahead = -HOUR
    for _ in range(12):
        await advance(broker, clock, 600)
    expected = [f"2026-01-05T{12 + n // 6}:{n % 6}0" for n in range(1, 13)]
    assert await sent(broker) == expected
    await put(broker, cron="0 * * * *")  # with another timing, too, no moment comes before the last one
    assert next_of(await broker.schedules.get("nightly"))[0] == "2026-01-05T15:00"


async def test_a_clock_that_is_set_forth_and_back_sends_each_moment_once(broker: Broker, clock: FrozenClock) -> None:
    await put(broker, cron="*/10 * * * *", timezone="Europe/Berlin", catch_up="all")
    for ahead, minutes in ((0, 25), (HOUR, 25), (-HOUR, 25), (0, 90), (HOUR, 5), (0, 120)):
        clock.ahead = ahead
        for _ in range(minutes):
            await advance(broker, clock, MINUTE)
    moments = await sent(broker)
    expected = [(START + timedelta(minutes=10 * n)).isoformat()[:16] for n in range(1, len(moments) + 1)]
    assert moments == expected
    assert moments[-1] == "2026-01-05T16:50"


@pytest.mark.parametrize(
    ("catch_up", "caught_up"),
    [
        ("skip", []),
        ("last", ["2026-01-05T13:00"]),
        ("all", [f"2026-01-05T{12 + n // 6}:{n % 6}0" for n in range(1, 7)]),
    ],
)
async def test_a_clock_that_is_set_forward_misses_what_catch_up_says(
    broker: Broker, clock: FrozenClock, catch_up: str, caught_up: list[str]
) -> None:
    await put(broker, cron="*/10 * * * *", catch_up=catch_up)
    clock.ahead = HOUR + 30
    await advance(broker, clock, 1)
    assert await sent(broker) == caught_up
    await advance(broker, clock, 569)
    assert await sent(broker) == ["2026-01-05T13:10"]


@pytest.mark.parametrize(("catch_up", "caught_up"), [("skip", 0), ("last", 1), ("all", 250)])
async def test_moments_without_a_broker_are_caught_up_as_asked(
    url: str, clock: FrozenClock, catch_up: str, caught_up: int
) -> None:
    if url == "memory:":
        return
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as broker:
        await put(broker, every=60, catch_up=catch_up)
    clock.advance(250 * MINUTE + 30)
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as broker:
        await broker.firings.fire_due()
        moments = await sent(broker)
        assert len(moments) == caught_up
        assert moments == sorted(set(moments))
        assert moments[-1:] == ["2026-01-05T16:10"] * bool(caught_up)
        schedule = await broker.schedules.get("nightly")
        assert schedule.next[0] == soon(clock, 30)
        skipped = [result for result in schedule.results if result.outcome == "skipped"]
        if catch_up == "all":
            assert skipped == []
        else:
            [result] = skipped
            assert result.moment == START + timedelta(minutes=1)
            assert result.until == START + timedelta(minutes=250 - caught_up)
            assert result.count == 250 - caught_up
        await advance(broker, clock, 30)
        assert await sent(broker) == ["2026-01-05T16:11"]


@pytest.mark.parametrize("target", [{"queue": "reports"}, {"topic": "news"}], ids=str)
async def test_a_firing_whose_dedup_id_is_there_already_is_a_duplicate_and_names_the_message(
    broker: Broker, clock: FrozenClock, target: dict[str, str]
) -> None:
    await broker.topics.subscribe("news", "reports")
    await put(broker, every=60, dedup_id="d", **target)
    for _ in range(3):
        await advance(broker, clock, 60)
    [stored] = (await broker.peek("reports")).messages
    results = (await broker.schedules.get("nightly")).results
    assert [(result.outcome, result.id) for result in reversed(results)] == [
        ("sent", stored.message.id),
        ("duplicate", stored.message.id),
        ("duplicate", stored.message.id),
    ]
    assert broker.metrics.firings["nightly", "sent"] == 1
    assert broker.metrics.firings["nightly", "duplicate"] == 2
    again = await broker.schedules.run("nightly")
    assert (again.results[0].outcome, again.results[0].on_request) == ("duplicate", True)
    await advance(broker, clock, 300)
    assert (await broker.schedules.get("nightly")).results[0].outcome == "sent", "the window has passed"


async def test_the_history_says_which_schedule_sent_a_message(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("reports", {"history": "events"})
    await broker.topics.configure("news", {"history": "events"})
    await broker.topics.subscribe("news", "reports")
    await put(broker, "to-queue", every=60)
    await put(broker, "to-topic", every=60, topic="news", group="g")
    await broker.send("reports", [draft(1)])
    await advance(broker, clock, 60)
    await broker.schedules.run("to-queue")
    told = [record.event for record in (await broker.history()).records]
    assert sorted((event.event, event.queue, event.reason or "") for event in told) == [
        ("published", "news", "schedule:to-topic"),
        ("sent", "reports", ""),
        ("sent", "reports", "published"),
        ("sent", "reports", "schedule:to-queue"),
        ("sent", "reports", "schedule:to-queue"),
    ]


# Pause, run, change, delete


async def test_a_paused_schedule_sends_nothing_and_misses_nothing(broker: Broker, clock: FrozenClock) -> None:
    await put(broker, every=60, catch_up="all", paused=True)
    await advance(broker, clock, 600)
    assert await sent(broker) == []
    schedule = await broker.schedules.put("nightly", None, paused=False)
    assert schedule.next[0] == soon(clock, 60)
    await advance(broker, clock, 60)
    assert len(await sent(broker)) == 1


async def test_a_definition_that_is_set_again_changes_nothing(broker: Broker, clock: FrozenClock) -> None:
    before = await put(broker, every=60)
    await broker.schedules.put("nightly", None, paused=True)
    clock.advance(30)
    after = await put(broker, every=60)
    assert after.paused
    assert (await broker.schedules.put("nightly", None, paused=False)).next == before.next


async def test_run_sends_now_and_moves_nothing(broker: Broker, clock: FrozenClock) -> None:
    before = await put(broker, cron="0 3 * * *", paused=True)
    after = await broker.schedules.run("nightly")
    assert (after.next, after.paused) == (before.next, True)
    [stored] = await broker.receive("reports")
    assert (after.results[0].id, after.results[0].on_request) == (stored.message.id, True)


async def test_a_deleted_schedule_is_gone(broker: Broker, clock: FrozenClock) -> None:
    await put(broker, every=60)
    await broker.schedules.delete("nightly")
    for call in (broker.schedules.get, broker.schedules.run, broker.schedules.delete):
        with pytest.raises(ScheduleNotFound, match="'nightly'"):
            await call("nightly")
    await advance(broker, clock, 600)
    assert await broker.schedules.all() == []
    assert [queue.name for queue in await broker.queues()] == ["default"]


# What fails


async def test_a_full_queue_fails_the_firing_and_the_schedule_goes_on(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("reports", {"max_length": 1})
    await put(broker, every=60)
    await advance(broker, clock, 60)
    await advance(broker, clock, 60)
    schedule = await broker.schedules.get("nightly")
    assert outcomes(schedule) == ["failed", "sent"]
    assert "max_length" in (schedule.results[0].error or "")
    with pytest.raises(QueueFull):
        await broker.schedules.run("nightly")
    assert await broker.schedules.get("nightly") == schedule
    assert len(await sent(broker)) == 1
    await broker.purge("reports")
    await advance(broker, clock, 60)
    assert len(await sent(broker)) == 1
    assert broker.metrics.firings == {("nightly", "sent"): 2, ("nightly", "failed"): 1}


async def test_what_fits_is_caught_up_and_the_rest_fails(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("reports", {"max_length": 3})
    await put(broker, every=60, catch_up="all")
    await advance(broker, clock, 600)
    assert await sent(broker) == ["2026-01-05T12:01", "2026-01-05T12:02", "2026-01-05T12:03"]
    schedule = await broker.schedules.get("nightly")
    assert outcomes(schedule) == ["failed", "sent", "sent", "sent"]
    assert schedule.results[0].count == 7


async def test_a_deleted_queue_is_created_again_or_fails(url: str, clock: FrozenClock) -> None:
    async with Broker(open_store(url), Options(upkeep_interval=0, auto_create=False), clock) as broker:
        await broker.configure("reports")
        await put(broker, every=60)
        await broker.delete_queue("reports")
        await advance(broker, clock, 60)
        [result] = (await broker.schedules.get("nightly")).results
        assert (result.outcome, result.error) == ("failed", "queue: there is no queue 'reports'")


async def test_a_paused_queue_accepts_what_is_sent(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("reports", {"paused": True})
    await put(broker, every=60)
    await advance(broker, clock, 60)
    assert (await broker.queue("reports")).counts.ready == 1


async def test_a_fault_in_one_schedule_does_not_stop_the_others(
    broker: Broker, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(broker, "a", every=60)
    await put(broker, "b", every=60)
    plan = module.plan

    def broken(timing: Any, due: int, *others: Any) -> Any:
        if due == round(await_a.next[0].timestamp()) * SECOND:
            raise ZeroDivisionError
        return plan(timing, due, *others)

    await_a = await put(broker, "a", every=59)
    monkeypatch.setattr(module, "plan", broken)
    await advance(broker, clock, 60)
    assert len(await sent(broker)) == 1
    monkeypatch.undo()
    await advance(broker, clock, 10)
    assert len(await sent(broker)) == 1


async def test_an_unreachable_store_is_waited_for(
    broker: Broker, clock: FrozenClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await put(broker, every=60)

    async def unreachable(*given: Any) -> None:
        raise StoreUnavailable("store: unreachable")

    monkeypatch.setattr(broker.store.messages, "put", unreachable)
    clock.advance(60)
    with pytest.raises(StoreUnavailable):
        await broker.firings.fire_due()
    assert (await broker.schedules.get("nightly")).results == []
    monkeypatch.undo()
    await advance(broker, clock, 5)
    assert await sent(broker) == ["2026-01-05T12:01"]


# What is refused


@pytest.mark.parametrize(
    ("given", "field"),
    [
        ({}, "cron"),
        ({"cron": "0 3 * * *", "every": 5}, "cron"),
        ({"cron": "0 3 * *"}, "cron"),
        ({"cron": "0 25 * * *"}, "cron"),
        ({"cron": "0 0 30 2 *"}, "cron"),
        ({"cron": "0 0 * * *" + " " * 300}, "cron"),
        ({"cron": 5}, "cron"),
        ({"every": 0}, "every"),
        ({"every": -1}, "every"),
        ({"every": 1e12}, "every"),
        ({"every": float("nan")}, "every"),
        ({"every": True}, "every"),
        ({"at": START}, "at"),
        ({"at": datetime(2026, 2, 1)}, "at"),
        ({"at": datetime(2222, 2, 1, tzinfo=UTC)}, "at"),
        ({"at": "tomorrow"}, "at"),
        ({"every": 5, "timezone": "Mars"}, "timezone"),
        ({"every": 5, "timezone": "../etc/passwd"}, "timezone"),
        ({"every": 5, "timezone": "x" * 100}, "timezone"),
        ({"every": 5, "timezone": 1}, "timezone"),
        ({"every": 5, "catch_up": "some"}, "catch_up"),
        ({"every": 5, "queue": None}, "queue"),
        ({"every": 5, "queue": "a b"}, "queue"),
        ({"every": 5, "topic": "no/topic"}, "topic"),
        ({"every": 5, "paused": 1}, "paused"),
        ({"every": 5, "priority": 10}, "priority"),
        ({"every": 5, "deliver_at": START}, "deliver_at"),
        ({"every": 5, "headers": {str(n): "x" for n in range(63)}}, "headers"),
    ],
)
async def test_what_is_wrong_with_a_schedule_is_named(given: dict[str, Any], field: str) -> None:
    async with Broker(open_store("memory:"), clock=FrozenClock(round(START.timestamp()) * SECOND)) as broker:
        with pytest.raises(InvalidRequest) as refused:
            await put(broker, **given)
        assert refused.value.field == field
        assert await broker.schedules.all() == []


async def test_names_sizes_and_numbers_have_limits() -> None:
    options = Options(max_schedules=2, limits=Limits(schedule_bytes=100))
    async with Broker(open_store("memory:"), options) as broker:
        for name in ("", "a/b", "..", "x" * 129):
            with pytest.raises(BadName):
                await put(broker, name, every=5)
        with pytest.raises(TooLarge, match="at most 100"):
            await put(broker, body="x" * 100, every=5)
        await put(broker, "a", every=5)
        await put(broker, "b", every=5)
        with pytest.raises(TooManySchedules, match="max_schedules"):
            await put(broker, "c", every=5)
        await put(broker, "b", every=6)


async def test_a_pause_needs_a_schedule(broker: Broker) -> None:
    with pytest.raises(ScheduleNotFound):
        await broker.schedules.put("nightly", None, paused=True)


# Several brokers


@pytest.fixture
async def brokers(url: str, clock: FrozenClock) -> AsyncIterator[list[Broker]]:
    """Three brokers on one database; on other stores one."""
    async with AsyncExitStack() as stack:
        first = await stack.enter_async_context(Broker(open_store(url), Options(upkeep_interval=0), clock))
        others = [
            Broker(open_store(url), Options(upkeep_interval=0), clock) for _ in range(2 if first.store.shared else 0)
        ]
        yield [first, *[await stack.enter_async_context(broker) for broker in others]]


async def test_each_moment_is_sent_once_by_whichever_broker(brokers: list[Broker], clock: FrozenClock) -> None:
    names = [f"job-{number}" for number in range(5)]
    for name in names:
        await put(brokers[0], name, every=60, catch_up="all")
    for broker in brokers:
        await broker.catalog.refresh()
    for _ in range(10):
        clock.advance(60)
        await asyncio.gather(*(broker.firings.fire_due() for broker in brokers))
    taken = await brokers[-1].receive("reports", max=1000)
    seen = [stored.message.headers or {} for stored in taken]
    pairs = sorted((headers[NAME_HEADER], headers[MOMENT_HEADER]) for headers in seen)
    moments = [(START + timedelta(minutes=n)).isoformat().replace("+00:00", "Z") for n in range(1, 11)]
    assert pairs == [(name, moment) for name in names for moment in moments]
    assert sum(sum(broker.metrics.firings.values()) for broker in brokers) == 50


async def test_another_broker_hears_of_a_change(brokers: list[Broker], clock: FrozenClock) -> None:
    await put(brokers[0], every=60)
    last = brokers[-1]
    while not last.schedules.entries:  # noqa: ASYNC110  nobody tells when it has heard
        await asyncio.sleep(0.005)
    await brokers[0].schedules.put("nightly", None, paused=True)
    while not last.schedules.entries[0].paused:  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    schedule = await last.schedules.get("nightly")
    assert replace(schedule, paused=False) == replace(await brokers[0].schedules.get("nightly"), paused=False)


# Around it


async def test_metrics_tell_of_schedules(broker: Broker, clock: FrozenClock) -> None:
    await put(broker, every=60)
    await put(broker, "other", every=60, paused=True)
    await broker.schedules.run("other")
    await advance(broker, clock, 60)
    clock.advance(20)
    text = b"".join([piece async for piece in await prometheus.render(broker)]).decode()
    assert 'miniq_schedule_firings_total{outcome="sent",schedule="nightly"} 1.0\n' in text
    assert 'miniq_schedule_firings_total{outcome="sent",schedule="other"} 1.0\n' in text
    assert [line for line in text.splitlines() if line.startswith("miniq_schedule_next")] == [
        'miniq_schedule_next_seconds{schedule="nightly"} 40.0'
    ]
    await broker.schedules.delete("nightly")
    text = b"".join([piece async for piece in await prometheus.render(broker)]).decode()
    assert 'schedule="nightly"' not in text


async def test_a_firing_is_in_the_history_as_every_send(broker: Broker, clock: FrozenClock) -> None:
    await broker.configure("reports", {"history": "events"})
    await put(broker, every=60, catch_up="all")
    await advance(broker, clock, 180)
    ids = [result.id for result in (await broker.schedules.get("nightly")).results]
    events = (await broker.history(queue="reports")).records
    assert [(record.event.event, record.event.id) for record in events] == [("sent", id) for id in reversed(ids)]


async def test_schedules_move_to_another_store_and_go_on(url: str, clock: FrozenClock, tmp_path: Path) -> None:
    if url == "memory:":
        return
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as broker:
        await put(broker, every=60, catch_up="all")
        await advance(broker, clock, 60)
        before = await broker.schedules.get("nightly")
    target = f"rocksdb:{tmp_path / 'copy'}"
    source_store, target_store = open_store(url), open_store(target)
    await source_store.open()
    await target_store.open()
    await copy(source_store, target_store, now=clock.now())
    await source_store.close()
    await target_store.close()
    async with Broker(open_store(target), Options(upkeep_interval=0), clock) as broker:
        assert await broker.schedules.get("nightly") == before
        await advance(broker, clock, 60)
        assert await sent(broker) == ["2026-01-05T12:01", "2026-01-05T12:02"]


async def test_a_backup_has_the_schedules(clock: FrozenClock, tmp_path: Path) -> None:
    async with Broker(open_store(f"rocksdb:{tmp_path / 'data'}"), Options(upkeep_interval=0), clock) as broker:
        made = await put(broker, every=60)
        await broker.backup(str(tmp_path / "backup"))
    restore(str(tmp_path / "backup"), str(tmp_path / "restored"))
    async with Broker(open_store(f"rocksdb:{tmp_path / 'restored'}"), Options(upkeep_interval=0), clock) as broker:
        assert await broker.schedules.all() == [made]


# Topics


async def test_a_schedule_publishes_to_a_topic_once_per_moment_and_for_all_its_queues(
    brokers: list[Broker], clock: FrozenClock
) -> None:
    broker = brokers[0]
    await broker.topics.subscribe("news", "mail", pattern="daily.#")
    await broker.topics.subscribe("news", "web")
    await put(broker, topic="news", every=60, key="daily.sales")
    for one in brokers:
        await one.catalog.refresh()
    for _ in range(3):
        clock.advance(60)
        await asyncio.gather(*(one.firings.fire_due() for one in brokers))
    moments = ["2026-01-05T12:01", "2026-01-05T12:02", "2026-01-05T12:03"]
    assert await sent(broker, "mail") == moments
    assert await sent(broker, "web") == moments
    schedule = await broker.schedules.get("nightly")
    assert outcomes(schedule) == ["sent"] * 3
    assert [result.queues for result in schedule.results] == [2, 2, 2]


async def test_a_moment_of_a_topic_without_a_match_is_sent_and_one_with_a_full_queue_fails(
    broker: Broker, clock: FrozenClock
) -> None:
    await put(broker, topic="news", every=60)
    await advance(broker, clock, 60)
    schedule = await broker.schedules.get("nightly")
    assert (outcomes(schedule), next_of(schedule)[0]) == (["sent"], "2026-01-05T12:02")
    assert schedule.results[0].queues == 0
    await broker.configure("full", {"max_length": 1})
    await broker.send("full", [draft("x")])
    await broker.topics.subscribe("news", "full")
    await broker.topics.subscribe("news", "web")
    await advance(broker, clock, 60)
    schedule = await broker.schedules.get("nightly")
    assert outcomes(schedule) == ["failed", "sent"]
    assert "queue 'full' holds 1 of at most 1" in (schedule.results[0].error or "")
    assert await sent(broker, "web") == []
