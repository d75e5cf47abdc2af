"""What a client can ask about a broker and its keys: the same in process, over HTTP and over ZeroMQ."""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import miniq
from tests.acceptance.faces import Opener
from tests.serving import serving


@pytest.fixture
def mq(opener: Opener, place: str) -> Any:
    return opener(place)


def test_stats_tell_what_queues_hold_now(mq: Any) -> None:
    mq.queue("jobs").send_many(range(3))
    mq.queue("jobs").receive()
    entry = {entry.name: entry for entry in mq.stats().queues}["jobs"]
    assert (entry.ready, entry.leased, entry.total, entry.dead) == (2, 1, 3, 0)
    found = mq.stats("jobs")
    assert [entry.name for entry in found.queues] == ["jobs"]
    assert abs(found.at - datetime.now(UTC)) < timedelta(minutes=1)
    with pytest.raises(miniq.QueueNotFound):
        mq.stats("nope")


def test_consumers_tell_who_works(mq: Any) -> None:
    queue = mq.queue("jobs")
    queue.send_many(range(3))
    first, _ = queue.receive(max=2, consumer="ann")
    queue.receive()
    queue.ack([first])
    ann, unnamed = queue.consumers()
    assert (ann.name, ann.in_flight, ann.received, ann.acked, ann.failed) == ("ann", 1, 2, 1, 0)
    assert (unnamed.name, unnamed.in_flight, unnamed.received) == (None, 1, 1)
    assert abs(ann.last_seen - datetime.now(UTC)) < timedelta(minutes=1)
    entry = mq.stats("jobs").queues[0]
    assert entry.consumers == 2
    assert 0 < entry.wait.p50 <= entry.wait.p99
    assert 0 < entry.processing.p50 <= entry.processing.p99
    with pytest.raises(miniq.QueueNotFound):
        mq.queue("nope").consumers()


def test_clients_ask_what_is_wrong_why_and_who_holds_claims(mq: Any) -> None:
    queue = mq.queue("jobs")
    queue.send_many(range(3))
    for number, message in enumerate(queue.receive(max=2)):
        message.fail(f"no order {number}", delay=60)
    [group] = queue.failures()
    assert (group.count, group.error) == (2, "no order 1")
    queue.claims("etl").next(0)
    mq.queue("other").send(1)
    groups = mq.claim_groups()
    assert {name: [one.group for one in found] for name, found in groups.items()} == {"jobs": ["etl"]}
    assert [claim.messages for claim in groups["jobs"][0].claims] == [1]
    jobs, other = (mq.stats(name).queues[0] for name in ("jobs", "other"))
    assert (jobs.problems, jobs.failures.failed, jobs.claim.group) == ([], 2, "etl")
    assert (other.problems, other.unattended_since) == (["no_consumer"], None)
    with pytest.raises(miniq.QueueNotFound):
        mq.queue("nope").failures()


def test_a_worker_without_a_name_is_called_by_its_host_and_process(mq: Any) -> None:
    queue = mq.queue("jobs")
    queue.send(1)
    done: list[Any] = []
    queue.consume(done.append, stop=lambda: bool(done), wait=0.1)
    [worker] = queue.consumers()
    assert (worker.name, worker.acked) == (f"{socket.gethostname()}:{os.getpid()}", 1)


def test_trends_tell_of_the_last_hour(mq: Any) -> None:
    mq.queue("jobs").send(1)
    found = mq.trends(series=["total"], points=20)
    assert found.step == 180
    assert all(entry.series.keys() == {"total"} for entry in found.queues)
    with pytest.raises(miniq.InvalidRequest) as caught:
        mq.trends(series=["colour"])
    assert caught.value.field == "series"


def test_whoever_needs_no_key_may_do_everything(mq: Any) -> None:
    who = mq.whoami()
    assert (who.open, who.name, who.verbs) == (True, None, ["send", "receive", "publish", "read", "manage", "admin"])


