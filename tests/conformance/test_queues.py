"""Queues, their settings and limits, dedup, peeking, and everything that is refused: on every store."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
from typing import Any

import pytest

from miniq.api.operations import Send
from miniq.broker import Broker
from miniq.dispatch import perform
from miniq.errors import (
    BadName,
    Closed,
    IdempotencyMismatch,
    InvalidRequest,
    MiniQError,
    QueueFull,
    QueueNotFound,
    QueueProtected,
    TooLarge,
    TooManyQueues,
)
from miniq.message import SECOND, Draft, Lease, Message, QueueSettings
from miniq.options import Options
from miniq.store import open_store
from miniq.store.arguments import Change, Once, Put
from tests.clock import FrozenClock
from tests.conftest import STORES
from tests.kit import bodies, case, draft, drain, ids, leases, send, states

LASTING = pytest.mark.parametrize("url", [store for store in STORES if store != "memory"], indirect=True)


async def test_there_is_always_a_queue_default(broker: Broker) -> None:
    assert [info.name for info in await broker.queues()] == ["default"]
    with pytest.raises(QueueProtected):
        await broker.delete_queue("default")


async def test_the_first_send_creates_a_queue(broker: Broker) -> None:
    await send(broker, "new", 1)
    info = await broker.queue("new")
    assert info.settings == QueueSettings()
    assert info.counts.total == 1


async def test_without_auto_create_an_unknown_queue_is_refused(url: str, clock: FrozenClock) -> None:
    async with Broker(open_store(url), Options(upkeep_interval=0, auto_create=False), clock) as broker:
        for call in (send(broker, "new", 1), broker.receive("new")):
            with pytest.raises(QueueNotFound):
                await call
        await broker.configure("new")
        await send(broker, "new", 1)


async def test_beyond_max_queues_no_caller_creates_a_queue(url: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0, max_queues=3)
    async with Broker(open_store(url), options, clock) as broker:
        await broker.configure("one")
        with pytest.raises(TooManyQueues, match=r"'q\.dead' cannot be created"):
            await broker.configure("q", {"max_receives": 1})
        assert [info.name for info in await broker.queues()] == ["default", "one"]
        await broker.delete_queue("one")
        await broker.configure("q", {"max_receives": 1, "dead_letter_queue": "failed"})  # with default, three
        for call in (
            send(broker, "new", 1),
            broker.configure("new"),
            broker.configure("q", {"dead_letter_queue": "x"}),
            broker.redrive("failed", to="new"),
        ):
            with pytest.raises(TooManyQueues, match="cannot be created, there are 3 queues; delete some, or raise"):
                await call
        await send(broker, "q", 1)
        await broker.configure("q", {"visibility_timeout": 5})
        assert [info.name for info in await broker.queues()] == ["default", "failed", "q"]
        await broker.delete_queue("failed")
        (message,) = await broker.receive("q")
        await send(broker, "new", 1)
        assert await broker.release("q", leases([message])) == ["done"]  # its dead-letter queue is not refused
        assert [info.name for info in await broker.queues()] == ["default", "failed", "new", "q"]
        await broker.delete_queue("q")
        done = await broker.redrive("failed")
        assert (done.moved, done.skipped, done.reasons) == (0, 1, {"too_many_queues": 1})
        await broker.delete_queue("new")
        assert (await broker.redrive("failed")).moved == 1
        assert bodies(await broker.receive("q")) == [1]


async def test_a_redrive_creates_no_deleted_source_queue_without_auto_create(url: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0, auto_create=False)
    async with Broker(open_store(url), options, clock) as broker:
        await broker.configure("q", {"max_receives": 1})
        await send(broker, "q", 1)
        await broker.release("q", leases(await broker.receive("q")))
        await broker.delete_queue("q")
        done = await broker.redrive("q.dead")
        assert (done.moved, done.skipped, done.reasons) == (0, 1, {"queue_not_found": 1})
        await broker.configure("q")
        assert (await broker.redrive("q.dead")).moved == 1


async def test_no_queue_is_its_own_dead_letter_queue(broker: Broker) -> None:
    for changes in ({"dead_letter_queue": "q"}, {"dead_letter_queue": "q", "max_receives": 1}):
        with pytest.raises(InvalidRequest, match="'q' cannot be its own dead-letter queue; name another"):
            await broker.configure("q", changes)
    assert [info.name for info in await broker.queues()] == ["default"]


async def test_settings_change_one_by_one_and_stay(broker: Broker) -> None:
    await broker.configure("q", {"visibility_timeout": 5, "max_receives": 3})
    await broker.configure("q", {"history": "full"})
    settings = (await broker.queue("q")).settings
    assert settings == QueueSettings(visibility_timeout=5, max_receives=3, history="full")
    assert [info.name for info in await broker.queues()] == ["default", "q", "q.dead"]


async def test_a_deleted_queue_is_gone_with_its_messages(broker: Broker) -> None:
    await broker.configure("q", {"delay": 0, "history": "off"})
    await send(broker, "q", 1, dedup_id="d")
    held = await broker.receive("q")
    await broker.delete_queue("q")
    with pytest.raises(QueueNotFound):
        await broker.ack("q", leases(held))
    with pytest.raises(QueueNotFound):
        await broker.delete_queue("q")
    await broker.upkeep()
    await send(broker, "q", 2, dedup_id="d")
    assert await drain(broker, "q") == [2]


async def test_bad_queue_names_are_refused_everywhere(broker: Broker) -> None:
    for name in ("", "a b", "a/b", "x" * 129, "ä", "a\n", "*", ".", ".."):
        ack = broker.ack(name, [Lease("i", "r")])
        for call in (send(broker, name, 1), broker.receive(name), broker.configure(name), ack):
            with case(name), pytest.raises(BadName) as error:
                await call
            assert error.value.field == "queue"
    assert len(await broker.queues()) == 1


async def test_a_queue_that_was_named_by_dots_can_still_be_used_and_deleted(broker: Broker) -> None:
    await broker.store.save_queue("..", QueueSettings(history="events"))
    await broker.catalog.load()  # as at the next start
    await broker.configure("..", {"delay": 0})
    await send(broker, "..", 1, 2)
    assert bodies((await broker.peek("..")).messages) == [1, 2]
    assert await drain(broker, "..") == [1, 2]
    assert (await broker.history(queue="..")).records
    await broker.delete_queue("..")
    with pytest.raises(BadName):
        await send(broker, "..", 1)


WRONG_SETTINGS: list[dict[str, Any]] = [
    {"visibility_timeout": -1},
    {"visibility_timeout": 43201},
    {"visibility_timeout": "5"},
    {"visibility_timeout": math.nan},
    {"max_receives": 0},
    {"max_receives": 1.5},
    {"max_receives": True},
    {"dead_letter_queue": "a b"},
    {"dead_letter_queue": ".."},
    {"retention": -1},
    {"delay": math.inf},
    {"dedup_window": None},
    {"max_length": -1},
    {"max_bytes": "many"},
    {"history": "on"},
    {"colour": "red"},
]


async def test_wrong_settings_are_refused_and_change_nothing(broker: Broker) -> None:
    await broker.configure("q", {"delay": 3})
    before = await broker.queue("q")
    for changes in WRONG_SETTINGS:
        with case(changes):
            with pytest.raises(InvalidRequest) as error:
                await broker.configure("q", {"max_length": 5, **changes})
            assert error.value.field == next(iter(changes))
            assert await broker.queue("q") == before


async def test_a_queue_cannot_be_its_own_grave_and_needs_a_name_that_fits(broker: Broker) -> None:
    with pytest.raises(InvalidRequest):
        await broker.configure("q", {"max_receives": 1, "dead_letter_queue": "q"})
    with pytest.raises(BadName):
        await broker.configure("x" * 126, {"max_receives": 1})
    assert len(await broker.queues()) == 1


WRONG_MESSAGES = [
    (Draft(b"x" * (1024 * 1024 + 1)), "body"),
    (Draft("text"), "body"),  # type: ignore[arg-type]
    (Draft(b"1", "json"), "content_type"),
    (Draft(b"1", "a/b\n"), "content_type"),
    (draft(headers={"a": 1}), "headers"),
    (draft(headers={"": "x"}), "headers"),
    (draft(headers={str(n): "" for n in range(65)}), "headers"),
    (draft(headers={"a": "x" * 4097}), "headers"),
    (draft(headers={"a": "\ud800"}), "headers"),
    (draft(headers=["a"]), "headers"),
    (draft(priority=-1), "priority"),
    (draft(priority=10), "priority"),
    (draft(priority=1.5), "priority"),
    (draft(delay=-0.1), "delay"),
    (draft(delay=math.nan), "delay"),
    (draft(delay=15 * 86400), "delay"),
    (draft(ttl=-1), "ttl"),
    (draft(ttl="1"), "ttl"),
    (draft(key=""), "key"),
    (draft(key="k" * 257), "key"),
    (draft(recipient=5), "recipient"),
    (draft(group=""), "group"),
    (draft(dedup_id="\ud800"), "dedup_id"),
]


async def test_a_wrong_message_is_refused_with_all_its_batch(broker: Broker) -> None:
    for wrong, field in WRONG_MESSAGES:
        with case(wrong, field):
            with pytest.raises(InvalidRequest) as error:
                await broker.send("q", [wrong])
            assert error.value.field == field
            with pytest.raises(InvalidRequest) as error:
                await broker.send("q", [draft(1), draft(2, dedup_id="d"), wrong])
            assert error.value.field == f"messages[2].{field}"
            assert (await broker.peek("q")).messages == []
    assert len(await send(broker, "q", 1, dedup_id="d")) == 1
    assert (await broker.queue("q")).counts.total == 1


async def test_empty_and_oversized_batches_are_refused(broker: Broker) -> None:
    await send(broker, "q", 1)
    for call in (broker.send("q", []), broker.ack("q", []), broker.release("q", []), broker.extend("q", [])):
        with pytest.raises(InvalidRequest):
            await call
    with pytest.raises(TooLarge):
        await broker.send("q", [draft()] * 1001)
    with pytest.raises(TooLarge):
        await broker.ack("q", [Lease("i", "r")] * 1001)
    assert len(await send(broker, "q", *range(1000))) == 1000
    for options in ({}, {"key": "k"}):
        large = [draft("x" * 1_000_000, **options)] * 17
        with pytest.raises(TooLarge, match="messages: 17000034 bytes in one call; at most 16777216"):
            await perform(broker, Send("q", large))


WRONG_RECEIVES: list[tuple[dict[str, Any], str]] = [
    ({"max": 0}, "max"),
    ({"max": 1001}, "max"),
    ({"max": "1"}, "max"),
    ({"wait": -1}, "wait"),
    ({"wait": 61}, "wait"),
    ({"visibility_timeout": -1}, "visibility_timeout"),
    ({"visibility_timeout": 43201}, "visibility_timeout"),
    ({"consumer": ""}, "consumer"),
    ({"consumer": "c" * 257}, "consumer"),
    ({"mode": "exactly-once"}, "mode"),
]


async def test_a_wrong_receive_is_refused_and_takes_nothing(broker: Broker) -> None:
    await send(broker, "q", 1)
    for asked, field in WRONG_RECEIVES:
        with case(asked):
            with pytest.raises(InvalidRequest) as error:
                await broker.receive("q", **asked)
            assert error.value.field == field
            assert await states(broker, "q") == (1, 0, 0)


async def test_wrong_edits_are_refused_and_change_nothing(broker: Broker) -> None:
    (id,) = await send(broker, "q", 1)
    before = await broker.get("q", id)
    for wrong in (
        {},
        {"priority": 10},
        {"delay": -1},
        {"headers": {"a": 1}},
        {"body": b"x" * (1024 * 1024 + 1)},
        {"content_type": "text/plain"},
        {"delay": 1, "receipt": "r"},
    ):
        with pytest.raises(InvalidRequest):
            await broker.edit("q", id, **wrong)  # type: ignore[arg-type]
    assert await broker.get("q", id) == before
    for unknown in ("nope", "0" * 36, id[:-1] + ("0" if id[-1] != "0" else "1"), id.upper() + "x"):
        with pytest.raises(MiniQError):
            await broker.edit("q", unknown, priority=1)


async def test_a_full_queue_refuses_the_whole_send(broker: Broker) -> None:
    await broker.configure("q", {"max_length": 3})
    await send(broker, "q", 1, 2)
    with pytest.raises(QueueFull) as error:
        await send(broker, "q", 3, 4)
    assert "2 of at most 3" in error.value.text
    assert (await broker.queue("q")).counts.total == 2
    await send(broker, "q", 3)
    got = await broker.receive("q", max=3)
    with pytest.raises(QueueFull):
        await send(broker, "q", 4)
    await broker.ack("q", leases(got))
    await send(broker, "q", 4)


async def test_max_bytes_counts_bodies_and_headers(broker: Broker) -> None:
    await broker.configure("q", {"max_bytes": 10})
    await broker.send("q", [Draft(b"12345", headers={"a": "b"})])
    assert (await broker.queue("q")).counts.bytes == 7
    with pytest.raises(QueueFull):
        await broker.send("q", [Draft(b"1234")])
    await broker.send("q", [Draft(b"123")])


async def test_senders_at_once_do_not_overfill_a_queue(broker: Broker) -> None:
    await broker.configure("q", {"max_length": 10})
    done = await asyncio.gather(*[send(broker, "q", n) for n in range(30)], return_exceptions=True)
    assert sum(isinstance(outcome, QueueFull) for outcome in done) == 20
    assert (await broker.queue("q")).counts.total == 10


async def test_a_second_send_with_a_dedup_id_returns_the_first_id(broker: Broker, clock: FrozenClock) -> None:
    (first,) = await send(broker, "q", 1, dedup_id="d")
    other, again = await broker.send("q", [draft(2), draft(3, dedup_id="d")])
    assert again == first != other
    assert await drain(broker, "q") == [1, 2]
    assert await send(broker, "q", 4, dedup_id="d") == [first]
    clock.advance(300)
    assert await send(broker, "q", 5, dedup_id="d") != [first]
    assert await drain(broker, "q") == [5]


async def test_a_dedup_id_is_never_taken_for_the_name_of_a_call(broker: Broker) -> None:
    await broker.configure("q")
    with pytest.raises(InvalidRequest) as caught:
        await broker.send("q", [draft(1, dedup_id="\0name")])
    assert caught.value.field == "dedup_id"
    await broker.send("q", [draft(2, dedup_id="name")])
    await broker.send("q", [draft(3)], "name")
    assert (await broker.queue("q")).counts.total == 2


async def test_dedup_holds_within_one_batch_between_callers_and_per_queue(broker: Broker) -> None:
    one, two = await broker.send("q", [draft(1, dedup_id="d"), draft(2, dedup_id="d")])
    assert one == two
    answers = await asyncio.gather(*[send(broker, "q", n, dedup_id="e") for n in range(10)])
    assert len({id for (id,) in answers}) == 1
    await send(broker, "other", 1, dedup_id="d")
    assert (await broker.queue("q")).counts.total == 2
    assert (await broker.queue("other")).counts.total == 1


async def test_dedup_outlives_a_purge_and_a_full_queue_still_answers(broker: Broker) -> None:
    await broker.configure("q", {"max_length": 1})
    (first,) = await send(broker, "q", 1, dedup_id="d")
    assert await send(broker, "q", 1, dedup_id="d") == [first]
    await broker.purge("q")
    assert await send(broker, "q", 1, dedup_id="d") == [first]


async def test_upkeep_forgets_dedup_records_that_ran_out(broker: Broker, clock: FrozenClock) -> None:
    await broker.send("q", [draft(n, dedup_id=f"d{n}") for n in range(50)])
    clock.advance(299)
    await broker.upkeep()
    await broker.send("q", [draft(n, dedup_id=f"d{n}") for n in range(50)])
    assert (await broker.queue("q")).counts.total == 50
    clock.advance(1)
    assert await broker.store.tidy(clock.now(), 1000) == 50


async def test_peek_shows_every_message_once_and_changes_nothing(broker: Broker, clock: FrozenClock) -> None:
    sent = set(await send(broker, "q", *range(300)))
    sent |= set(await send(broker, "q", 1, 2, priority=9))
    sent |= set(await send(broker, "q", 1, 2, 3, group="g"))
    sent |= set(await send(broker, "q", 1, 2, recipient="r"))
    delayed = await send(broker, "q", *range(7), delay=10)
    held = await broker.receive("q", max=40)
    for id in ids(held[:10]):
        await broker.edit("q", id, body=b"0", receipt=held[0].receipt)
    before = await states(broker, "q")
    for status, expected in (
        (None, sent | set(delayed)),
        ("leased", set(ids(held))),
        ("delayed", set(delayed)),
        ("ready", sent - set(ids(held))),
    ):
        found: list[str] = []
        after = None
        while True:
            page = await broker.peek("q", status=status, after=after, limit=17)  # type: ignore[arg-type]
            assert len(page.messages) <= 17
            found += ids(page.messages)
            after = page.next
            if after is None:
                break
        assert len(found) == len(set(found))
        assert set(found) == expected
    assert await states(broker, "q") == before


async def test_peek_and_get_show_the_state_of_a_message(broker: Broker, clock: FrozenClock) -> None:
    (id,) = await send(broker, "q", 1)
    assert (await broker.get("q", id)).status(clock.now()) == "ready"
    (got,) = await broker.receive("q", consumer="ann")
    assert await broker.get("q", id) == got
    assert (await broker.peek("q")).messages == [got]
    for wrong in ({"limit": 0}, {"status": "dead"}, {"after": "%%%"}, {"after": "nope"}):
        with pytest.raises(InvalidRequest):
            await broker.peek("q", **wrong)  # type: ignore[arg-type]


async def test_held_finds_all_messages_of_a_receive(broker: Broker) -> None:
    await send(broker, "q", *range(200))
    await send(broker, "q", "x", group="g")
    got = await broker.receive("q", max=201)
    token = got[0].receipt or ""
    await broker.ack("q", leases(got[5:7]))
    await broker.release("q", leases(got[100:120]))
    await broker.extend("q", leases(got[150:]), 99)
    until = got[0].visible_at
    held = await broker.store.messages.held("q", token, until)
    assert ids(held) == sorted(ids(got[:5] + got[7:100] + got[120:150]))
    assert await broker.store.messages.held("q", "nobody", until) == []


async def test_counts_know_bytes_and_the_oldest(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", "a", "bb")
    first = clock.now() // 1000 * 1000
    clock.advance(10)
    await send(broker, "q", "ccc", priority=9)
    counts = (await broker.queue("q")).counts
    assert (counts.ready, counts.bytes, counts.oldest) == (3, 3 + 4 + 5, first)
    await broker.ack("q", leases(await broker.receive("q", max=1)))
    await broker.ack("q", leases(await broker.receive("q", max=2)))
    assert (await broker.queue("q")).counts.oldest is None
    await send(broker, "q", 1, 2, group="g")
    await broker.receive("q")
    assert (await broker.queue("q")).counts.oldest is None


async def test_a_closed_broker_refuses_politely(broker: Broker) -> None:
    await broker.close()
    for call in (send(broker, "q", 1), broker.receive("q"), broker.queues(), broker.purge("q")):
        with pytest.raises(Closed):
            await call
    await broker.close()


@LASTING
async def test_a_close_amid_sends_loses_nothing_that_was_confirmed(url: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0)
    confirmed: list[str] = []
    enough = asyncio.Event()
    async with Broker(open_store(url), options, clock) as broker:

        async def sender(name: str) -> None:
            with contextlib.suppress(Closed):
                # The first send to a queue takes two steps: more to be caught in between.
                for number in itertools.count():
                    confirmed.extend(await send(broker, f"{name}-{number}", number))
                    if len(confirmed) >= 50:
                        enough.set()

        senders = [asyncio.create_task(sender(f"q{n}")) for n in range(8)]
        await enough.wait()
    await asyncio.gather(*senders)
    async with Broker(open_store(url), options, clock) as broker:
        pages = [await broker.peek(info.name) for info in await broker.queues()]
    assert set(confirmed) <= {id for page in pages for id in ids(page.messages)}


async def test_bodies_are_kept_to_the_byte(broker: Broker) -> None:
    blobs = [b"", b"\x00", bytes(range(256)), '{"ä": "😀\\u0000"}'.encode(), b"[1,  2]", b"x" * 1024 * 1024]
    await broker.send("q", [Draft(blob, "application/octet-stream") for blob in blobs])
    got = await broker.receive("q", max=10)
    assert [stored.message.body for stored in got] == blobs
    assert bodies(got[4:5]) == [[1, 2]]


async def test_a_repeated_call_adds_nothing_and_gets_the_same_answer(broker: Broker, clock: FrozenClock) -> None:
    drafts = [draft(n) for n in range(200)]
    first = await broker.send("q", drafts, call="c1")
    again = await asyncio.gather(*[broker.send("q", drafts, call="c1") for _ in range(3)])
    assert again == [first] * 3
    assert (await broker.queue("q")).counts.total == 200
    assert await broker.send("elsewhere", drafts, call="c1") != first
    await broker.purge("q")
    assert await broker.send("q", drafts, call="c1") == first
    clock.advance(300)
    assert await broker.send("q", [draft(1)], call="c1") != first
    with pytest.raises(InvalidRequest) as error:
        await broker.send("q", [draft(1)], call="x" * 257)
    assert error.value.field == "idempotency-key"


async def test_calls_at_once_with_one_name_add_once(broker: Broker) -> None:
    answers = await asyncio.gather(*[broker.send("q", [draft(1)], call="same") for n in range(10)])
    assert len({tuple(ids) for ids in answers}) == 1
    assert (await broker.queue("q")).counts.total == 1


@pytest.mark.parametrize("settings", [{}, {"max_length": 9}], ids=["unlimited", "limited"])
@pytest.mark.parametrize("fields", [{}, {"dedup_id": "d"}, {"key": "k"}], ids=["plain", "dedup_id", "key"])
async def test_a_call_repeated_with_other_messages_is_refused(
    broker: Broker, settings: dict[str, Any], fields: dict[str, Any]
) -> None:
    await broker.configure("q", settings)
    first = await broker.send("q", [draft(1, **fields)], call="c")
    for other in ([draft(2, **fields)], [draft(1, **fields)] * 2, [draft(1, **fields, priority=1)]):
        with pytest.raises(IdempotencyMismatch, match="other messages") as refused:
            await broker.send("q", other, call="c")
        assert refused.value.field == "idempotency-key"
    assert await broker.send("q", [draft(1, **fields)], call="c") == first, "the first one still counts"
    assert bodies(await broker.receive("q", max=9)) == [1]


async def test_the_call_of_another_sender_does_not_count(broker: Broker) -> None:
    first, second = [await broker.send("q", [draft(1)], "c", scope) for scope in ("", "7a")]
    assert first != second
    assert await broker.send("q", [draft(1)], "c", "7a") == second
    with pytest.raises(InvalidRequest, match="reserved"):
        await broker.send("q", [draft(1)], "key\0007a\0c")
    assert (await broker.queue("q")).counts.total == 2


async def test_a_call_that_an_earlier_version_recorded_still_counts(broker: Broker) -> None:
    await broker.configure("q")
    now = broker.clock.now()
    message = Message(broker.reserve(1), "q", now, now, b"1")
    recorded = await broker.store.messages.put([message], Put(now=now, call=Once("c", now + SECOND)))
    assert await broker.send("q", [draft(2)], "c") == recorded


async def test_a_queue_that_is_deleted_meanwhile_stops_no_other_call(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever lists, counts or tidies all queues has others beside them who delete theirs."""
    for name in ("a", "b", "c"):
        await broker.configure(name)
    counts, scan = broker.store.messages.counts, broker.store.messages.scan

    async def counted(queue: str, now: int) -> Any:
        await broker.store.delete_queue("b", Change(0))
        return await counts(queue, now)

    async def scanned(queue: str, asked: Any) -> Any:
        await broker.store.delete_queue("c", Change(0))
        return await scan(queue, asked)

    monkeypatch.setattr(broker.store.messages, "counts", counted)
    monkeypatch.setattr(broker.store.messages, "scan", scanned)
    assert [info.name for info in await broker.queues()] == ["a", "c", "default"]
    await broker.upkeep()
    monkeypatch.undo()
    assert await broker.send("c", [draft(1)])
    assert [info.name for info in await broker.queues()] == ["a", "c", "default"]


