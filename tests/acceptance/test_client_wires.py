"""What a client of a server promises over HTTP and ZeroMQ alike: URLs and options, bodies, connections, calls that
are given up, keys."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import miniq
from miniq.api.operations import AckById
from miniq.client._sync import pool
from miniq.store.embedded.backup import restore
from tests.acceptance.client_wires import HTTP, Proxy, Wire
from tests.acceptance.faces import Opener
from tests.kit import case, wait_for
from tests.serving import Served, serving

# URLs and options


WRONG_URLS = [
    ("", "no host"),
    ("/v1", "no host"),
    ("a b", "not a host name"),
    ("a b/", "not a host name"),
    ("h:0", "0 is not a port"),
    ("h:99999", "ort"),
    ("h:x", "ort"),
    ("[::1", "IPv6"),
    ("me:secret@h", "give the key as api_key"),
    ("h:5557?q=1", "a query"),
    ("h/?q=1", "a query"),
    ("h/#x", "a fragment"),
]


def test_a_url_that_is_wrong_is_told_with_what_is_wrong(opener: Opener, wire: Wire) -> None:
    for bad, text in WRONG_URLS:
        url = f"{wire.scheme}://{bad}"
        with case(url):
            with pytest.raises(miniq.InvalidRequest) as caught:
                opener(url)
            assert caught.value.field == "url"
            assert repr(url.replace(":secret@", ":***@")) in caught.value.text
            assert text in caught.value.text
            assert f"use {wire.scheme}://HOST:PORT" in caught.value.text


WRONG_OPTIONS: list[tuple[dict[str, Any], str]] = [
    ({"durability": "fsync"}, "durability"),
    ({"timeout": "long"}, "timeout"),
    ({"timeout": 0}, "timeout"),
    ({"timeout": float("nan")}, "timeout"),
    ({"timeout": 1e10}, "timeout"),
    ({"retry": -1}, "retry"),
    ({"retry": float("inf")}, "retry"),
    ({"api_key": "a b"}, "api_key"),
    ({"api_key": "a\r\nx: y"}, "api_key"),
    ({"api_key": 5}, "api_key"),
    ({"api_key": b"mq_hidden"}, "api_key"),
    ({"ca": "x.pem"}, "ca"),
]


def test_a_wrong_option_is_named(opener: Opener, wire: Wire) -> None:
    for options, field in WRONG_OPTIONS:
        with case(options):
            with pytest.raises(miniq.InvalidRequest) as caught:
                opener(wire.nobody, **options)
            assert caught.value.field == field
            assert caught.value.text.startswith(f"{field}: ")
            assert "hidden" not in caught.value.text


def test_a_host_name_is_looked_up_and_each_of_its_addresses_tried(opener: Opener, wire: Wire, server_url: str) -> None:
    names = [info.name for info in opener(server_url.replace("127.0.0.1", "localhost")).queues()]
    assert names == ["default"]
    for away in ("no.such.host.invalid:5557", "[::1]:9"):
        with pytest.raises(miniq.StoreUnavailable) as caught:
            opener(f"{wire.scheme}://{away}", retry=0).queues()
        assert caught.value.text.startswith(f"{wire.scheme}://{away} cannot be reached: ")


def test_connecting_asks_nothing_and_importing_brings_nothing(opener: Opener, wire: Wire) -> None:
    opener(wire.nobody)
    drivers = ("httptools", "zmq", "miniq.client.http", "miniq.client.zmq", "miniq.server")
    script = f"import sys, miniq; print([m for m in {drivers} if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


# What travels

LARGE = 2**20


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("grün €😀\u2028\x00", None),
        ({"größe": [1.5, -0.0, 10**18, None, True, '\\"/\n']}, None),
        ("x" * (LARGE - 2), None),
        (bytes(range(256)) * (LARGE // 256), None),
        (os.urandom(1000), "image/png"),
        (os.urandom(LARGE), None),
        (b"", None),
        ("", "text/plain"),
        ("ünïcödé\r\n", "text/markdown"),
        (b"\xff\xfe", "text/plain; charset=utf-16"),
        (b"gr\xfcn", "text/plain; charset=latin-1"),
        (b'{"a":  1.50}', "application/json"),
        (b"[1,\n2]", "application/vnd.x+json; v=1"),
    ],
)
def test_a_body_comes_back_to_the_byte(opener: Opener, server_url: str, body: Any, content_type: str | None) -> None:
    q = opener(server_url).queue("jobs")
    one = q.send(body, content_type=content_type)
    many = q.send_many([miniq.draft(body, content_type=content_type), "beside it"])
    data = body if isinstance(body, bytes) else body.encode() if content_type else None
    for m in (*q.receive(max=2), q.get(one), q.get(many[0]), *list(q.peek())[:2]):
        assert m.data == (data if data is not None else miniq.draft(body).body)
        assert content_type is not None or m.body == body
    assert q.edit(many[1], body=body, content_type=content_type).data == m.data


def test_history_has_bodies_where_they_are_kept(opener: Opener, server_url: str) -> None:
    mq = opener(server_url)
    q = mq.queue("kept")
    q.configure(history="full")
    begin = mq.history(limit=1).last
    q.send({"a": 1})
    q.send(b"\xff")
    q.send("text", content_type="text/plain")
    page = mq.history(after=begin, queue="kept")
    assert [record.event.body for record in page.records] == [b'{"a":1}', b"\xff", b"text"]
    assert [record.offset for record in page.records] == [begin + 1, begin + 2, begin + 3]


BENT: list[tuple[Callable[[Any], Any], str]] = [
    (lambda q: q.send(1, key=b"bytes"), "key"),
    (lambda q: q.send(1, delay=float("nan")), "delay"),
    (lambda q: q.send(1, ttl=float("inf")), "ttl"),
    (lambda q: q.send(1, headers={"a": 1}), "headers"),
    (lambda q: q.send(1, headers={"a": "\ud800"}), "headers"),
    (lambda q: q.send(1, priority=object()), "priority"),
    (lambda q: q.send(1, priority=10**30), "priority"),
    (lambda q: q.send(1, priority="high"), "priority"),
    (lambda q: q.send_many([1, miniq.draft(2, group=object())]), "messages[1].group"),
    (lambda q: q.send_many([1, miniq.draft(2, key="\ud800")]), "messages[1].key"),
    (lambda q: q.receive(visibility_timeout=float("inf")), "visibility_timeout"),
    (lambda q: q.receive(wait=float("nan")), "wait"),
    (lambda q: q.receive(consumer=b"me"), "consumer"),
    (lambda q: q.receive(max="many"), "max"),
    (lambda q: q.configure(max_receives=float("nan")), "max_receives"),
    (lambda q: q.configure(dead_letter_queue=b"bytes"), "dead_letter_queue"),
    (lambda q: q.configure(retention=object()), "retention"),
    (lambda q: q.redrive(ids=[1]), "ids"),
    (lambda q: q.redrive(rate=float("inf")), "rate"),
    (lambda q: q.peek(limit=2.5), "limit"),
    (lambda q: q.get("a/b"), "id"),
    (lambda q: q.get(""), "id"),
    (lambda q: q.get(5), "id"),
    (lambda q: q.get("\ud800"), "id"),
]


def test_what_json_would_bend_is_refused_and_named(opener: Opener, server_url: str) -> None:
    q = opener(server_url).queue("jobs")
    q.configure()
    before = q.info().settings
    for number, (call, field) in enumerate(BENT):
        with case(number, field):
            with pytest.raises((miniq.InvalidRequest, miniq.NotFound)) as caught:
                call(q)
            assert caught.value.field == field
            assert (q.info().counts.total, q.info().settings) == (0, before)


def test_a_number_that_json_lacks_is_named_for_what_it_is(opener: Opener, server_url: str) -> None:
    q = opener(server_url).queue("jobs")
    with pytest.raises(miniq.InvalidRequest, match="rate: nan is not a number of messages per second"):
        q.configure(rate=float("nan"))
    with pytest.raises(miniq.InvalidRequest, match="delay: nan is not a number of seconds"):
        q.configure(delay=float("nan"))


def test_a_request_that_is_too_large_is_refused_as_such(opener: Opener, server_url: str) -> None:
    q = opener(server_url, retry=0).queue("jobs")
    for _ in range(5):
        with pytest.raises(miniq.TooLarge):
            q.send_many(["x" * 1_000_000] * 18)
    assert q.receive() == []


def test_an_ack_without_a_receipt_is_for_the_embedded_form_alone(server_url: str) -> None:
    with miniq.connect(server_url) as mq, pytest.raises(miniq.InvalidRequest, match="receipt"):
        mq.perform(AckById("jobs", "x"))


def test_a_backup_is_written_on_the_server(opener: Opener, server_url: str, tmp_path: Path) -> None:
    mq = opener(server_url)
    mq.queue("jobs").send(1)
    mq.backup(tmp_path / "copy")
    restore(str(tmp_path / "copy"), str(tmp_path / "restored"))
    assert opener(tmp_path / "restored").queue("jobs").receive()[0].body == 1


# Connections


def test_calls_one_after_the_other_share_a_connection(opener: Opener, proxy: Proxy) -> None:
    mq = opener(proxy.url)
    for n in range(20):
        mq.queue("jobs").send(n)
        mq.queue("jobs").receive()[0].ack()
        with pytest.raises(miniq.MessageNotFound):
            mq.queue("jobs").get("x")
    assert proxy.accepted == 1
    mq.close()
    wait_for(lambda: not proxy.open)


def test_many_threads_use_as_many_connections_and_no_more(proxy: Proxy) -> None:
    with miniq.connect(proxy.url) as mq:
        q = mq.queue("jobs")
        meet = threading.Barrier(8)

        def work() -> None:
            meet.wait()
            for n in range(25):
                q.send(n)
                assert q.ack(q.receive(max=3)) in (["done"], ["done"] * 2, ["done"] * 3, [])

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert proxy.accepted <= 8
        while q.ack(q.receive(max=100)):
            pass
        assert q.info().counts.total == 0
    wait_for(lambda: not proxy.open)


def test_connections_that_nobody_uses_are_dropped(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.2)
    with miniq.connect(proxy.url) as mq:
        mq.queues()
        time.sleep(0.3)
        mq.queues()
        assert proxy.accepted == 2
        wait_for(lambda: len(proxy.open) == 1)


def test_a_connection_is_not_old_because_its_last_call_took_long(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.2)
    with miniq.connect(proxy.url) as mq:
        assert mq.queue("jobs").receive(wait=0.5) == []
        mq.queues()
        assert proxy.accepted == 1


def test_a_client_that_is_let_go_of_closes_its_connections(proxy: Proxy) -> None:
    mq = miniq.connect(proxy.url)
    mq.queues()
    del mq
    gc.collect()
    wait_for(lambda: not proxy.open)


def test_a_forked_child_has_connections_of_its_own(wire: Wire, server_url: str) -> None:
    script = """