def test_messages_are_found_by_what_they_have_in_them(mq: Any) -> None:
    q = mq.queue("jobs")
    ids = q.send_many([{"to": "Ann"}, {"to": "Bob"}, "annex"])
    assert [m.id for m in q.peek(find="ann")] == [ids[0], ids[2]]
    page = q.peek(find="ANN", limit=1)
    assert [m.body for m in page] == [{"to": "Ann"}]
    assert [m.body for m in q.peek(find="ann", after=page.next)] == ["annex"]
    with pytest.raises(miniq.InvalidRequest) as caught:
        q.peek(find="")
    assert caught.value.field == "find"


def test_history_is_filtered(mq: Any) -> None:
    q = mq.queue("jobs")
    q.configure(history="events")
    begin = mq.history(limit=1).last
    first, second = q.send_many([1, 2])
    q.ack(q.receive(consumer="me"))
    told = [(record.event.event, record.event.id) for record in mq.history(begin, id=first).records]
    assert told == [("sent", first), ("received", first), ("acked", first)]
    assert [record.event.id for record in mq.history(begin, event="sent").records] == [first, second]
    [received] = mq.history(begin, event="received", consumer="me").records
    assert [r.offset for r in mq.history(begin, before=received.offset).records] == [begin + 1, begin + 2]
    assert mq.history(begin, since=datetime.now(UTC) + timedelta(hours=1)).records == []
    assert len(mq.history(begin, since=datetime.now(UTC) - timedelta(hours=1)).records) == 4
    for field, value in (("event", "colour"), ("since", datetime(2026, 1, 2))):
        with pytest.raises(miniq.InvalidRequest) as caught:
            mq.history(begin, **{field: value})
        assert caught.value.field == field


def test_a_message_is_taken_from_whoever_holds_it(mq: Any) -> None:
    q = mq.queue("jobs")
    q.send(1)
    [held] = q.receive(visibility_timeout=60)
    assert q.release_by_id(held.id) is True
    assert q.release_by_id(held.id) is False
    with pytest.raises(miniq.StaleReceipt):
        held.ack()
    assert q.receive()[0].id == held.id
    with pytest.raises(miniq.MessageNotFound):
        q.release_by_id("nope")


@pytest.mark.parametrize("wire", ["embedded", "http", "tcp"])
def test_keys_are_made_listed_and_revoked(opener: Opener, tmp_path: Path, wire: str) -> None:
    if wire == "embedded":
        mq = opener(tmp_path / "data")
        made = mq.create_key("ops", ["*"])
        assert made.secret.startswith(f"mq_{made.id}_")
        assert [(key.id, key.secret) for key in mq.list_keys()] == [(made.id, None)]
        who = mq.whoami()  # who has the store needs no key
        assert (who.open, "admin" in who.verbs, [info.name for info in mq.queues()]) == (False, True, ["default"])
        mq.revoke_key(made.id)
        assert mq.list_keys() == []
        return
    with serving(f"rocksdb:{tmp_path / 'data'}") as served:
        url = served.url if wire == "http" else served.tcp
        made = opener(url).create_key("ops", ["*"])
        with pytest.raises(miniq.Unauthorized):
            opener(url).queues()
        mq = opener(url, api_key=made.secret)
        shop = mq.create_key("shop", ["send:orders.*", "read:orders.*"])
        assert [(key.name, key.allow, key.secret) for key in mq.list_keys()] == [
            ("ops", ["*"], None),
            ("shop", ["send:orders.*", "read:orders.*"], None),
        ]
        mq.queue("orders.new").send(1)
        mine = opener(url, api_key=shop.secret)
        who = mine.whoami("orders.new")
        assert (who.open, who.name, who.id, who.verbs) == (False, "shop", shop.id, ["send", "read"])
        assert [info.name for info in mine.queues()] == [entry.name for entry in mine.stats().queues] == ["orders.new"]
        with pytest.raises(miniq.Forbidden):
            mine.list_keys()
        mq.revoke_key(shop.id)
        with pytest.raises(miniq.NotFound):
            mq.revoke_key(shop.id)
        with pytest.raises(miniq.Unauthorized):
            mine.whoami()