async def test_a_queue_that_is_made_anew_while_it_is_deleted_is_there(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.configure("q")
    delete = broker.store.delete_queue

    async def deleted(*given: Any) -> bool:
        done = await delete(*given)
        await broker.send("q", [draft(1)])
        return done

    monkeypatch.setattr(broker.store, "delete_queue", deleted)
    await broker.delete_queue("q")
    assert bodies(await broker.receive("q")) == [1]


async def test_messages_move_to_a_queue_that_is_deleted_meanwhile(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.configure("q", {"max_receives": 1})
    await send(broker, "q", 1)
    taken = await broker.receive("q")
    move = broker.store.messages.move
    calls = 0

    async def moved(*asked: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 1:
            await broker.store.delete_queue("q.dead", Change(0))
        return await move(*asked)

    monkeypatch.setattr(broker.store.messages, "move", moved)
    await broker.release("q", leases(taken))
    assert (calls, bodies(await broker.receive("q.dead"))) == (2, [1])


async def test_many_messages_are_found_by_id_and_those_that_are_not_there_are_left_out(broker: Broker) -> None:
    sent = await send(broker, "q", *range(40))
    own = await broker.send("q", [draft(40, recipient="ann")])
    await broker.ack("q", leases(await broker.receive("q", max=3)))
    unknown = ["", "nothing", "00000000-0000-7000-8000-000000000000"]
    found = await broker.store.messages.find("q", [*own, *sent, *unknown, sent[9]])
    assert {id: int(stored.message.body) for id, stored in found.items()} == {
        id: place for place, id in enumerate([*sent, *own]) if place > 2
    }
    assert await broker.store.messages.find("q", []) == {}
    with pytest.raises(QueueNotFound):
        await broker.store.messages.find("none", sent)


async def test_a_purge_may_forget_dedup_ids_but_no_named_call(broker: Broker) -> None:
    (first,) = await send(broker, "q", 1, dedup_id="d")
    (named,) = await broker.send("q", [draft(1)], "call")
    await broker.purge("q", forget=True)
    (again,) = await send(broker, "q", 1, dedup_id="d")
    assert again != first
    assert await broker.send("q", [draft(1)], "call") == [named]
    await broker.ack_by_id("q", again)
    assert await broker.purge("q", forget=True) == 0
    assert await send(broker, "q", 1, dedup_id="d") not in ([first], [again])
    await send(broker, "other", 1, dedup_id="d")
    await broker.purge("q", forget=True)
    assert (await broker.queue("other")).counts.total == 1
    await send(broker, "other", 1, dedup_id="d")
    assert (await broker.queue("other")).counts.total == 1, "the other queue remembers"


async def test_tags_are_merged_and_removed_by_null(broker: Broker) -> None:
    await broker.configure("q", {"tags": {"a.b": "1", "$c": "", "ü ": "x" * 256}})
    await broker.configure("q", {"tags": {"a.b": None, "d": "2"}, "delay": 1})
    assert (await broker.store.queues())["q"].tags == {"$c": "", "ü ": "x" * 256, "d": "2"}
    for tags in ({"": "x"}, {"a": 1}, ["a"], {"a": "x" * 257}, {"x" * 129: ""}, {str(n): "" for n in range(60)}):
        with pytest.raises(InvalidRequest, match="tags: "):
            await broker.configure("q", {"tags": tags})
    with pytest.raises(InvalidRequest, match="sqs: "):
        await broker.configure("q", {"sqs": {"Policy": "x" * 70_000}})
    assert len((await broker.queue("q")).settings.tags) == 3


async def test_a_lease_that_has_expired_can_be_refused(broker: Broker, clock: FrozenClock) -> None:
    await send(broker, "q", 1, 2, 3)
    one, two, three = [[lease] for lease in leases(await broker.receive("q", max=3, visibility_timeout=10))]
    assert await broker.ack("q", one, late=False) == ["done"]
    clock.advance(10)
    assert await broker.ack("q", two, late=False) == ["stale"]
    assert await broker.release("q", two, late=False) == ["stale"]
    assert (await broker.extend("q", two, 10, late=False))[1] == ["stale"]
    assert await broker.ack("q", one, late=False) == ["missing"]
    assert await broker.ack("q", two) == ["done"]
    assert (await broker.extend("q", three, 10))[1] == ["done"]
    assert await broker.release("q", three, late=False) == ["done"]
