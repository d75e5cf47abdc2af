"""Topics by the client, blocking and async: in process, and on a server over HTTP and ZeroMQ."""

from __future__ import annotations

from typing import Any

import pytest

import miniq
from tests.acceptance.faces import Opener


@pytest.fixture
def mq(opener: Opener, place: str) -> Any:
    return opener(place)


def bodies(mq: Any, queue: str) -> list[Any]:
    return [message.body for message in mq.queue(queue).receive(max=10)]


def test_the_example_of_the_specification(mq: Any) -> None:
    topic = mq.topic("orders")
    subscription = topic.subscribe("billing", pattern="orders.*.created", filter={"country": ["de"]})
    assert subscription == miniq.Subscription("billing", "billing", "orders.*.created", {"country": ["de"]})
    topic.subscribe("audit", "log")
    id = topic.publish({"n": 1}, key="orders.7.created", headers={"country": "de"})
    [message] = mq.queue("billing").receive()
    assert (message.id, message.body, message.topic, message.key) == (id, {"n": 1}, "orders", "orders.7.created")
    message.ack()
    published = topic.publish_many([1, miniq.draft(2, key="x")])
    assert (len(published.ids), published.queues) == (2, 1)
    assert topic.publish_many([]) == miniq.Published([], 0)
    topic.unsubscribe("billing")
    topic.publish("late", key="orders.7.created", headers={"country": "de"})
    assert bodies(mq, "billing") == []
    assert bodies(mq, "log") == [{"n": 1}, 1, 2, "late"]


def test_a_topic_can_be_looked_at_changed_and_deleted(mq: Any) -> None:
    topic = mq.topic("orders")
    assert topic.configure(history="events", dedup_window=5).settings == miniq.TopicSettings(
        history="events", dedup_window=5
    )
    topic.subscribe("a")
    topic.subscribe("b", pattern="x")
    assert topic.match("y", {"h": "v"}) == [
        miniq.Match("a", "a", True),
        miniq.Match("b", "b", False, "pattern 'x' does not match the key 'y'"),
    ]
    topic.publish(1)
    assert [one.name for one in topic.info().subscriptions] == ["a", "b"]
    assert [info.name for info in mq.topics()] == ["orders"]
    event = mq.history(event="published").records[-1].event
    assert (event.queue, event.queues) == ("orders", ["a"])
    topic.delete()
    assert mq.topics() == []
    with pytest.raises(miniq.TopicNotFound):
        topic.info()
    topic.subscribe("a")
    with pytest.raises(miniq.InvalidRequest, match=r"^body\.n: NaN and infinity are not JSON values"):
        topic.match(body={"n": float("nan")})
    assert topic.match(body={"n": None}) == [miniq.Match("a", "a", True)]
    with pytest.raises(miniq.InvalidRequest, match="pattern"):
        topic.subscribe("a", pattern="a*")
    with pytest.raises(miniq.BadName, match="topic: 5 is not a topic name"):
        mq.topic(5)


def test_a_full_queue_refuses_a_publication(mq: Any) -> None:
    mq.topic("t").subscribe("a")
    mq.topic("t").subscribe("b")
    mq.queue("b").configure(max_length=1)
    mq.topic("t").publish(1)
    with pytest.raises(miniq.QueueFull, match="'b'"):
        mq.topic("t").publish(2)
    assert bodies(mq, "a") == [1]


def test_a_table_can_be_published(opener: Opener, place: str) -> None:
    pa = pytest.importorskip("pyarrow")
    if place.startswith("tcp:"):
        return  # tables are sent over HTTP, or in process
    mq = opener(place)
    mq.topic("t").subscribe("a", pattern="even.#")
    mq.topic("t").subscribe("b")
    table = pa.table({"body": [str(n) for n in range(6)], "key": ["even.x" if n % 2 == 0 else "odd" for n in range(6)]})
    published = mq.topic("t").publish_table(table)
    assert (len(published.ids), published.queues) == (6, 2)
    assert bodies(mq, "a") == [0, 2, 4]
    assert bodies(mq, "b") == [0, 1, 2, 3, 4, 5]


def test_a_filter_that_is_no_object_is_refused_by_name() -> None:
    with miniq.connect("memory:") as mq, pytest.raises(miniq.InvalidRequest, match="filter"):
        mq.topic("t").subscribe("q", filter='{"a": ["b"]}')  # type: ignore[arg-type]


FILTERS: list[tuple[Any, Any]] = [
    # What Python gives, and either the filter that stands or the error.
    ({"store": ("berlin", "paris")}, {"store": ["berlin", "paris"]}),
    ({"total": [{"numeric": (">", 1)}]}, {"total": [{"numeric": [">", 1]}]}),
    ({"total": [float("nan")]}, "filter.total[0]: null is not a condition"),
    ({"total": [{"numeric": ["=", float("inf")]}]}, "filter.total[0].numeric: null is not a number"),
    ({"total": [None]}, "filter.total[0]: null is not a condition"),
    ({"total": {"prefix": True}}, 'filter.total: {"prefix": true} is not a list of conditions'),
    ({"total": [{"exists": None}]}, "filter.total[0].exists: null is neither true nor false"),
    ({}, "filter: {} is not a filter"),
    ({1: ["x"]}, "filter: 1 is not the name of a header; use text"),
]


@pytest.mark.parametrize(("given", "expected"), FILTERS, ids=str)
def test_a_filter_means_the_same_on_every_wire(mq: Any, given: Any, expected: Any) -> None:
    topic = mq.topic("orders")
    if isinstance(expected, str):
        with pytest.raises(miniq.InvalidRequest) as refused:
            topic.subscribe("a", filter=given)
        assert str(refused.value).startswith(expected), refused.value
        assert mq.topics() == []
    else:
        assert topic.subscribe("a", filter=given).filter == expected
        assert topic.info().subscriptions[0].filter == expected