import miniq, os, sys
mq = miniq.connect(sys.argv[1])
q = mq.queue("jobs")
q.send("before")
child = os.fork()
for n in range(100):
    m = q.get(q.send(n))
    assert m.body == n
if not child:
    mq.close()
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(q.info().counts.total)
"""
    # ZeroMQ has threads, and later Pythons warn of forking beside any.
    flags = ["-X", "dev", "-W", "error", *([] if wire == HTTP else ["-W", "ignore::DeprecationWarning"])]
    ended = subprocess.run(
        [sys.executable, *flags, "-c", script, server_url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("201\n", "")


def test_a_long_poll_may_take_longer_than_the_timeout(opener: Opener, server_url: str) -> None:
    begin = time.monotonic()
    assert opener(server_url, timeout=0.4).queue("jobs").receive(wait=1) == []
    assert time.monotonic() - begin > 0.9


def test_a_broker_that_does_not_answer_is_not_waited_for_for_ever(opener: Opener, server: Served, proxy: Proxy) -> None:
    q = opener(proxy.url, timeout=0.5, retry=5).queue("jobs")
    q.configure()
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(miniq.StoreUnavailable, match=r"did not reply within 0.5 s"):
            q.send(1)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert q.info().counts.total <= 1


# Calls that are given up


def test_a_cancelled_long_poll_leaves_no_lease(server_url: str) -> None:
    """However the cancellation meets the message that is just being handed out."""

    async def main() -> None:
        async with miniq.connect_async(server_url) as mq:
            q = mq.queue("jobs")
            for n in range(60):
                poll = asyncio.create_task(q.receive(wait=30))
                await asyncio.sleep(0.005)
                sent = asyncio.create_task(q.send(n))
                await asyncio.sleep(n / 60 * 0.006)
                poll.cancel()
                await asyncio.wait({poll, sent})
                got = [] if poll.cancelled() else poll.result()
                got += await q.receive(wait=5) if not got else []
                assert [m.body for m in got] == [n]
                await got[0].ack()

    asyncio.run(main())


def test_closing_lets_long_polls_return(server_url: str) -> None:
    mq = miniq.connect(server_url)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(mq.queue("jobs").receive(wait=50)))
    thread.start()
    time.sleep(0.3)  # let it get into the broker; the test holds either way
    mq.close()
    thread.join(30)
    assert got == [[]]
    with pytest.raises(miniq.Closed):
        mq.queues()


def test_closing_lets_long_polls_of_other_tasks_return_and_other_calls_finish(server_url: str) -> None:
    async def main() -> None:
        mq = await miniq.connect_async(server_url)
        q = mq.queue("jobs")
        polls = [asyncio.create_task(mq.queue("other").receive(wait=50)) for _ in range(5)]
        await asyncio.sleep(0.2)
        send = asyncio.create_task(q.send(1))
        await asyncio.sleep(0)
        async with asyncio.timeout(30):  # sooner than their wait is over
            await mq.close()
            assert await asyncio.gather(*polls) == [[]] * 5
            assert await send
        with pytest.raises(miniq.Closed):
            await q.receive()

    asyncio.run(main())


@pytest.mark.timeout(40, func_only=True)  # sooner than the attempts would end
def test_closing_ends_attempts_to_reach_a_server_that_is_away(wire: Wire) -> None:
    mq = miniq.connect(wire.nobody, retry=60)
    threading.Timer(0.3, mq.close).start()
    with pytest.raises(miniq.Closed):
        mq.queues()


def test_a_client_or_queue_for_another_process_is_refused_with_what_to_pass(opener: Opener, wire: Wire) -> None:
    mq = opener(wire.nobody)
    for thing in (mq, mq.queue("jobs")):
        thing = getattr(thing, "_target", thing)
        with pytest.raises(TypeError, match=r"cannot be passed to another process; pass its URL, and connect there"):
            pickle.dumps(thing)


# Keys


def test_a_key_opens_what_it_allows_and_nothing_else(
    opener: Opener, wire: Wire, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(f"rocksdb:{tmp_path / 'data'}") as served:
        url = wire.of(served)
        assert [info.name for info in opener(url).queues()] == ["default"]
        key = make_key(served.url, ["send:jobs", "receive:jobs"])
        for options in ({}, {"api_key": "mq_000000000000_wrong"}):
            with pytest.raises(miniq.Unauthorized):
                opener(url, **options).queue("jobs").send(1)
        mq = opener(url, api_key=key)
        mq.queue("jobs").send(1)
        with pytest.raises(miniq.Forbidden, match="does not allow send on queue 'other'"):
            mq.queue("other").send(1)
        with pytest.raises(miniq.Forbidden):
            mq.backup(tmp_path / "copy")
        monkeypatch.setenv("MINIQ_API_KEY", key)
        assert opener(url).queue("jobs").receive()[0].ack() is True
        with pytest.raises(miniq.Unauthorized):
            opener(url, api_key="other").queue("jobs").receive()


def test_a_client_that_may_manage_but_not_read_gets_no_counts_and_no_contents(opener: Opener, wire: Wire) -> None:
    with serving("memory:") as served:
        id = opener(wire.of(served)).queue("jobs").send({"secret": 1}, key="k")
        manager = opener(wire.of(served), api_key=make_key(served.url, ["manage:jobs"])).queue("jobs")
        changed = manager.configure(delay=3)
        assert (changed.settings.delay, changed.counts) == (3, None)
        edited = manager.edit(id, priority=4)
        assert (edited.id, edited.priority, edited.key, edited.data) == (id, 4, None, b"")
        with pytest.raises(miniq.Forbidden, match=rf"body: of message '{id}' is not shown to a key without `read`"):
            edited.body  # noqa: B018
        with pytest.raises(miniq.Forbidden, match="does not allow send on queue 'victim'"):
            manager.configure(dead_letter_queue="victim")
        with pytest.raises(miniq.Forbidden):
            manager.redrive(to="victim")


@pytest.mark.parametrize(("opener", "wire"), [("sync", "http"), ("async", "zmq")], indirect=True)
def test_a_worker_needs_only_the_right_to_receive(opener: Opener, wire: Wire) -> None:
    """It keeps its leases for as long as the queue says, and when its key is revoked, it ends with that."""
    with serving("memory:") as served:
        owner = miniq.connect(served.url, api_key=make_key(served.url, ["*"]))
        owner.queue("jobs").configure(visibility_timeout=2)
        owner.queue("jobs").send_many(["long", "last"])
        key = owner.create_key("worker", ["receive:jobs"])
        worker = opener(wire.of(served), api_key=key.secret).queue("jobs")
        seen: list[Any] = []

        def work(message: Any) -> None:
            if message.body == "long":
                time.sleep(3)
                others = owner.queue("jobs").receive(10)
                seen.append((message.receives, [other.body for other in others]))
                owner.queue("jobs").release(others)
            else:
                owner.revoke_key(key.id)

        deadline = time.monotonic() + 20
        with pytest.raises(miniq.Unauthorized, match="unknown or was revoked"):
            worker.consume(work, pass_message=True, wait=1, stop=lambda: time.monotonic() > deadline)
        owner.close()
        assert seen == [(1, ["last"])]


def make_key(url: str, allow: list[str]) -> str:
    body = json.dumps({"name": "test", "allow": allow}).encode()
    request = urllib.request.Request(f"{url}/v1/keys", body, {"content-type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
        secret: str = json.load(reply)["secret"]
        return secret
