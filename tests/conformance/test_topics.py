"""Topics on every store: what is published is in all matching queues, or in none."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from miniq.api.codec import moment
from miniq.broker import Broker
from miniq.broker.routing import TURN
from miniq.errors import (
    BadName,
    IdempotencyMismatch,
    InvalidRequest,
    QueueFull,
    StoreFailed,
    SubscriptionNotFound,
    TooLarge,
    TooManySubscriptions,
    TooManyTopics,
    TopicNotFound,
)
from miniq.message import SECOND, PlainDrafts
from miniq.options import Limits, Options
from miniq.result import Finished
from miniq.store import open_store
from miniq.store.arguments import FREE, Change, Remember
from miniq.store.transfer import copy
from miniq.topic import Published, TopicSettings
from tests.clock import FrozenClock
from tests.conftest import store_url
from tests.kit import bodies, case, draft, drain, ids, leases, send, states, waiting

QUEUES = ("a", "b", "c")


async def subscribe(broker: Broker, topic: str = "t", *queues: str, **fields: Any) -> None:
    for queue in queues or QUEUES:
        await broker.topics.subscribe(topic, queue, **fields)


async def publish(broker: Broker, *values: Any, topic: str = "t", **fields: Any) -> Published:
    return await broker.publish(topic, [draft(value, **fields) for value in values])


async def everything(broker: Broker, *queues: str) -> dict[str, list[Any]]:
    return {queue: await drain(broker, queue) for queue in queues or QUEUES}


async def test_a_publication_is_copied_to_all_subscribed_queues_under_one_id(broker: Broker) -> None:
    await subscribe(broker)
    published = await publish(broker, 1, 2, 3)
    assert published.queues == 3
    assert len(published.ids) == 3
    for queue in QUEUES:
        received = await broker.receive(queue, max=10)
        assert ids(received) == published.ids
        assert bodies(received) == [1, 2, 3]
        assert {(stored.message.topic, stored.message.queue) for stored in received} == {("t", queue)}
        assert await broker.ack(queue, leases(received)) == ["done"] * 3
        assert await states(broker, queue) == (0, 0, 0)


async def test_copies_are_independent_of_each_other(broker: Broker) -> None:
    await subscribe(broker)
    published = await publish(broker, *range(5))
    taken = await broker.receive("a", max=2)
    await broker.ack("a", leases(taken))
    await broker.edit("b", published.ids[1], body=b'"edited"')
    await broker.remove("b", published.ids[0])
    await broker.purge("c")
    assert await everything(broker) == {"a": [2, 3, 4], "b": ["edited", 2, 3, 4], "c": []}
    assert (await publish(broker, "next")).queues == 3
    assert await everything(broker) == {queue: ["next"] for queue in QUEUES}


async def test_plain_bodies_of_several_blocks_arrive_in_order(broker: Broker) -> None:
    await subscribe(broker)
    published = await broker.publish("t", PlainDrafts([b"%d" % number for number in range(250)]))
    for queue in QUEUES:
        received = await broker.receive(queue, max=1000)
        assert bodies(received) == list(range(250))
        assert ids(received) == published.ids == sorted(published.ids)


async def test_messages_go_where_key_and_headers_match(broker: Broker) -> None:
    await broker.topics.subscribe("t", "created", "a", "orders.*.created")
    await broker.topics.subscribe("t", "german", "b", "orders.#", {"country": ["de"]})
    await broker.topics.subscribe("t", "large", "c", None, {"total": [{"numeric": [">", 100]}]})
    messages = [
        draft(1, key="orders.1.created", headers={"country": "de"}),
        draft(2, key="orders.1.paid", headers={"country": "de", "total": "101"}),
        draft(3, key="orders.1.created"),
        draft(4, headers={"total": "500"}),
        draft(5),
        draft(6, key="orders.2.created", headers={"country": "de", "total": "99"}),
    ]
    published = await broker.publish("t", messages)
    assert published.queues == 3
    assert published.ids == sorted(published.ids)
    assert await everything(broker) == {"a": [1, 3, 6], "b": [1, 2, 6], "c": [2, 4]}
    assert broker.topics.counters["t", "published"] == 6
    assert broker.topics.counters["t", "unmatched"] == 1
    assert broker.topics.counters["t", "copied"] == 8


async def test_a_publication_without_a_match_is_confirmed_and_counted(broker: Broker) -> None:
    await broker.topics.subscribe("t", "a", None, "orders.#")
    published = await publish(broker, 1, 2, key="users.made")
    assert published.queues == 0
    assert len(set(published.ids)) == 2
    assert await states(broker, "a") == (0, 0, 0)
    assert (await broker.topics.get("t")).rates.unmatched == 0.4


async def test_a_queue_with_several_matching_subscriptions_gets_one_copy(broker: Broker) -> None:
    await broker.topics.subscribe("t", "one", "a", "x.#")
    await broker.topics.subscribe("t", "two", "a", "#.y")
    assert (await publish(broker, 1, key="x.y")).queues == 1
    assert await drain(broker, "a") == [1]


async def test_every_field_of_a_message_is_in_every_copy(broker: Broker, clock: FrozenClock) -> None:
    await subscribe(broker)
    await publish(broker, "delayed", delay=5, priority=3, headers={"x": "y"}, key="k", ttl=60)
    await publish(broker, "late", deliver_at=moment(clock.now()) + timedelta(seconds=5))
    await publish(broker, "own", recipient="ann")
    await publish(broker, 1, 2, group="g")
    for queue in QUEUES:
        assert await states(broker, queue) == (3, 2, 0)
        assert bodies(await broker.receive(queue, max=10)) == [1]  # the head of its group
        assert bodies(await broker.receive(queue, max=10, consumer="ann")) == ["own"]
    clock.advance(5)
    for queue in QUEUES:
        received = await broker.receive(queue, max=10)
        assert bodies(received) == ["delayed", "late"]
        message = received[0].message
        assert (message.priority, message.headers, message.key) == (3, {"x": "y"}, "k")
        assert message.expires_at == clock.now() + 55 * SECOND


async def test_each_queue_adds_its_own_delay(broker: Broker, clock: FrozenClock) -> None:
    await subscribe(broker)
    await broker.configure("b", {"delay": 10})
    await publish(broker, "queue's")
    await publish(broker, "own", delay=0)
    assert [await states(broker, queue) for queue in QUEUES] == [(2, 0, 0), (1, 1, 0), (2, 0, 0)]
    clock.advance(10)
    assert await everything(broker) == {"a": ["queue's", "own"], "b": ["queue's", "own"], "c": ["queue's", "own"]}


async def test_groups_stay_in_order_in_each_queue(broker: Broker) -> None:
    await subscribe(broker)
    await publish(broker, 1, 2, 3, group="g")
    await publish(broker, 4, group="g")
    for queue in QUEUES:
        for expected in (1, 2, 3, 4):
            received = await broker.receive(queue, max=10)
            assert bodies(received) == [expected]
            await broker.ack(queue, leases(received))


async def test_a_full_queue_refuses_the_whole_publication_and_is_named(broker: Broker) -> None:
    await subscribe(broker)
    await broker.configure("b", {"max_length": 3})
    await publish(broker, 1, 2)
    with pytest.raises(QueueFull, match="max_length: queue 'b' holds 2 of at most 3 messages"):
        await broker.publish("t", [draft(3, dedup_id="d"), draft(4)])
    assert [await states(broker, queue) for queue in QUEUES] == [(2, 0, 0)] * 3
    assert (await publish(broker, 3, dedup_id="d")).queues == 3
    await broker.configure("c", {"max_bytes": 3})
    await broker.configure("b", {"max_length": 0})
    with pytest.raises(QueueFull, match="max_bytes: queue 'c'"):
        await publish(broker, 4)
    assert [await states(broker, queue) for queue in QUEUES] == [(3, 0, 0)] * 3


async def test_a_dedup_id_counts_for_the_topic(broker: Broker, clock: FrozenClock) -> None:
    await subscribe(broker)
    first = await publish(broker, 1, dedup_id="d")
    again = await broker.publish("t", [draft(2, dedup_id="d"), draft(3, dedup_id="e"), draft(4, dedup_id="e")])
    assert again.ids[0] == first.ids[0]
    assert again.ids[1] == again.ids[2]
    assert again.queues == 3
    assert (await publish(broker, 5, dedup_id="d")).queues == 0
    await broker.send("a", [draft("own", dedup_id="d")])
    await broker.topics.subscribe("other", "a")
    await publish(broker, "other", topic="other", dedup_id="d")
    assert await everything(broker) == {"a": [1, 3, "own", "other"], "b": [1, 3], "c": [1, 3]}
    clock.advance(300)
    assert (await publish(broker, 6, dedup_id="d")).ids != first.ids
    await broker.topics.configure("t", {"dedup_window": 0})
    await publish(broker, 7, dedup_id="f")
    await publish(broker, 7, dedup_id="f")
    assert await drain(broker, "a") == [6, 7, 7]


async def test_a_topic_that_was_made_again_has_forgotten_its_dedup_ids(broker: Broker) -> None:
    await subscribe(broker, "t", "a")
    await publish(broker, 1, dedup_id="d")
    await broker.topics.delete("t")
    await subscribe(broker, "t", "a")
    await publish(broker, 2, dedup_id="d")
    assert await drain(broker, "a") == [1, 2]


async def test_a_repeated_call_adds_nothing_and_gets_the_first_answer(broker: Broker, clock: FrozenClock) -> None:
    await subscribe(broker)
    messages = [draft(1, dedup_id="d"), draft(2)]
    first = await broker.publish("t", messages, "call")
    await broker.topics.unsubscribe("t", "b")
    assert await broker.publish("t", messages, "call") == first
    with pytest.raises(IdempotencyMismatch):
        await broker.publish("t", [draft(3)], "call")
    assert (await broker.publish("t", messages, "call", "key")).ids != first.ids  # of another API key
    assert await broker.send("a", [draft("sent")], "call")
    assert await everything(broker) == {"a": [1, 2, 2, "sent"], "b": [1, 2], "c": [1, 2, 2]}
    clock.advance(300)
    assert (await broker.publish("t", messages, "call")).ids != first.ids


async def test_a_long_poll_hears_of_a_publication(broker: Broker) -> None:
    await subscribe(broker)
    task = await waiting(broker, broker.receive("b", wait=60))
    await publish(broker, "heard")
    assert bodies(await task) == ["heard"]


async def test_the_history_has_the_publication_once_and_its_arrivals(broker: Broker) -> None:
    await subscribe(broker)
    await broker.topics.configure("t", {"history": "events"})
    await broker.configure("a", {"history": "events"})
    await broker.configure("b", {"history": "full"})
    published = await publish(broker, 1, 23)
    await publish(broker, 4, topic="quiet")
    events = [record.event for record in (await broker.history()).records]
    [event] = [event for event in events if event.event == "published"]
    assert (event.queue, event.id, event.count, event.size) == ("t", published.ids[0], 2, 3)
    assert event.queues == ["a", "b", "c"]
    sent = [event for event in events if event.event == "sent"]
    assert sorted((event.queue, event.id, event.size, event.reason, event.body) for event in sent) == sorted(
        [
            ("a", published.ids[0], 1, "published", None),
            ("a", published.ids[1], 2, "published", None),
            ("b", published.ids[0], 1, "published", b"1"),
            ("b", published.ids[1], 2, "published", b"23"),
        ]
    )
    assert [record.event.event for record in (await broker.history(queue="t")).records] == ["published"]


async def test_a_publication_without_a_match_is_in_the_history(broker: Broker) -> None:
    await broker.topics.configure("t", {"history": "events"})
    await publish(broker, 1)
    await publish(broker, 2, dedup_id="d")
    await publish(broker, 3, dedup_id="d")
    records = (await broker.history()).records
    assert [(record.offset, record.event.queues) for record in records] == [(1, []), (2, [])]


async def test_deleting_a_queue_ends_its_subscriptions(broker: Broker) -> None:
    await subscribe(broker)
    await broker.topics.subscribe("u", "other", "b")
    await broker.delete_queue("b")
    assert [one.name for one in (await broker.topics.get("t")).subscriptions] == ["a", "c"]
    assert (await broker.topics.get("u")).subscriptions == []
    assert (await publish(broker, 1)).queues == 2
    assert "b" not in [info.name for info in await broker.queues()]


async def test_a_subscription_of_a_queue_that_is_gone_gets_nothing(broker: Broker) -> None:
    """As after a crash, or a subscription of another broker at that moment."""
    await subscribe(broker)
    await broker.configure("b", {"max_length": 10})
    settings = broker.catalog.settings("b")
    await broker.store.delete_queue("b", _change(broker))
    assert broker.catalog.find("b") is settings or broker.store.shared
    assert (await publish(broker, 1, group="g")).queues == 2
    assert await everything(broker, "a", "c") == {"a": [1], "c": [1]}


def _change(broker: Broker) -> Any:
    from miniq.store.arguments import Change

    return Change(broker.clock.now())


async def _consistent(broker: Broker) -> None:
    """Raise unless every subscription on disk has its topic and its queue, and the broker knows it."""
    store = broker.store
    subscribed, topics, queues = await store.records("subscription"), await store.records("topic"), await store.queues()
    for key in subscribed:
        assert key.partition("/")[0] in topics, f"{key} has no topic"
        assert json.loads(subscribed[key])["queue"] in queues, f"{key} has no queue"
    known = {f"{info.name}/{each.name}" for info in await broker.topics.all() for each in info.subscriptions}
    assert known == set(subscribed)


CHANGES = ("save_record", "save_records", "add_record", "change_record", "delete_queue")


@pytest.mark.parametrize("done", range(4))
@pytest.mark.parametrize("what", ["topic", "queue"])
async def test_a_deletion_that_is_cut_off_at_any_change_leaves_all_or_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, what: str, done: int
) -> None:
    await subscribe(broker)
    for topic in ("u", "v"):
        await broker.topics.subscribe(topic, "x", "b")
    changes = 0

    def cut(real: Any) -> Any:
        async def change(*given: Any) -> Any:
            nonlocal changes
            if changes == done:
                raise StoreFailed("store: killed", field="store")
            changes += 1
            return await real(*given)

        return change

    with monkeypatch.context() as patch:
        for name in CHANGES:
            patch.setattr(broker.store, name, cut(getattr(broker.store, name)))
        with suppress(StoreFailed):
            await (broker.topics.delete("t") if what == "topic" else broker.delete_queue("b"))
    await broker.topics.load()  # as a restart does
    left = {info.name: [each.queue for each in info.subscriptions] for info in await broker.topics.all()}
    whole = {"t": ["a", "b", "c"], "u": ["b"], "v": ["b"]}
    gone = {"u": ["b"], "v": ["b"]} if what == "topic" else {"t": ["a", "c"], "u": [], "v": []}
    assert left in (whole, gone)
    if what == "queue":
        assert ("b" in await broker.store.queues()) == (left == whole)


async def test_a_subscription_beside_a_deletion_is_whole_or_gone(broker: Broker) -> None:
    for number in range(8):
        await subscribe(broker, "t", "a", "b")
        calls = [
            broker.topics.delete("t") if number % 2 else broker.delete_queue("a"),
            broker.topics.subscribe("t", "late", "a"),
            broker.topics.subscribe("t", "a", filter={"x": ["1"]}),
            broker.topics.configure("t", {"dedup_window": number}),
        ]
        await asyncio.gather(*(calls if number % 4 < 2 else reversed(calls)))
        await _consistent(broker)
        await broker.topics.load()
        await _consistent(broker)


async def test_other_calls_get_their_turn_while_expensive_filters_are_tested(broker: Broker) -> None:
    """30 conditions of each of 40 filters are tested in vain, for each of 30 messages."""
    for number in range(40):
        filter = {f"h{name}": [{"prefix": f"x{number}"}, {"exists": True}] for name in range(14)} | {"last": ["no"]}
        await broker.topics.subscribe("t", f"s{number}", "a", filter=filter)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    headers = {f"h{name}": "y" for name in range(14)}
    await broker.publish("t", [draft(number, headers=headers | {"last": str(number)}) for number in range(30)])
    beside.cancel()
    assert turns >= 30 * 40 * 30 // TURN
    assert await states(broker, "a") == (0, 0, 0)


async def test_other_calls_get_their_turn_while_many_keys_are_matched(broker: Broker) -> None:
    """100 patterns of 40 words, for each of 100 keys."""
    for number in range(100):
        await broker.topics.subscribe("t", f"s{number}", "a", ".".join(["#", "a"] * 20) + f".x{number}")
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(others())
    await broker.publish("t", [draft(number, key="a." * 40 + str(number)) for number in range(100)])
    beside.cancel()
    assert turns >= 100 * 40 * 3 // TURN + 1
    assert await states(broker, "a") == (0, 0, 0)


async def test_deleting_a_topic_leaves_its_queues(broker: Broker) -> None:
    await subscribe(broker)
    await publish(broker, 1)
    await broker.topics.delete("t")
    assert await broker.topics.all() == []
    with pytest.raises(TopicNotFound):
        await broker.topics.get("t")
    assert await everything(broker) == {queue: [1] for queue in QUEUES}


async def test_a_subscription_is_replaced_and_removed(broker: Broker) -> None:
    await subscribe(broker, "t", "a")
    await broker.topics.subscribe("t", "a", "b", "x")
    assert await publish(broker, 1, key="x") is not None
    [subscription] = (await broker.topics.get("t")).subscriptions
    assert (subscription.name, subscription.queue, subscription.pattern) == ("a", "b", "x")
    await broker.topics.unsubscribe("t", "a")
    assert (await publish(broker, 2, key="x")).queues == 0
    with pytest.raises(SubscriptionNotFound, match="no subscription 'a' of topic 't'"):
        await broker.topics.unsubscribe("t", "a")
    assert await everything(broker, "a", "b") == {"a": [], "b": [1]}


async def test_a_message_is_tried_without_being_sent(broker: Broker) -> None:
    await broker.topics.subscribe("t", "all", "a")
    await broker.topics.subscribe("t", "created", "b", "*.created")
    await broker.topics.subscribe("t", "german", "c", "#", {"country": ["de"]})
    matches = await broker.topics.match("t", "users.created", {"country": "fr"})
    assert [(one.name, one.queue, one.matches) for one in matches] == [
        ("all", "a", True),
        ("created", "b", True),
        ("german", "c", False),
    ]
    assert matches[2].reason == "the filter does not match the headers"
    assert (await broker.topics.match("t"))[1].reason == "pattern '*.created' does not match a message without a key"
    assert [await states(broker, queue) for queue in QUEUES] == [(0, 0, 0)] * 3


async def test_bad_input_is_refused_and_changes_nothing(broker: Broker) -> None:
    await subscribe(broker)
    with pytest.raises(InvalidRequest, match=r"messages\[1\].priority"):
        await broker.publish("t", [draft(1), draft(2, priority=10)])
    with pytest.raises(InvalidRequest, match="messages: empty"):
        await broker.publish("t", [])
    with pytest.raises(BadName, match="topic: 'no/name' is not a topic name"):
        await publish(broker, 1, topic="no/name")
    with pytest.raises(BadName, match=r"topic: '\.\.'"):
        await publish(broker, 1, topic="..")
    with pytest.raises(BadName, match="name: "):
        await broker.topics.subscribe("new", "no/name")
    with pytest.raises(BadName, match="queue: "):
        await broker.topics.subscribe("new", "name", "no/name")
    with pytest.raises(InvalidRequest, match="pattern: "):
        await broker.topics.subscribe("new", "name", pattern="a*")
    with pytest.raises(InvalidRequest, match=r"filter\.x: "):
        await broker.topics.subscribe("new", "name", filter={"x": "y"})
    with pytest.raises(InvalidRequest, match="history: 'full'; use off or events"):
        await broker.topics.configure("new", {"history": "full"})
    with pytest.raises(InvalidRequest, match="dedup_window: -1 s is out of range"):
        await broker.topics.configure("new", {"dedup_window": -1})
    with pytest.raises(InvalidRequest, match="color: there is no such setting"):
        await broker.topics.configure("new", {"color": "red"})
    assert [info.name for info in await broker.topics.all()] == ["t"]
    assert [await states(broker, queue) for queue in QUEUES] == [(0, 0, 0)] * 3
    assert {info.name for info in await broker.queues()} == {"default", *QUEUES}


async def test_purged_and_deleted_copies_leave_nothing_behind(broker: Broker) -> None:
    await subscribe(broker)
    await publish(broker, *range(5))
    await publish(broker, 5, group="g")
    await broker.purge("a")
    await broker.delete_queue("b")
    await broker.upkeep()
    assert await drain(broker, "c") == [0, 1, 2, 3, 4, 5]
    for _ in range(3):
        await broker.upkeep()
    assert await states(broker, "c") == (0, 0, 0)


async def test_topics_survive_a_restart(url: str, clock: FrozenClock) -> None:
    if url == "memory:":
        return
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as broker:
        await broker.topics.subscribe("t", "a", pattern="x.*", filter={"h": ["1"]})
        await broker.topics.subscribe("t", "b")
        await broker.topics.configure("t", {"dedup_window": 60, "history": "events"})
        first = await publish(broker, 1, 2, dedup_id="d", key="x.y", headers={"h": "1"})
        before = await broker.topics.get("t")
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as broker:
        assert (await broker.topics.get("t")).subscriptions == before.subscriptions
        assert (await broker.topics.get("t")).settings == TopicSettings(dedup_window=60, history="events")
        assert (await publish(broker, 9, dedup_id="d")).ids == first.ids[:1]
        assert await everything(broker, "a", "b") == {"a": [1], "b": [1]}


async def test_limits(url: str, clock: FrozenClock) -> None:
    limits = Limits(subscriptions=2, copies=5, copy_bytes=20)
    async with Broker(open_store(url), Options(upkeep_interval=0, max_topics=2, limits=limits), clock) as broker:
        await subscribe(broker, "t", "a", "b")
        with pytest.raises(TooManySubscriptions, match="has 2 subscriptions"):
            await broker.topics.subscribe("t", "c")
        await broker.topics.subscribe("t", "b", pattern="x.#")
        await publish(broker, 1, 2, 3, 4, 5)
        with pytest.raises(TooLarge, match="6 copies in all queues; at most 5"):
            await publish(broker, 1, 2, 3, key="x")
        with pytest.raises(TooLarge, match="24 bytes in all queues; at most 20"):
            await publish(broker, "0123456789", key="x")
        await broker.topics.configure("u")
        for first_use in (broker.topics.configure("v"), broker.topics.subscribe("v", "a"), publish(broker, topic="v")):
            with pytest.raises(TooManyTopics, match="'v' cannot be created, there are 2 topics"):
                await first_use


async def test_a_topic_has_at_most_1000_subscriptions_unless_the_limit_says_otherwise(clock: FrozenClock) -> None:
    async with Broker(open_store("memory:"), Options(upkeep_interval=0), clock) as broker:
        for number in range(1000):
            await broker.topics.subscribe("t", f"s{number}", "a", f"{number}.#")
        with pytest.raises(TooManySubscriptions, match="has 1000 subscriptions, which is the most"):
            await broker.topics.subscribe("t", "one-more", "a")
        await broker.topics.subscribe("t", "s999", "a", "another.#")
        assert len((await broker.topics.get("t")).subscriptions) == 1000
        await broker.topics.unsubscribe("t", "s0")
        await broker.topics.subscribe("t", "one-more", "a")
        assert (await publish(broker, 1)).queues == 1


async def test_without_auto_create_a_topic_is_made_by_name(url: str, clock: FrozenClock) -> None:
    async with Broker(open_store(url), Options(upkeep_interval=0, auto_create=False), clock) as broker:
        with pytest.raises(TopicNotFound):
            await publish(broker, 1)
        with pytest.raises(TopicNotFound):
            await broker.topics.subscribe("t", "default")
        await broker.topics.configure("t")
        await broker.topics.subscribe("t", "default")
        assert (await publish(broker, 1)).queues == 1


async def test_many_publishers_at_once(broker: Broker) -> None:
    await subscribe(broker)
    await broker.topics.subscribe("t", "odd", "c", "odd")
    published = await asyncio.gather(
        *(publish(broker, number, key="odd" if number % 2 else "even") for number in range(40))
    )
    for queue in QUEUES:
        received = await broker.receive(queue, max=100)
        assert sorted(ids(received)) == sorted(one.ids[0] for one in published)


async def test_a_copy_of_a_store_has_its_topics_and_knows_what_was_published(
    url: str, clock: FrozenClock, tmp_path: Path
) -> None:
    source = open_store(url)
    async with Broker(source, Options(upkeep_interval=0), clock) as broker:
        await subscribe(broker)
        await broker.topics.configure("t", {"history": "events"})
        await broker.configure("a", {"history": "full"})
        messages = [draft(1, dedup_id="d"), draft(2), draft(3, group="g")]
        first = await broker.publish("t", messages, "call")
        info = await broker.topics.get("t")
        target = open_store(f"rocksdb:{tmp_path / 'copy'}")
        await target.open()
        await copy(source, target, now=clock.now())
        await target.close()
    async with Broker(open_store(f"rocksdb:{tmp_path / 'copy'}"), Options(upkeep_interval=0), clock) as broker:
        assert (await broker.topics.get("t")).subscriptions == info.subscriptions
        assert await broker.publish("t", messages, "call") == first
        assert (await publish(broker, 4, dedup_id="d")).ids == first.ids[:1]
        event = (await broker.history(queue="t")).records[0].event
        assert (event.event, event.queues, event.count) == ("published", ["a", "b", "c"], 3)
        received = await broker.receive("b", max=10)
        assert bodies(received) == [1, 2, 3]
        assert {stored.message.topic for stored in received} == {"t"}


@pytest.fixture(params=["postgresql", "mongodb"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request.param, tmp_path)


async def test_brokers_on_one_database_share_topics_at_once(database: str, clock: FrozenClock) -> None:
    """Without a refresh in the background: each call sees what was confirmed before."""
    options = Options(upkeep_interval=0, refresh_interval=1000)
    async with (
        Broker(open_store(database), options, clock) as one,
        Broker(open_store(database), options, clock) as two,
    ):
        await one.topics.subscribe("t", "a")
        assert (await publish(two, 1)).queues == 1
        await two.topics.subscribe("t", "b")
        assert (await publish(one, 2)).queues == 2
        await one.topics.unsubscribe("t", "a")
        assert (await publish(two, 3)).queues == 1
        first = await publish(one, 4, dedup_id="d")
        assert await publish(two, 4, dedup_id="d") == Published(first.ids, 0)
        await one.topics.subscribe("t", "a")
        await one.delete_queue("b")
        assert (await publish(two, 5)).queues == 1
        assert [info.name for info in await two.queues()] == ["a", "default"]
        both = await asyncio.gather(*(publish(broker, "same", dedup_id="race") for broker in (one, two) * 3))
        assert len({published.ids[0] for published in both}) == 1
        assert sorted(map(str, await drain(two, "a"))) == ["1", "2", "5", "same"]
        await two.topics.delete("t")
        with pytest.raises(TopicNotFound):
            await one.topics.get("t")


async def test_subscriptions_of_one_broker_beside_deletions_of_another_are_whole_or_gone(
    database: str, clock: FrozenClock
) -> None:
    options = Options(upkeep_interval=0, refresh_interval=1000)
    async with (
        Broker(open_store(database), options, clock) as one,
        Broker(open_store(database), options, clock) as two,
    ):
        for number in range(8):
            await subscribe(one, "t", "a", "b")
            await two.catalog.refresh()
            await asyncio.gather(
                two.topics.delete("t") if number % 2 else two.delete_queue("a"),
                one.topics.subscribe("t", "late", "a"),
                one.topics.subscribe("t", "a", filter={"x": ["1"]}),
                two.topics.subscribe("t", "other", "a"),
            )
            await _consistent(one)
            await _consistent(two)


async def test_publications_of_two_brokers_to_the_same_queues_are_all_whole(database: str, clock: FrozenClock) -> None:
    options = Options(upkeep_interval=0)
    async with (
        Broker(open_store(database), options, clock) as one,
        Broker(open_store(database), options, clock) as two,
    ):
        await subscribe(one)
        await one.configure("b", {"max_length": 25})
        await two.catalog.refresh()
        outcomes = await asyncio.gather(
            *(publish((one, two)[number % 2], number, -number, group=f"g{number % 3}") for number in range(20)),
            return_exceptions=True,
        )
        done = [outcome for outcome in outcomes if isinstance(outcome, Published)]
        assert len(done) == 12
        assert all(isinstance(outcome, QueueFull) for outcome in outcomes if not isinstance(outcome, Published))
        for queue in QUEUES:
            assert {stored.message.id for stored in (await one.peek(queue, limit=100)).messages} == {
                id for published in done for id in published.ids
            }


@pytest.mark.parametrize("fields", [{}, {"group": "g"}])
async def test_copies_of_one_message_may_die_in_the_same_dead_letter_queue(
    broker: Broker, clock: FrozenClock, fields: dict[str, Any]
) -> None:
    await subscribe(broker)
    for queue in QUEUES:
        await broker.configure(queue, {"dead_letter_queue": "failed", "history": "events"})
    [id] = (await publish(broker, "x", **fields)).ids
    for queue in QUEUES:
        [failed] = await broker.deliveries.fail(queue, leases(await broker.receive(queue)), "boom", None, True)
        assert failed.outcome == "dead"
        assert await states(broker, queue) == (0, 0, 0)
    dead = (await broker.peek("failed")).messages
    assert id not in ids(dead), "a copy that moves gets an id of its own"
    assert len(set(ids(dead))) == 3
    assert sorted(stored.message.dead.origin for stored in dead if stored.message.dead) == list(QUEUES)
    assert {stored.message.topic for stored in dead} == {"t"}
    assert broker.metrics.messages["failed", "sent"] == 3
    progress = await broker.redrive("failed")
    assert (progress.moved, progress.skipped) == (3, 0)
    assert await everything(broker) == {queue: ["x"] for queue in QUEUES}
    assert await states(broker, "failed") == (0, 0, 0)


async def test_a_copy_may_be_redriven_to_a_queue_that_has_another_one(broker: Broker) -> None:
    await subscribe(broker, "t", "a", "b")
    await publish(broker, *range(30))
    received = await broker.receive("a", max=30)
    await broker.deliveries.fail("a", leases(received), "boom", None, True)
    progress = await broker.redrive("a.dead", to="b")
    assert (progress.moved, progress.skipped) == (30, 0)
    assert await states(broker, "b") == (60, 0, 0)
    assert await states(broker, "a.dead") == (0, 0, 0)
    assert sorted(await drain(broker, "b")) == sorted([*range(30), *range(30)])


@pytest.mark.parametrize("dedup", [False, True], ids=["plain", "dedup"])
async def test_hundreds_of_copies_die_and_come_back_in_one_call(
    broker: Broker, clock: FrozenClock, dedup: bool
) -> None:
    await broker.configure("q", {"max_receives": 1})
    await broker.topics.subscribe("t", "q")
    drafts = [draft(n, **({"dedup_id": f"d{n}"} if dedup else {})) for n in range(300)]
    assert (await broker.publish("t", drafts)).queues == 1
    for way in ("receive", "fail", "dead", "release"):
        with case(way):
            got = await broker.receive("q", max=1000, visibility_timeout=1)
            assert sorted(bodies(got)) == list(range(300))
            if way == "receive":
                clock.advance(1)
                assert await broker.receive("q", max=1000) == []
            elif way == "release":
                assert await broker.release("q", leases(got)) == ["done"] * 300
            else:
                failed = await broker.deliveries.fail("q", leases(got), "no", dead=way == "dead")
                assert [each.outcome for each in failed] == ["dead"] * 300
            assert (await states(broker, "q"), await states(broker, "q.dead")) == ((0, 0, 0), (300, 0, 0))
            progress = await broker.redrive("q.dead")
            assert (progress.moved, progress.skipped) == (300, 0)
            assert (await states(broker, "q"), await states(broker, "q.dead")) == ((300, 0, 0), (0, 0, 0))


@pytest.mark.parametrize("done", range(3))
@pytest.mark.parametrize("redriven", [False, True], ids=["dead", "redriven"])
async def test_a_copy_whose_move_is_cut_off_at_any_change_is_in_one_queue(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, redriven: bool, done: int
) -> None:
    await broker.configure("q", {"history": "events", "results": 60})
    await broker.topics.subscribe("t", "q")
    await publish(broker, *range(3))
    await send(broker, "q", 3)
    got = await broker.receive("q", max=9)
    if redriven:
        await broker.deliveries.fail("q", leases(got), "no", dead=True)
    changes = 0

    def cut(real: Any) -> Any:
        async def change(*given: Any) -> Any:
            nonlocal changes
            if changes == done:
                raise StoreFailed("store: killed", field="store")
            changes += 1
            return await real(*given)

        return change

    with monkeypatch.context() as patch:
        for name in ("put", "drop", "move"):
            patch.setattr(broker.store.messages, name, cut(getattr(broker.store.messages, name)))
        with suppress(StoreFailed):
            await (broker.redrive("q.dead") if redriven else broker.deliveries.fail("q", leases(got), "no", dead=True))
    left = {name: bodies((await broker.peek(name)).messages) for name in ("q", "q.dead") if broker.catalog.find(name)}
    here, there = ("q.dead", "q") if redriven else ("q", "q.dead")
    assert [sorted(left.get(name, [])) for name in (here, there)] == (
        [[*range(4)], []] if not done else [[], [*range(4)]]
    )


async def test_a_store_moves_messages_under_new_ids_in_one_change(broker: Broker, clock: FrozenClock) -> None:
    store, now = broker.store, clock.now()
    for name in ("a", "b"):
        await broker.configure(name, {})
    first, second = await send(broker, "a", 1, 2)
    fresh = broker.ids.runs(3, now)
    found = await store.messages.find("a", [first, second])
    targets = [
        replace(found[id].message, queue="b", id=new) for id, new in zip((first, first, second), fresh, strict=True)
    ]
    moves = [((first, FREE), targets[0]), ((first, FREE), targets[1]), ((second, "no such receipt"), targets[2])]
    each = [Finished("dead", now)] * 3
    change = Change(now, "events", "dead", "rejected", remember=Remember(each, now + 60 * SECOND))
    assert await store.messages.move("a", moves, change, "events") == ["done", "missing", "stale"]
    assert [ids((await broker.peek(name)).messages) for name in ("a", "b")] == [[second], [fresh[0]]]
    assert list(await store.results.find("a", [first, second, *fresh], now)) == [first]
    told = [(record.event.event, record.event.queue, record.event.id) for record in (await broker.history()).records]
    assert told[-2:] == [("dead", "a", first), ("sent", "b", fresh[0])]
    assert await store.last_id() >= fresh[0], "ids rise, also after a restart with a clock that was set back"


async def test_copies_that_meet_in_a_dead_letter_queue_are_all_kept_and_come_back(broker: Broker) -> None:
    queues = ("a", "b", "c")
    for queue in queues:
        await broker.configure(queue, {"dead_letter_queue": "d"})
        await broker.topics.subscribe("t", queue)
    await broker.publish("t", [draft(1), draft(2)])
    for queue in queues:
        got = await broker.receive(queue, max=9)
        assert [failed.outcome for failed in await broker.deliveries.fail(queue, leases(got), "no", dead=True)] == [
            "dead"
        ] * 2
    letters = await broker.receive("d", max=9, visibility_timeout=0)
    assert len({letter.message.id for letter in letters}) == 6
    for _ in range(2):  # into a queue that has other copies, again and again
        await broker.redrive("d", to="b")
        assert (await broker.queue("b")).counts.total == 6
        got = await broker.receive("b", max=9)
        assert len(got) == 6
        await broker.deliveries.fail("b", leases(got), "no", dead=True)
    assert (await broker.queue("d")).counts.total == 6


async def test_copies_in_claims_are_buried_for_each_queue(broker: Broker) -> None:
    for queue in ("a", "b"):
        await broker.configure(queue, {"dead_letter_queue": "d"})
        await broker.topics.subscribe("t", queue)
    published = (await broker.publish("t", [draft(1), draft(2)])).ids
    for queue in ("a", "b"):
        claim, _ = await broker.claims.next(queue, "g", 0)
        assert claim is not None
        await broker.claims.fetch(queue, "g", claim.number)
        assert await broker.claims.bury(queue, "g", claim.number, published, "bad") == 2
        assert await broker.claims.bury(queue, "g", claim.number, published, "bad") == 2, "once more changes nothing"
        await broker.claims.ack(queue, "g", claim.number)
    letters = await broker.receive("d", max=9)
    assert sorted(letter.message.dead.origin for letter in letters if letter.message.dead) == ["a", "a", "b", "b"]


async def test_a_redrive_of_copies_and_other_messages_fills_a_queue_and_moves_each_once(broker: Broker) -> None:
    await broker.configure("a", {"max_length": 4, "history": "events"})
    await broker.topics.subscribe("t", "a")
    for number in range(3):
        await publish(broker, f"copy {number}")
        await send(broker, "a", f"other {number}")
        [_, failed] = await broker.deliveries.fail("a", leases(await broker.receive("a", max=2)), "boom", dead=True)
        assert failed.outcome == "dead"
    progress = await broker.redrive("a.dead")
    assert (progress.moved, progress.skipped, progress.reasons) == (4, 2, {"queue_full": 2})
    assert (await states(broker, "a"), await states(broker, "a.dead")) == ((4, 0, 0), (2, 0, 0))
    told = [record.event for record in (await broker.history(queue="a", limit=1000)).records]
    assert [event.reason for event in told if event.event == "sent"].count("redriven") == 4, "none was put twice"
    assert len({body for queue in ("a", "a.dead") for body in await drain(broker, queue)}) == 6
