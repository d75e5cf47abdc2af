"""What a subscription changes of the copies on every store: filters over bodies, and envelopes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from miniq.broker import Broker
from miniq.errors import InvalidRequest, TooLarge
from miniq.ids import sequence_number
from miniq.message import PlainDrafts, Stored
from miniq.options import Options
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.kit import bodies, draft, drain, ids, states

FIELDS = {"TopicArn": "arn:aws:sns:us-east-1:000000000000:t"}


def fields(stored: Stored) -> dict[str, Any]:
    """The envelope of a message."""
    assert stored.message.content_type == "application/json"
    found: dict[str, Any] = json.loads(stored.message.body)
    return found


async def test_messages_go_where_their_body_matches(broker: Broker) -> None:
    await broker.topics.subscribe("t", "large", "a", None, {"order": {"total": [{"numeric": [">", 100]}]}}, "body")
    await broker.topics.subscribe("t", "german", "b", None, {"country": ["de"]})
    await broker.topics.subscribe("t", "both", "c", "orders.#", {"order": {"tags": ["x", True, None]}}, "body")
    values = [
        {"order": {"total": 101, "tags": ["y", "x"]}},
        {"order": {"total": "101"}, "country": "de"},
        {"order": [{"total": 1}, {"total": 500, "tags": None}]},
        "text",
        7,
        [{"order": {"total": 101}}],
    ]
    published = await broker.publish("t", [draft(value, key="orders.1", headers={"country": "fr"}) for value in values])
    assert published.queues == 2
    assert await drain(broker, "a") == [values[0], values[2]]
    assert await drain(broker, "b") == []
    assert await drain(broker, "c") == [values[0], values[2]]
    text = json.dumps(values[0]).encode()
    await broker.publish("t", PlainDrafts([text, b"{", text], "text/plain"))
    assert [stored.message.body for stored in await broker.receive("a", max=10)] == [text, text]
    assert broker.topics.counters["t", "unmatched"] == 5


async def test_a_message_is_tried_against_filters_over_bodies(broker: Broker) -> None:
    await broker.topics.subscribe("t", "a", filter={"n": [1]}, filter_on="body")
    assert [match.reason for match in await broker.topics.match("t")] == ["the filter does not match the body"]
    assert [match.matches for match in await broker.topics.match("t", body={"n": 1})] == [True]


async def test_an_envelope_holds_the_message(broker: Broker) -> None:
    await broker.topics.subscribe("t", "raw")
    await broker.topics.subscribe("t", "wrapped", envelope=FIELDS)
    await broker.topics.subscribe("t", "other", envelope={})
    headers = {"color": "red", "count": "7", "AWS.DataType.count": "Number", "AWS.Subject": "Hi"}
    published = await broker.publish("t", [draft({"n": 1}, headers=headers, priority=3), draft("plain")])
    assert published.queues == 3
    assert len(published.ids) == 2
    raw, wrapped, other = [await broker.receive(queue, max=10) for queue in ("raw", "wrapped", "other")]
    assert ids(raw) == ids(wrapped) == ids(other) == published.ids
    assert bodies(raw) == [{"n": 1}, "plain"]
    assert fields(wrapped[0]) == {
        "Type": "Notification",
        "MessageId": published.ids[0],
        "Subject": "Hi",
        "Message": '{"n": 1}',
        "Timestamp": fields(wrapped[0])["Timestamp"],
        "TopicArn": FIELDS["TopicArn"],
        "MessageAttributes": {
            "color": {"Type": "String", "Value": "red"},
            "count": {"Type": "Number", "Value": "7"},
        },
    }
    assert set(fields(wrapped[1])) == {"Type", "MessageId", "Message", "Timestamp", "TopicArn"}
    assert fields(other[1])["Message"] == '"plain"'
    for stored in wrapped:
        assert (stored.message.headers, stored.message.topic) == (None, "t")
    assert wrapped[0].message.priority == 3
    assert broker.topics.counters["t", "published"] == 2
    assert broker.topics.counters["t", "copied"] == 6
    assert broker.topics.counters["t", "unmatched"] == 0


async def test_many_plain_bodies_in_an_envelope_arrive_in_order(broker: Broker) -> None:
    await broker.topics.subscribe("t", "a", envelope=FIELDS)
    await broker.topics.subscribe("t", "b")
    published = await broker.publish("t", PlainDrafts([b"%d" % number for number in range(250)]))
    for queue in ("a", "b"):
        received = await broker.receive(queue, max=1000)
        assert ids(received) == published.ids == sorted(published.ids)
    await broker.publish("t", PlainDrafts([b"\xff", b"2"], "application/octet-stream"))
    received = await broker.receive("a", max=10)
    assert [fields(stored)["Message"] for stored in received] == ["/w==", "2"]


async def test_dedup_ids_and_groups_count_for_copies_in_an_envelope(broker: Broker) -> None:
    await broker.topics.subscribe("t", "a", envelope=FIELDS)
    await broker.topics.subscribe("t", "b", envelope={"x": "y"})
    await broker.topics.subscribe("t", "c")
    first = await broker.publish("t", [draft(1, dedup_id="d", group="g"), draft(2, dedup_id="e", group="g")])
    again = await broker.publish("t", [draft(3, dedup_id="d", group="g"), draft(4, dedup_id="f", group="h")])
    assert again.ids[0] == first.ids[0]
    assert broker.topics.counters["t", "deduplicated"] == 1
    for queue in ("a", "b", "c"):
        received = await broker.receive(queue, max=10)
        assert ids(received) == [first.ids[0], again.ids[1]]
        assert sum(await states(broker, queue)) == 3
        assert [stored.message.group for stored in received] == ["g", "h"]
        if queue != "c":
            assert [fields(stored)["Message"] for stored in received] == ["1", "4"]
            assert fields(received[0])["SequenceNumber"] == sequence_number(first.ids[0])
    repeated = [await broker.publish("t", [draft(5)], "once") for _ in range(2)]
    assert repeated[0] == repeated[1]
    assert len(await broker.receive("a", max=10)) == 1


async def test_a_queue_with_several_forms_gets_one_copy(broker: Broker) -> None:
    await broker.topics.subscribe("t", "a", "q", envelope=FIELDS)
    await broker.topics.subscribe("t", "b", "q", "orders.#", envelope={"x": "y"})
    await broker.topics.subscribe("t", "c", "q", "users.#")
    published = await broker.publish("t", [draft(1, key="orders.1"), draft(2, key="users.1"), draft(3)])
    assert published.queues == 1
    received = await broker.receive("q", max=10)
    assert ids(received) == published.ids
    assert [json.loads(stored.message.body) for stored in received][1] == 2
    assert ["TopicArn" in fields(stored) for stored in (received[0], received[2])] == [True, True]


async def test_the_history_counts_a_message_in_several_forms_once(broker: Broker) -> None:
    await broker.topics.subscribe("t", "a", envelope=FIELDS)
    await broker.topics.subscribe("t", "b")
    await broker.topics.configure("t", {"history": "events"})
    await broker.configure("a", {"history": "full"})
    published = await broker.publish("t", [draft(1), draft(23)])
    records = [record.event for record in (await broker.history()).records]
    [event] = [event for event in records if event.event == "published"]
    assert (event.id, event.count, event.size, event.queues) == (published.ids[0], 2, 3, ["a", "b"])
    assert [json.loads(event.body or b"")["Message"] for event in records if event.event == "sent"] == ["1", "23"]


async def test_a_subscription_and_a_topic_keep_their_settings(url: str, clock: FrozenClock) -> None:
    if url == "memory:":
        return
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as broker:
        kept = await broker.topics.subscribe("t", "a", None, None, {"n": [1]}, "body", FIELDS, {"DeliveryPolicy": "{}"})
        await broker.topics.configure("t", {"tags": {"team": "a", "x": "y"}, "sns": {"DisplayName": "T"}})
        await broker.topics.configure("t", {"tags": {"x": None, "z": ""}})
    async with Broker(open_store(url), Options(upkeep_interval=0), clock) as broker:
        info = await broker.topics.get("t")
        assert info.subscriptions == [kept]
        assert (info.settings.tags, info.settings.sns) == ({"team": "a", "z": ""}, {"DisplayName": "T"})
        await broker.publish("t", [draft({"n": 1}), draft({"n": 2})])
        [stored] = await broker.receive("a", max=10)
        assert fields(stored)["Message"] == '{"n": 1}'


@pytest.mark.parametrize("stores", ["memory"])
async def test_bad_options_are_refused(stores: str, clock: FrozenClock) -> None:
    async with Broker(open_store("memory:"), Options(upkeep_interval=0), clock) as broker:
        for given, field in (
            ({"filter_on": "keys"}, "filter_on"),
            ({"envelope": "x"}, "envelope"),
            ({"envelope": {"x": 7}}, "envelope"),
            ({"envelope": {"": "x"}}, "envelope"),
            ({"envelope": {"x": "\ud800"}}, "envelope"),
            ({"sns": {"x": 7}}, "sns"),
            ({"filter": {"a": {"b": ["x"]}}}, "filter.a"),
            ({"filter": {"a": {"b": "x"}}, "filter_on": "body"}, "filter.a.b"),
        ):
            with pytest.raises(InvalidRequest) as error:
                await broker.topics.subscribe("t", "a", **given)  # type: ignore[arg-type]
            assert error.value.field == field
        for envelope in ({str(number): "x" for number in range(17)}, {"x": "y" * 9000}):
            with pytest.raises(TooLarge):
                await broker.topics.subscribe("t", "a", envelope=envelope)
        nested: Any = ["x"]
        for _ in range(10):
            nested = {"a": nested}
        with pytest.raises(InvalidRequest, match="nested more than 8 deep"):
            await broker.topics.subscribe("t", "a", filter=nested, filter_on="body")
