"""Stages of topics on every store: what is uploaded is unseen, and published all at once, once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from miniq.batch import Committed, Stage, StageName
from miniq.broker import Broker
from miniq.errors import (
    BadName,
    BatchMismatch,
    InvalidRequest,
    QueueFull,
    StageUnknown,
    StoreFailed,
    TooLarge,
    TopicNotFound,
)
from miniq.message import PlainDrafts
from miniq.options import Limits, Options
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.conformance.test_topics import subscribe
from tests.conftest import store_url
from tests.kit import bodies, draft, drain, ids, states

LISTED = [("0", "0"), ("1", "0")]


async def upload(broker: Broker, partition: int, *drafts: Any, part: int = 0, attempt: int = 0, batch: int = 1) -> None:
    name = StageName("job", str(batch), str(partition), str(attempt))
    given = (
        PlainDrafts([b"%d" % value for value in drafts]) if all(isinstance(each, int) for each in drafts) else drafts
    )
    assert (await broker.topic_stages.upload("t", name, part, given))[0] == len(drafts)


async def commit(
    broker: Broker, *stages: tuple[str, str], batch: int = 1, content: str | None = None, topic: str = "t"
) -> Committed:
    return await broker.topic_stages.commit(topic, "job", str(batch), stages or LISTED, content)


async def test_uploads_are_unseen_until_they_are_published_in_order_under_one_id(
    broker: Broker, clock: FrozenClock
) -> None:
    await subscribe(broker, "t", "a", "b")
    await broker.topics.configure("t", {"history": "events"})
    await upload(broker, 0, *range(150))
    await upload(broker, 0, *range(150, 200), part=1)
    await upload(broker, 1, *range(200, 300))
    assert [await states(broker, queue) for queue in ("a", "b", "default")] == [(0, 0, 0)] * 3
    assert [stage.messages for stage in await broker.topic_stages.list("t")] == [200, 100]
    assert await broker.stages.list("default") == []  # where they are kept is not seen
    clock.advance(60)
    assert await commit(broker) == Committed(300)
    seen = {queue: (await broker.peek(queue, limit=1000)).messages for queue in ("a", "b")}
    for queue in ("a", "b"):
        assert bodies(seen[queue]) == list(range(300))
        assert {(stored.message.topic, stored.message.queue) for stored in seen[queue]} == {("t", queue)}
        assert {stored.message.sent_at for stored in seen[queue]} == {clock.now()}
    assert ids(seen["a"]) == ids(seen["b"]) == sorted(set(ids(seen["a"])))
    [published] = [record.event for record in (await broker.history()).records if record.event.event == "published"]
    assert (published.queue, published.count, published.queues) == ("t", 300, ["a", "b"])
    assert broker.topics.counters["t", "published"] == 300
    assert broker.topics.counters["t", "copied"] == 600
    assert await broker.topic_stages.list("t") == []


async def test_each_row_goes_where_it_matches_when_it_is_committed(broker: Broker) -> None:
    await broker.topics.subscribe("t", "gone")
    await upload(
        broker,
        0,
        draft(1, key="orders.created", headers={"country": "de"}, priority=3),
        draft(2, key="orders.paid"),
        draft(3),
    )
    await broker.topics.unsubscribe("t", "gone")
    await broker.topics.subscribe("t", "created", "a", "*.created")
    await broker.topics.subscribe("t", "german", "b", None, {"country": ["de"]})
    await broker.topics.subscribe("t", "orders", "c", "orders.#")
    assert await commit(broker, ("0", "0")) == Committed(3)
    assert {queue: await drain(broker, queue) for queue in ("a", "b", "c", "gone")} == {
        "a": [1],
        "b": [1],
        "c": [1, 2],
        "gone": [],
    }
    assert broker.topics.counters["t", "unmatched"] == 1


async def test_every_field_of_a_row_is_in_every_copy(broker: Broker, clock: FrozenClock) -> None:
    await subscribe(broker, "t", "a", "b")
    await broker.configure("b", {"delay": 30})
    fields = {"key": "k", "headers": {"h": "\0é"}, "priority": 7, "ttl": 100}
    await upload(
        broker,
        0,
        draft(1, **fields, group="g\0"),
        draft(2, **fields, recipient="r\\"),
        draft(3, delay=0),
        draft(4, delay=60),
        draft("text", content_type="text/plain"),
        draft(5),
    )
    clock.advance(10)
    assert await commit(broker, ("0", "0")) == Committed(6)
    now = clock.now()
    for queue, delay in (("a", 0), ("b", 30_000_000)):
        found = {stored.message.id: stored.message for stored in (await broker.peek(queue)).messages}
        first, second, third, fourth, text, last = (found[id] for id in sorted(found))
        assert (first.key, first.headers, first.priority, first.group) == ("k", {"h": "\0é"}, 7, "g\0")
        assert (first.expires_at, first.due_at) == (now + 100_000_000, now + delay)
        assert (second.recipient, second.body) == ("r\\", b"2")
        assert third.due_at - now <= 1  # a delay of 0 is one of its own
        assert (fourth.due_at, text.content_type, last.due_at) == (now + 60_000_000, "text/plain", now + delay)


async def test_a_batch_is_published_once_for_a_week(broker: Broker, clock: FrozenClock) -> None:
    await subscribe(broker, "t", "a")
    for attempt in range(2):  # the second is a batch that is run again, in other partitions
        await upload(broker, 0, *range(5 * attempt, 5), attempt=attempt)
        await upload(broker, 1, *range(5 * (1 - attempt), 5 + 5 * attempt), attempt=attempt)
        listed = [("0", str(attempt)), ("1", str(attempt))]
        assert await commit(broker, *listed, content="5-sum") == Committed(5, repeated=attempt > 0)
        assert await broker.topic_stages.list("t") == []
    assert await commit(broker, content="5-sum") == Committed(5, repeated=True)  # without stages: the answer was lost
    with pytest.raises(
        BatchMismatch, match=r"content: batch '1' of job 'job' was committed before with other messages"
    ):
        await commit(broker, content="6-sum")
    assert len(await drain(broker, "a")) == 5
    clock.advance(8 * 86400)
    await upload(broker, 0, 9)
    assert await commit(broker, ("0", "0"), content="6-sum") == Committed(1)
    assert await drain(broker, "a") == [9]


async def test_a_full_queue_refuses_the_batch_which_can_be_committed_later(broker: Broker) -> None:
    await subscribe(broker, "t", "a", "b")
    await broker.configure("b", {"max_length": 2})
    await upload(broker, 0, 1, 2, 3)
    with pytest.raises(QueueFull, match="queue 'b'"):
        await commit(broker, ("0", "0"))
    assert [await states(broker, queue) for queue in ("a", "b")] == [(0, 0, 0)] * 2
    await broker.configure("b", {"max_length": 0})
    assert await commit(broker, ("0", "0")) == Committed(3)
    assert [await drain(broker, queue) for queue in ("a", "b")] == [[1, 2, 3]] * 2


async def test_dedup_ids_count_for_the_topic(broker: Broker) -> None:
    await subscribe(broker, "t", "a")
    await broker.publish("t", [draft(1, dedup_id="x")])
    await upload(broker, 0, draft(1, dedup_id="x"), draft(2, dedup_id="y"), draft(2, dedup_id="y"))
    assert await commit(broker, ("0", "0")) == Committed(1)
    assert await drain(broker, "a") == [1, 2]


async def test_stages_are_discarded_and_missing_ones_named(broker: Broker, clock: FrozenClock) -> None:
    await subscribe(broker, "t", "a")
    await upload(broker, 0, 1, 2)
    assert await broker.topic_stages.list("t") == [
        Stage(StageName("job", "1", "0", "0"), 1, 2, 2, clock.now(), clock.now() + 86_400_000_000, 0)
    ]
    with pytest.raises(StageUnknown, match="no attempt '0' of partition '1' of batch '1' of job 'job';"):
        await commit(broker)
    assert await broker.topic_stages.discard("t", "job", "1") == 1
    assert await broker.topic_stages.discard("t", "job", "1") == 0
    with pytest.raises(StageUnknown):
        await commit(broker, ("0", "0"))
    await upload(broker, 0, 1)
    clock.advance(2 * 86400)
    with pytest.raises(StageUnknown):
        await commit(broker, ("0", "0"))
    assert await drain(broker, "a") == []


async def test_a_batch_without_rows_is_remembered_too(broker: Broker) -> None:
    await subscribe(broker, "t", "a")
    assert await broker.topic_stages.commit("t", "job", "1", [], "0-0") == Committed(0)
    assert await broker.topic_stages.commit("t", "job", "1", [], "0-0") == Committed(0, repeated=True)
    with pytest.raises(BatchMismatch):
        await broker.topic_stages.commit("t", "job", "1", [], "1-1")


async def test_bad_names_are_refused_and_a_topic_that_was_made_again_starts_afresh(broker: Broker) -> None:
    for name in ("", "a b", "topic\0x", "x" * 129):
        with pytest.raises(BadName):
            await broker.topic_stages.commit("t", name, "1", [])
        with pytest.raises(BadName):
            await broker.topic_stages.upload("t", StageName(name, "1", "0", "0"), 0, [draft(1)])
    with pytest.raises(InvalidRequest, match=r"stages\[1\]: partition '0' is already listed"):
        await commit(broker, ("0", "0"), ("0", "1"))
    with pytest.raises(TopicNotFound):
        await broker.topic_stages.discard("other", "job", "1")
    await upload(broker, 0, 1)
    await broker.topics.delete("t")
    with pytest.raises(StageUnknown):
        await commit(broker, ("0", "0"))


async def test_a_batch_beyond_the_limits_of_a_publication_is_refused(url: str, clock: FrozenClock) -> None:
    limits = Limits(copies=20, copy_bytes=1000)
    async with Broker(open_store(url), Options(limits=limits), clock) as broker:
        await subscribe(broker, "t", "a", "b", "c")
        await upload(broker, 0, *range(21))
        with pytest.raises(TooLarge, match="stages: 21 messages of 32 bytes; at most 20 and 1000 in one commit"):
            await commit(broker, ("0", "0"))
        await upload(broker, 0, *range(7), batch=2)
        with pytest.raises(TooLarge, match="21 copies in all queues; at most 20"):
            await commit(broker, ("0", "0"), batch=2)
        assert await states(broker, "a") == (0, 0, 0)
        await broker.topics.unsubscribe("t", "c")
        assert await commit(broker, ("0", "0"), batch=2) == Committed(7)


async def test_a_commit_that_was_cut_off_before_its_stages_were_removed_is_not_made_again(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    await subscribe(broker, "t", "a", "b")
    await upload(broker, 0, 1, 2)

    async def killed(*given: Any) -> int:
        raise StoreFailed("store: killed", field="store")

    with monkeypatch.context() as patch:
        patch.setattr(broker.store.stages, "discard", killed)
        with pytest.raises(StoreFailed):
            await commit(broker, ("0", "0"))
    assert len(await broker.topic_stages.list("t")) == 1
    assert await commit(broker, ("0", "0")) == Committed(2, repeated=True)
    assert await broker.topic_stages.list("t") == []
    assert [await drain(broker, queue) for queue in ("a", "b")] == [[1, 2]] * 2


async def test_of_two_commits_at_the_same_time_one_is_made(broker: Broker) -> None:
    await subscribe(broker, "t", "a", "b")
    for batch in range(5):
        await upload(broker, 0, draft(1, key="k"), draft(2), batch=batch)
        await upload(broker, 1, 3, batch=batch)
        done = await asyncio.gather(*(commit(broker, batch=batch) for _ in range(3)))
        assert sorted(done, key=lambda each: each.repeated) == [Committed(3), *[Committed(3, repeated=True)] * 2]
    assert [await drain(broker, queue) for queue in ("a", "b")] == [[1, 2, 3] * 5] * 2


@pytest.mark.parametrize("database", ["postgresql", "mongodb"])
async def test_of_two_brokers_that_commit_a_batch_one_publishes_it(
    database: str, tmp_path: Path, clock: FrozenClock
) -> None:
    url = store_url(database, tmp_path)
    async with Broker(open_store(url), clock=clock) as one, Broker(open_store(url), clock=clock) as other:
        await subscribe(one, "t", "a", "b")
        for batch in range(5):
            await upload(one, 0, draft(1, key="k"), draft(2), batch=batch)
            await upload(other, 1, 3, batch=batch)
            done = await asyncio.gather(*(commit(broker, batch=batch) for broker in (one, other)))
            assert sorted(done, key=lambda each: each.repeated) == [Committed(3), Committed(3, repeated=True)]
        assert [await drain(other, queue) for queue in ("a", "b")] == [[1, 2, 3] * 5] * 2
