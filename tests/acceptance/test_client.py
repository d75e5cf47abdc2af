"""The client surface, blocking and async: in process, and on a server over HTTP and ZeroMQ."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

import miniq
from tests.acceptance.faces import Opener
from tests.kit import case


@pytest.fixture
def mq(opener: Opener, url: str) -> Any:
    return opener(url)


@pytest.fixture
def q(opener: Opener, place: str) -> Any:
    """A queue where the store does not matter."""
    return opener(place).queue("jobs")


# The example of the specification

SPEC_EXAMPLE = """
import miniq
with miniq.connect("http://localhost:5000") as mq:      # or tcp://localhost:5557, or a folder: embedded, no server
    q = mq.queue("emails")
    q.send({"to": "a@b.c"}, priority=5)
    for m in q.receive(max=10, wait=5):                  # a lease; m.extend(), m.release(), m.ack()
        with m:                                          # acks on success, releases on an exception
            work(m.body)
    q.consume(work, concurrency=4)                       # a worker loop: leases are extended while work runs
"""


def test_the_example_of_the_specification_runs(url: str) -> None:
    done: list[Any] = []

    def work(body: Any) -> None:
        done.append(body)
        if len(done) == 1:
            names["q"].send("for the worker loop")
        else:
            os.kill(os.getpid(), signal.SIGINT)

    names: dict[str, Any] = {"work": work}
    where = url.removeprefix("rocksdb:")  # a plain folder
    exec(SPEC_EXAMPLE.replace("http://localhost:5000", where), names)  # noqa: S102
    assert done == [{"to": "a@b.c"}, "for the worker loop"]
    with miniq.connect(where) as mq:
        assert mq.queue("emails").info().counts.total == 0


# Messages


def test_a_message_comes_with_everything_it_was_sent_with(mq: Any) -> None:
    before = datetime.now(UTC)
    id = mq.queue("jobs").send(
        {"n": [1, None, "ü"]}, headers={"a": "b"}, priority=7, key="k", recipient="r", group="g", dedup_id="d", ttl=60
    )
    [m] = mq.queue("jobs").receive(max=10, consumer="r", visibility_timeout=20)
    assert (m.id, m.queue, m.body, m.content_type) == (id, "jobs", {"n": [1, None, "ü"]}, "application/json")
    assert (m.headers, m.priority, m.key, m.recipient, m.group, m.dedup_id) == ({"a": "b"}, 7, "k", "r", "g", "d")
    assert (m.receives, m.dead, m.consumer, m.status) == (1, None, "r", "leased")
    after = datetime.now(UTC)
    drift = timedelta(seconds=1)  # between the broker's clock and this one
    assert m.sent_at.tzinfo is UTC
    assert before - drift <= m.sent_at <= after + drift
    assert m.sent_at + timedelta(seconds=20) <= m.lease_until <= after + timedelta(seconds=20) + drift
    assert m.receipt


def test_a_plain_message_has_empty_headers_and_no_extras(q: Any) -> None:
    q.send(None)
    [m] = q.receive()
    assert (m.body, m.headers, m.priority, m.key, m.recipient, m.group, m.dedup_id) == (None, {}, 0, *[None] * 4)


def test_bytes_and_text_come_back_as_what_they_were(mq: Any) -> None:
    q = mq.queue("raw")
    q.send(b"\x00\xff")
    q.send(b"a,b", content_type="text/csv")
    q.send("grün", content_type="text/plain; charset=latin-1")
    q.send(b'{"a": 1}', content_type="application/vnd.x+json")
    assert [(m.body, m.content_type, m.data) for m in q.receive(max=9)] == [
        (b"\x00\xff", "application/octet-stream", b"\x00\xff"),
        ("a,b", "text/csv", b"a,b"),
        ("grün", "text/plain; charset=latin-1", "grün".encode("latin-1")),
        ({"a": 1}, "application/vnd.x+json", b'{"a": 1}'),
    ]


def test_many_are_sent_in_order_from_bodies_and_drafts(mq: Any) -> None:
    q = mq.queue("jobs")
    ids = q.send_many([{"n": 0}, b"raw", miniq.draft("late", delay=60), miniq.draft("first", priority=9)])
    assert len(set(ids)) == 4
    assert [(m.id, m.body) for m in q.receive(max=9)] == [(ids[3], "first"), (ids[0], {"n": 0}), (ids[1], b"raw")]
    assert q.get(ids[2]).status == "delayed"


def test_sending_many_is_all_or_nothing(q: Any) -> None:
    with pytest.raises(miniq.InvalidRequest) as caught:
        q.send_many([1, miniq.draft(2, priority=99)])
    assert caught.value.field == "messages[1].priority"
    assert q.receive() == []


def test_nothing_to_send_or_ack_is_no_call_at_all(q: Any) -> None:
    assert (q.send_many([]), q.ack([]), q.release([]), q.fail([], "x"), q.extend([], 5)) == ([], [], [], [], [])


def test_later_changes_to_headers_do_not_reach_the_message(q: Any) -> None:
    headers = {"a": "1"}
    q.send(1, headers=headers)
    headers["a"] = "2"
    [m] = q.receive(visibility_timeout=0)
    m.headers["a"] = "3"
    assert q.receive()[0].headers == {"a": "1"}


def test_a_second_send_with_one_dedup_id_returns_the_first_id(mq: Any) -> None:
    q = mq.queue("jobs")
    assert q.send(1, dedup_id="x") == q.send(2, dedup_id="x")
    assert [m.body for m in q.receive(max=9)] == [1]


# Leases


def test_the_context_manager_acks_on_success(mq: Any) -> None:
    q = mq.queue("jobs")
    q.send(1)
    [m] = q.receive()
    with m as same:
        assert same is m
    assert q.info().counts.total == 0


def test_the_context_manager_fails_on_an_exception_which_goes_on(mq: Any) -> None:
    q = mq.queue("jobs")
    q.configure(retry={"delay": 0})
    q.send(1)
    [m] = q.receive()
    with pytest.raises(ZeroDivisionError), m:
        _ = 1 / 0
    [again] = q.receive()
    assert (again.id, again.receives) == (m.id, 2)
    text, _, trace = again.error.partition("\n")
    assert text == "ZeroDivisionError: division by zero"
    assert "_ = 1 / 0" in trace


def test_the_context_manager_gives_back_what_was_only_interrupted(q: Any) -> None:
    q.send(1)
    [m] = q.receive()
    with pytest.raises(KeyboardInterrupt), m:
        raise KeyboardInterrupt
    [again] = q.receive()
    assert (again.receives, again.error) == (2, None)


def test_a_rejected_message_is_a_dead_letter_at_once(mq: Any) -> None:
    q = mq.queue("jobs")
    q.send(1)
    [m] = q.receive()
    with pytest.raises(miniq.Reject), m:
        raise miniq.Reject("no such customer")
    [dead] = mq.queue("jobs.dead").peek()
    assert (dead.dead.origin, dead.dead.reason, dead.dead.receives) == ("jobs", "rejected", 1)
    assert dead.dead.error.startswith("miniq.Reject: no such customer\n")
    assert q.info().counts.total == 0


def test_a_failed_message_keeps_its_error_and_waits(mq: Any) -> None:
    q = mq.queue("jobs")
    q.configure(max_receives=2)
    q.send_many([1, 2])
    m, n = q.receive(max=2)
    assert (m.error, m.fail("SMTP server unreachable", delay=60)) == (None, True)
    seen = q.get(m.id)
    assert (seen.status, seen.error, seen.receives) == ("delayed", "SMTP server unreachable", 1)
    assert n.fail(ValueError("no '@'"), delay=0) is True
    [n] = q.receive()
    assert n.error == "ValueError: no '@'"
    assert n.fail("again") is False
    [dead] = mq.queue("jobs.dead").peek()
    assert (dead.id, dead.dead.reason, dead.dead.error) == (n.id, "max_receives", "again")
    with pytest.raises(miniq.MessageNotFound):
        n.fail("twice")


def test_many_fail_with_one_call(mq: Any) -> None:
    q = mq.queue("jobs")
    q.configure(retry=miniq.Retry(delay=60, jitter=0))
    q.send_many([1, 2, 3])
    messages = q.receive(max=3)
    messages[1].ack()
    failed = q.fail(messages, "down")
    assert [one.outcome for one in failed] == ["retried", "missing", "retried"]
    assert failed[0].visible_at == failed[2].visible_at == q.get(messages[0].id)._stored.visible_at
    assert [one.outcome for one in q.fail(messages[2:], "down", dead=True)] == ["stale"]
    assert q.info().counts.delayed == 2


@pytest.mark.parametrize("by_hand", ["ack", "release", "fail"])
def test_the_context_manager_does_nothing_after_what_was_done_by_hand(q: Any, by_hand: str) -> None:
    q.send(1)
    [m] = q.receive()
    with m:
        getattr(m, by_hand)(*(["why", 0] if by_hand == "fail" else []))
        others = q.receive()
    assert len(others) == (0 if by_hand == "ack" else 1)
    assert q.info().counts.leased == len(others)
    for other in others:
        assert other.ack() is True


def test_the_context_manager_does_nothing_after_an_ack_in_bulk(q: Any) -> None:
    q.send_many([1, 2])
    messages = q.receive(max=2)
    with messages[0]:
        assert q.ack(messages) == ["done", "done"]
    assert q.ack(messages) == ["missing", "missing"]


def test_an_exception_after_a_lost_lease_is_the_users_own(q: Any) -> None:
    q.send(1)
    [m] = q.receive(visibility_timeout=0)
    [other] = q.receive()
    with pytest.raises(ZeroDivisionError) as caught, m:
        _ = 1 / 0
    assert not hasattr(caught.value, "__notes__")
    assert other.ack() is True


def test_a_repeated_ack_is_harmless_and_says_so(mq: Any) -> None:
    q = mq.queue("jobs")
    q.send(1)
    [m] = q.receive()
    assert (m.ack(), m.ack()) == (True, False)


def test_a_receipt_that_was_overtaken_is_refused(mq: Any) -> None:
    q = mq.queue("jobs")
    q.send(1)
    [m] = q.receive(visibility_timeout=0)
    [other] = q.receive()
    for call in (m.ack, m.release, m.extend, functools.partial(m.fail, "why")):
        with pytest.raises(miniq.StaleReceipt) as caught:
            call()
        assert caught.value.field == "receipt"
    assert q.ack([m]) == ["stale"]
    assert other.ack() is True


def test_a_late_ack_counts_if_nobody_got_the_message(q: Any) -> None:
    q.send(1)
    [m] = q.receive(visibility_timeout=0)
    assert m.ack() is True


def test_release_and_extend_of_a_message_that_is_gone_say_so(q: Any) -> None:
    q.send(1)
    [m] = q.receive()
    m.ack()
    for call in (m.release, m.extend):
        with pytest.raises(miniq.MessageNotFound):
            call()


def test_extend_moves_the_end_of_the_lease(mq: Any) -> None:
    q = mq.queue("jobs")
    q.send_many([1, 2])
    m, n = q.receive(max=2, visibility_timeout=1)
    first = m.lease_until
    until = m.extend(100)
    assert m.lease_until == until > first + timedelta(seconds=90)
    assert q.get(m.id).lease_until == until
    assert q.extend([m, n], 200) == ["done", "done"]
    assert n.lease_until > first + timedelta(seconds=190)
    assert first + timedelta(seconds=29) <= m.extend() < n.lease_until  # the queue's own 30 s


def test_released_messages_come_back_at_once_or_after_their_delay(q: Any) -> None:
    q.send_many([1, 2])
    m, n = q.receive(max=2)
    m.release()
    n.release(delay=60)
    assert [x.body for x in q.receive(max=2)] == [1]
    assert q.get(n.id).status == "delayed"


def test_the_receives_of_released_messages_that_were_not_used_do_not_count(q: Any) -> None:
    q.send_many([1, 2, 3])
    m, *rest = q.receive(max=3)
    m.release(unused=True)
    assert q.release(rest, unused=True) == ["done", "done"]
    assert [x.receives for x in q.receive(max=3)] == [1, 1, 1]


def test_an_expired_lease_goes_to_the_next_one_who_waits(mq: Any) -> None:
    q = mq.queue("jobs")
    q.send(1)
    [m] = q.receive(visibility_timeout=0.2)
    assert q.receive() == []
    [again] = q.receive(wait=5)
    assert (again.id, again.receives) == (m.id, 2)


def test_at_most_once_needs_no_ack(mq: Any) -> None:
    q = mq.queue("jobs")
    q.send(1)
    [m] = q.receive(mode="at-most-once")
    assert q.info().counts.total == 0
    with pytest.raises(ZeroDivisionError), m:
        _ = 1 / 0
    assert q.receive() == []


def test_a_message_that_was_only_looked_at_cannot_be_acked(q: Any) -> None:
    id = q.send(1)
    [held] = q.receive()
    for seen in (q.get(id), *q.peek()):
        assert (seen.receipt, seen.status) == (None, "leased")
        with pytest.raises(miniq.InvalidRequest, match="peeked at"):
            seen.ack()
    assert held.ack() is True


def test_messages_of_another_queue_are_refused(opener: Opener, place: str) -> None:
    mq = opener(place)
    mq.queue("jobs").send(1)
    [m] = mq.queue("jobs").receive()
    with pytest.raises(miniq.InvalidRequest, match="is of queue 'jobs', not of 'other'"):
        mq.queue("other").ack([m])
    assert m.ack() is True


# The rest of the surface


def test_peek_pages_through_a_queue_without_consuming(mq: Any) -> None:
    q = mq.queue("jobs")
    q.send_many(range(25))
    seen: list[int] = []
    after = None
    while True:
        page = q.peek(after=after, limit=10)
        seen += [m.body for m in page]
        after = page.next
        if after is None:
            break
    assert sorted(seen) == list(range(25))
    assert q.info().counts.ready == 25
    assert list(q.peek(status="leased")) == []


def test_edit_changes_only_what_is_named(mq: Any) -> None:
    q = mq.queue("jobs")
    id = q.send({"a": 1}, headers={"h": "1"}, priority=3)
    assert q.edit(id, priority=4).body == {"a": 1}
    edited = q.edit(id, body=None)
    assert (edited.body, edited.content_type, edited.headers, edited.priority) == (
        None,
        "application/json",
        {"h": "1"},
        4,
    )
    assert q.edit(id, body=b"x", content_type="text/plain").body == "x"
    [m] = q.receive()
    with pytest.raises(miniq.MessageLeased):
        q.edit(id, body=1)
    assert q.edit(id, body=2, receipt=m.receipt).body == 2


def test_remove_purge_and_delete(mq: Any) -> None:
    q = mq.queue("jobs")
    ids = q.send_many(range(5))
    q.remove(ids[0])
    with pytest.raises(miniq.MessageNotFound):
        q.get(ids[0])
    assert q.purge() == 4
    q.delete()
    with pytest.raises(miniq.QueueNotFound):
        q.info()
    assert [info.name for info in mq.queues()] == ["default"]
    with pytest.raises(miniq.QueueProtected):
        mq.queue("default").delete()


def test_a_worn_out_message_dies_and_is_redriven(mq: Any) -> None:
    q = mq.queue("jobs")
    assert q.configure(max_receives=1).settings.max_receives == 1
    id = q.send("x")
    q.receive()[0].release()
    assert q.receive() == []
    [dead] = mq.queue("jobs.dead").peek()
    assert (dead.id, dead.dead.origin, dead.dead.reason, dead.dead.receives) == (id, "jobs", "max_receives", 1)
    assert dead.dead.at.tzinfo is UTC
    assert mq.queue("jobs.dead").redrive(ids=[id]).moved == 1
    [m] = q.receive()
    assert (m.id, m.receives, m.dead) == (id, 1, None)


def test_history_tells_what_happened(mq: Any) -> None:
    q = mq.queue("jobs")
    q.configure(history="events")
    begin = mq.history(limit=1).last  # a server may remember earlier tests
    q.send(1)
    with q.receive(consumer="me")[0]:
        pass
    page = mq.history(after=begin, queue="jobs")
    assert [record.event.event for record in page.records] == ["sent", "received", "acked"]
    assert mq.history(after=page.next).records == []


# Wrong input: the same errors on both clients


WRONG: list[tuple[Callable[[Any], Any], str, str, str]] = [
    (lambda q: q.send(object()), "invalid", "body", "not a JSON value"),
    (lambda q: q.send("\ud800"), "invalid", "body", "not a JSON value"),
    (lambda q: q.send({1: 2}, content_type="text/plain"), "invalid", "body", "give bytes or str"),
    (lambda q: q.send(b"{", content_type="application/json"), "invalid", "body", "JSON"),
    (lambda q: q.send(1, content_type=5), "invalid", "content_type", "5 is not a media type"),
    (lambda q: q.send(1, priority=10), "invalid", "priority", "10 is out of range; use 0 to 9"),
    (lambda q: q.send(1, delay=-1), "invalid", "delay", "-1 s is out of range; use 0 to 1209600"),
    (lambda q: q.send(1, headers=["a"]), "invalid", "headers", "is not a map"),
    (lambda q: q.send(1, headers={"a": 1}), "invalid", "headers", "the value of 'a' is 1; use text"),
    (lambda q: q.send("x" * 2**20), "too_large", "body", "at most 1048576"),
    (lambda q: q.send_many("abc"), "invalid", "messages", "not a list"),
    (lambda q: q.send_many(range(1001)), "too_large", "messages", "at most 1000"),
    (lambda q: q.receive(max=0), "invalid", "max", "use 1 to 1000"),
    (lambda q: q.receive(wait=61), "invalid", "wait", "use 0 to 60"),
    (lambda q: q.receive(mode="twice"), "invalid", "mode", "at-most-once"),
    (lambda q: q.configure(colour="red"), "invalid", "colour", "no such setting"),
    (lambda q: q.peek(status="lost"), "invalid", "status", "use ready, delayed or leased"),
    (lambda q: q.edit("x"), "invalid", "body", "nothing to change"),
    (lambda q: q.get("x"), "message_not_found", "id", "'x'"),
    (lambda q: q.consume(None), "invalid", "handler", "cannot be called"),
    (lambda q: q.consume(print, concurrency=0), "invalid", "concurrency", "at least 1"),
    (lambda q: q.consume(print, visibility_timeout=0), "invalid", "visibility_timeout", "above 0"),
    (lambda q: q.consume(print, stop=1), "invalid", "stop", "neither an Event nor a function"),
    (lambda q: q.consume(print, pass_message="all"), "invalid", "pass_message", "use True or False"),
]


def test_wrong_input_is_told_with_its_field_and_what_would_be_right(q: Any) -> None:
    q.configure()
    for call, error, field, text in WRONG:
        with case(error, field, text):
            with pytest.raises(miniq.MiniQError) as caught:
                call(q)
            assert (caught.value.code, caught.value.field) == (error, field)
            assert text in caught.value.text
            assert q.info().counts.total == 0


def test_bad_queue_names_are_refused(opener: Opener, place: str) -> None:
    mq = opener(place)
    for bad in ("", "a b", "a/b", "..%2f", "ü", "x" * 129, "a\r\nb", "a?b#c"):
        for call in (lambda q: q.send(1), lambda q: q.receive(), lambda q: q.configure(), lambda q: q.info()):
            with case(bad), pytest.raises(miniq.BadName) as caught:
                call(mq.queue(bad))
            assert caught.value.field == "queue"


def test_a_queue_name_that_is_no_text_is_refused(opener: Opener, place: str) -> None:
    mq = opener(place)
    with pytest.raises(miniq.BadName):
        mq.queue(["x"])


# Opening and closing


def test_messages_survive_close_and_reopen(opener: Opener, url: str) -> None:
    mq = opener(url)
    ids = mq.queue("jobs").send_many(range(3))
    mq.queue("jobs").receive()[0].ack()
    mq.close()
    assert [(m.id, m.body) for m in opener(url).queue("jobs").receive(max=9)] == [(ids[1], 1), (ids[2], 2)]


def test_close_may_be_repeated_and_later_calls_are_refused(mq: Any) -> None:
    q = mq.queue("jobs")
    q.send(1)
    mq.close()
    mq.close()
    for call in (lambda: q.send(1), q.receive, q.info, mq.queues, mq.history):
        with pytest.raises(miniq.Closed):
            call()


@pytest.mark.timeout(40, func_only=True)  # sooner than the wait is over
def test_close_lets_a_long_poll_of_another_thread_return(url: str) -> None:
    mq = miniq.connect(url)
    waits, result = threading.Event(), []

    def poll() -> None:
        q = mq.queue("jobs")
        waits.set()
        result.append(q.receive(wait=50))

    thread = threading.Thread(target=poll)
    thread.start()
    waits.wait()
    time.sleep(0.1)  # let it get into the broker; the test holds either way
    mq.close()
    thread.join()
    assert result in ([[]], [])


def test_close_while_many_threads_send_loses_nothing_that_was_confirmed(url: str) -> None:
    mq = miniq.connect(url)
    confirmed: list[str] = []
    others: list[BaseException] = []

    def send(name: str) -> None:
        try:
            for n in range(10**6):  # the first send to a queue takes two steps: more to be caught in between
                confirmed.append(mq.queue(f"{name}-{n}").send("x"))  # noqa: PERF401
        except miniq.Closed:
            pass
        except BaseException as error:
            others.append(error)

    threads = [threading.Thread(target=send, args=(f"jobs-{n}",)) for n in range(8)]
    for thread in threads:
        thread.start()
    while len(confirmed) < 50:
        time.sleep(0.01)
    mq.close()
    for thread in threads:
        thread.join()
    assert others == []
    with miniq.connect(url) as again:
        names = [info.name for info in again.queues()]
        found = {m.id for name in names for m in again.queue(name).peek()}
    assert set(confirmed) <= found


def test_many_threads_share_one_client(url: str) -> None:
    with miniq.connect(url) as mq:
        q = mq.queue("jobs")
        got: list[int] = []

        def send(base: int) -> None:
            for n in range(50):
                q.send(base + n)

        def take() -> None:
            while len(got) < 400:
                for m in q.receive(max=10, wait=0.2):
                    got.append(m.body)
                    m.ack()

        threads = [threading.Thread(target=send, args=(50 * n,)) for n in range(8)]
        threads += [threading.Thread(target=take) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(got) == list(range(400))
        assert q.info().counts.total == 0


def test_an_interrupted_receive_leaves_nothing_leased(place: str) -> None:
    with miniq.connect(place) as mq:
        q = mq.queue("jobs")
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
        with pytest.raises(KeyboardInterrupt):
            q.receive(wait=30)
        q.send(1)
        assert [m.body for m in q.receive(wait=1)] == [1]


def test_ctrl_c_while_a_reply_is_read_leaves_nothing_leased(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with miniq.connect(place) as mq:
        q = mq.queue("jobs")
        q.send_many([1, 2, 3])
        create = miniq.Message.__init__

        def interrupted(self: miniq.Message, *args: Any) -> None:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)
            create(self, *args)

        monkeypatch.setattr(miniq.Message, "__init__", interrupted)
        with pytest.raises(KeyboardInterrupt):
            q.receive(3)
        assert q.info().counts.leased == 0
        assert [m.body for m in q.receive(3)] == [1, 2, 3]


def test_an_ack_that_is_interrupted_takes_effect(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with miniq.connect(place) as mq:
        q = mq.queue("jobs")
        q.send(1)
        (message,) = q.receive()
        perform = type(q._transport).perform

        def interrupted(self: Any, call: Any) -> Any:
            monkeypatch.undo()
            signal.raise_signal(signal.SIGINT)
            return perform(self, call)

        monkeypatch.setattr(message._from, "_perform", functools.partial(interrupted, q._transport))
        with pytest.raises(KeyboardInterrupt), message:
            pass
        assert q.info().counts.total == 0


def test_an_async_client_in_another_loop_is_told_so(place: str) -> None:
    async def connect() -> miniq.AsyncClient:
        return await miniq.connect_async(place)

    mq = asyncio.run(connect())
    for call in (mq.queues, lambda: mq.queue("a").send(1)):
        with pytest.raises(miniq.InvalidRequest, match="another event loop"):
            asyncio.run(call())


# Arguments of the wrong type


WRONG_ARGUMENTS: list[tuple[str, Callable[[Any], object], str, str]] = [
    ("redrive, a text", lambda mq: mq.queue("jobs").redrive(ids="abc"), "ids", "'abc'"),
    ("redrive, a number", lambda mq: mq.queue("jobs").redrive(ids=5), "ids", "5"),
    ("redrive, numbers", lambda mq: mq.queue("jobs").redrive(ids=[5]), "ids", "5"),
    ("ack, a text", lambda mq: mq.queue("jobs").ack("abc"), "messages", "'abc'"),
    ("ack, texts", lambda mq: mq.queue("jobs").ack(["abc"]), "messages", "'abc'"),
    ("release, a number", lambda mq: mq.queue("jobs").release(5), "messages", "5"),
    ("extend, numbers", lambda mq: mq.queue("jobs").extend([5]), "messages", "5"),
    ("send_many", lambda mq: mq.queue("jobs").send_many(5), "messages", "5"),
    ("upload", lambda mq: mq.queue("jobs").stage("job", 1, 1, 1).upload(5), "messages", "5"),
    ("commit_stages, numbers", lambda mq: mq.queue("jobs").commit_stages("job", 1, [0]), "stages", "0"),
    ("commit_stages, a text", lambda mq: mq.queue("jobs").commit_stages("job", 1, "ab"), "stages", "'ab'"),
    ("trends, a text", lambda mq: mq.trends(series="sent"), "series", "'sent'"),
    ("trends, numbers", lambda mq: mq.trends(series=[5]), "series", "5"),
    ("create_key, a text", lambda mq: mq.create_key("x", "send"), "allow", "'send'"),
    ("create_key, a number", lambda mq: mq.create_key("x", 5), "allow", "5"),
    ("history, since", lambda mq: mq.history(since="x"), "since", "'x'"),
    ("history, id", lambda mq: mq.history(id=5), "id", "5"),
    ("history, event", lambda mq: mq.history(event=5), "event", "5"),
    ("peek, after", lambda mq: mq.queue("jobs").peek(after=5), "after", "5"),
    ("peek, find", lambda mq: mq.queue("jobs").peek(find=5), "find", "5"),
    ("whoami", lambda mq: mq.whoami(5), "queue", "5"),
    ("backup", lambda mq: mq.backup(5), "path", "5"),
    ("perform", lambda mq: mq.perform("X"), "call", "'X'"),
]


def test_an_argument_of_the_wrong_type_is_refused_with_its_name_and_value(opener: Opener, place: str) -> None:
    mq = opener(place)
    mq.queue("jobs").send(1)
    for name, call, field, value in WRONG_ARGUMENTS:
        with case(name):
            with pytest.raises(miniq.InvalidRequest) as caught:
                call(mq)
            assert caught.value.field == field
            assert value in caught.value.text
    assert mq.queue("jobs").info().counts.total == 1
    for id in (5, None):
        with pytest.raises(miniq.MiniQError, match="id: "):
            mq.queue("jobs").get(id)
        with pytest.raises(miniq.MiniQError, match="id: "):
            mq.queue("jobs").remove(id)
    at = datetime(2026, 1, 1, tzinfo=UTC)
    assert mq.history(since=at.isoformat()) == mq.history(since=at)  # as text, it is a moment on every wire
