"""What is the HTTP client's own: its URL and options, its connections, keys, TLS, and what travels how."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import miniq
from miniq.client import calls, pool
from miniq.client.http import aio, sync
from tests.acceptance.client_wires import Proxy
from tests.acceptance.faces import Opener
from tests.acceptance.test_embedded_client import SPEC_EXAMPLE
from tests.certificate import write_certificate
from tests.server import clear
from tests.serving import Served, serving


@pytest.fixture
def url(server: Served) -> str:
    """An empty broker behind HTTP."""
    clear(server.url)
    return server.url


@pytest.fixture
def proxy(url: str, server: Served) -> Iterator[Proxy]:
    with Proxy(server.url) as proxy:
        yield proxy


def test_the_example_of_the_specification_runs_on_a_server(url: str) -> None:
    done: list[Any] = []

    def work(body: Any) -> None:
        done.append(body)
        if len(done) == 1:
            names["q"].send("for the worker loop")
        else:
            os.kill(os.getpid(), signal.SIGINT)

    names: dict[str, Any] = {"work": work}
    exec(SPEC_EXAMPLE.replace("http://localhost:5000", url), names)  # noqa: S102
    assert done == [{"to": "a@b.c"}, "for the worker loop"]


# URLs and options


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        ("http://", "no host"),
        ("http:///v1", "no host"),
        ("http://a b/", "no host name"),
        ("http://h:0", "0 is no port"),
        ("http://h:99999", "ort"),
        ("http://h:x", "ort"),
        ("http://[::1", "IPv6"),
        ("http://me:secret@h", "give the key as api_key"),
        ("http://h/?q=1", "a query"),
        ("http://h/#x", "a fragment"),
    ],
)
def test_a_url_that_is_wrong_is_told_with_what_is_wrong(opener: Opener, bad: str, text: str) -> None:
    with pytest.raises(miniq.InvalidRequest) as caught:
        opener(bad)
    assert caught.value.field == "url"
    assert repr(bad) in caught.value.text
    assert text in caught.value.text


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"durability": "fsync"}, "durability"),
        ({"timeout": "long"}, "timeout"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"retry": -1}, "retry"),
        ({"retry": float("inf")}, "retry"),
        ({"api_key": "a b"}, "api_key"),
        ({"api_key": "a\r\nx: y"}, "api_key"),
        ({"api_key": 5}, "api_key"),
        ({"verify": False}, "verify"),
        ({"ca": "x.pem"}, "ca"),
    ],
)
def test_a_wrong_option_is_named(opener: Opener, options: dict[str, Any], field: str) -> None:
    with pytest.raises(miniq.InvalidRequest) as caught:
        opener("http://127.0.0.1:1", **options)
    assert caught.value.field == field
    assert caught.value.text.startswith(f"{field}: ")


def test_a_slash_at_the_end_and_capital_letters_do_no_harm(opener: Opener, url: str) -> None:
    assert [info.name for info in opener(url.replace("http", "HTTP") + "/").queues()] == ["default"]


def test_a_path_in_the_url_comes_before_that_of_every_call(opener: Opener, url: str) -> None:
    with pytest.raises(miniq.NoRoute, match="/miniq/v1/queues"):
        opener(url + "/miniq/").queues()


def test_connecting_asks_nothing_and_importing_brings_nothing(opener: Opener) -> None:
    opener("http://127.0.0.1:1")
    script = (
        "import sys, miniq; print([m for m in ('httptools', 'miniq.client.http', 'miniq.wire') if m in sys.modules])"
    )
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


# What travels how

LARGE = 2**20


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        ("grün €😀\u2028\x00", None),
        ({"größe": [1.5, -0.0, 10**18, None, True, '\\"/\n']}, None),
        ("x" * (LARGE - 2), None),
        (bytes(range(256)) * (LARGE // 256), None),
        (os.urandom(1000), "image/png"),
        (b"", None),
        ("", "text/plain"),
        ("ünïcödé\r\n", "text/markdown"),
        (b"\xff\xfe", "text/plain; charset=utf-16"),
        (b"gr\xfcn", "text/plain; charset=latin-1"),
        (b'{"a":  1.50}', "application/json"),
        (b"[1,\n2]", "application/vnd.x+json; v=1"),
    ],
)
def test_a_body_comes_back_to_the_byte(opener: Opener, url: str, body: Any, content_type: str | None) -> None:
    q = opener(url).queue("jobs")
    one = q.send(body, content_type=content_type)
    many = q.send_many([miniq.draft(body, content_type=content_type), "beside it"])
    data = body if isinstance(body, bytes) else body.encode() if content_type else None
    for m in (*q.receive(max=2), q.get(one), q.get(many[0]), *list(q.peek())[:2]):
        assert m.data == (data if data is not None else miniq.draft(body).body)
    assert q.edit(many[1], body=body, content_type=content_type).data == m.data


def test_bytes_travel_as_messagepack_and_json_as_it_is(opener: Opener, proxy: Proxy) -> None:
    q = opener(proxy.url).queue("jobs")
    q.send(b"\xff\x00")
    q.send_many([b"\xff\x01", b"\xff\x02"])
    q.send_many([b"\xff\x03", {"a": 1}])
    assert [b"content-type: application/msgpack" in request for request in proxy.asked] == [True, True, False]
    assert [m.body for m in q.receive(max=9)] == [b"\xff\x00", b"\xff\x01", b"\xff\x02", b"\xff\x03", {"a": 1}]


def test_history_has_bodies_where_they_are_kept(opener: Opener, url: str) -> None:
    mq = opener(url)
    q = mq.queue("kept")
    q.configure(history="full")
    begin = mq.history(limit=1).last
    q.send({"a": 1})
    q.send(b"\xff")
    q.send("text", content_type="text/plain")
    page = mq.history(after=begin, queue="kept")
    assert [record.event.body for record in page.records] == [b'{"a":1}', b"\xff", b"text"]
    assert [record.offset for record in page.records] == [begin + 1, begin + 2, begin + 3]


@pytest.mark.parametrize(
    ("call", "field"),
    [
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
    ],
)
def test_what_json_would_bend_is_refused_and_named(opener: Opener, url: str, call: Any, field: str) -> None:
    q = opener(url).queue("jobs")
    q.configure()
    before = q.info().settings
    with pytest.raises((miniq.InvalidRequest, miniq.NotFound)) as caught:
        call(q)
    assert caught.value.field == field
    assert (q.info().counts.total, q.info().settings) == (0, before)


@pytest.mark.parametrize("said", ["application/json", "application/msgpack"])
@pytest.mark.parametrize("heard", ["application/json", "application/msgpack"])
def test_an_edited_message_is_shown_in_the_format_asked_for(url: str, said: str, heard: str) -> None:
    with miniq.connect(url) as mq:
        id = mq.queue("jobs").send(1)
    change = msgspec.json.encode({"body": {"a": [1]}})
    if said.endswith("msgpack"):
        change = msgspec.msgpack.encode({"body": {"a": [1]}})
    request = urllib.request.Request(  # noqa: S310
        f"{url}/v1/queues/jobs/messages/{id}", change, {"content-type": said, "accept": heard}, method="PATCH"
    )
    with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
        read = msgspec.json.decode if heard.endswith("json") else msgspec.msgpack.decode
        assert read(reply.read())["body"] == {"a": [1]}


def test_a_request_that_is_too_large_is_refused_as_such(opener: Opener, url: str) -> None:
    q = opener(url, retry=0).queue("jobs")
    for _ in range(5):
        with pytest.raises(miniq.TooLarge):
            q.send_many(["x" * 1_000_000] * 18)
    assert q.receive() == []


def test_an_ack_without_a_receipt_is_for_the_embedded_form_alone(url: str) -> None:
    with miniq.connect(url) as mq, pytest.raises(miniq.InvalidRequest, match="receipt"):
        mq._transport.perform(calls.AckById("jobs", "x"))


def test_a_backup_is_written_on_the_server(opener: Opener, url: str, tmp_path: Path) -> None:
    mq = opener(url)
    mq.queue("jobs").send(1)
    mq.backup(tmp_path / "copy")
    assert opener(tmp_path / "copy").queue("jobs").receive()[0].body == 1


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


def test_many_tasks_use_as_many_connections_and_no_more(proxy: Proxy) -> None:
    async def main() -> None:
        async with miniq.connect_async(proxy.url) as mq:
            q = mq.queue("jobs")

            async def work(base: int) -> None:
                for n in range(10):
                    await q.send(base + n)

            await asyncio.gather(*(work(10 * k) for k in range(20)))
            assert proxy.accepted <= 20
            assert sorted(m.body for m in await q.receive(max=500)) == list(range(200))

    asyncio.run(main())
    wait_for(lambda: not proxy.open)


def test_connections_that_nobody_uses_are_dropped(
    opener: Opener, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (pool, aio):
        monkeypatch.setattr(module, "IDLE", 0.2)
    mq = opener(proxy.url)
    mq.queues()
    time.sleep(0.3)
    mq.queues()
    assert proxy.accepted == 2
    wait_for(lambda: len(proxy.open) == 1)


def test_a_long_poll_may_take_longer_than_the_timeout(opener: Opener, url: str) -> None:
    begin = time.monotonic()
    assert opener(url, timeout=0.4).queue("jobs").receive(wait=1) == []
    assert time.monotonic() - begin > 0.9


def test_a_client_that_is_let_go_of_closes_its_connections(proxy: Proxy) -> None:
    mq = miniq.connect(proxy.url)
    mq.queues()
    del mq
    gc.collect()
    wait_for(lambda: not proxy.open)


def test_a_forked_child_has_connections_of_its_own(url: str) -> None:
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
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", script, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("201\n", "")


# Calls that are given up


def test_a_cancelled_long_poll_leaves_no_lease(url: str) -> None:
    """However the cancellation meets the message that is just being handed out."""

    async def main() -> None:
        async with miniq.connect_async(url) as mq:
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

    begin = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begin < 20


def test_messages_that_come_while_a_receive_is_interrupted_are_given_back(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, exchange: Any, target: Any, reused: bool) -> Any:
        self.answer.begin()
        self._socket.sendall(exchange.head + exchange.body)
        time.sleep(0.2)  # the answer is there, but nobody has read it yet
        monkeypatch.undo()
        raise KeyboardInterrupt

    with miniq.connect(url) as mq:
        q = mq.queue("jobs")
        q.send_many([1, 2])
        monkeypatch.setattr(sync._Connection, "exchange", interrupted)
        with pytest.raises(KeyboardInterrupt):
            q.receive(max=2)
        assert [(m.body, m.receives) for m in q.receive(max=9)] == [(1, 2), (2, 2)]


def test_a_cancelled_call_closes_its_connection(proxy: Proxy) -> None:
    async def main() -> None:
        async with miniq.connect_async(proxy.url) as mq:
            poll = asyncio.create_task(mq.queue("jobs").receive(wait=30))
            await asyncio.to_thread(wait_for, lambda: proxy.asked)
            poll.cancel()
            await asyncio.wait({poll})
            assert poll.cancelled()
            await asyncio.to_thread(wait_for, lambda: not proxy.open)

    asyncio.run(main())


def test_closing_lets_long_polls_of_other_tasks_return(url: str) -> None:
    async def main() -> None:
        mq = await miniq.connect_async(url)
        polls = [asyncio.create_task(mq.queue("jobs").receive(wait=50)) for _ in range(5)]
        await asyncio.sleep(0.2)
        await mq.close()
        assert await asyncio.gather(*polls) == [[]] * 5
        with pytest.raises(miniq.Closed):
            await mq.queue("jobs").receive()

    begin = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begin < 5


def test_closing_ends_attempts_to_reach_a_server_that_is_away(opener: Opener) -> None:
    mq = miniq.connect("http://127.0.0.1:1", retry=60)
    threading.Timer(0.3, mq.close).start()
    begin = time.monotonic()
    with pytest.raises(miniq.Closed):
        mq.queues()
    assert time.monotonic() - begin < 5


def test_an_async_client_in_another_loop_is_told_so(url: str) -> None:
    async def connect() -> miniq.AsyncClient:
        return await miniq.connect_async(url)

    mq = asyncio.run(connect())
    with pytest.raises(miniq.InvalidRequest, match="another event loop"):
        asyncio.run(mq.queues())


# Keys and TLS


def test_a_key_opens_what_it_allows_and_nothing_else(
    opener: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(f"rocksdb:{tmp_path / 'data'}") as served:
        assert [info.name for info in opener(served.url).queues()] == ["default"]
        key = make_key(served.url, ["send:jobs", "receive:jobs"])
        for options in ({}, {"api_key": "mq_000000000000_wrong"}):
            with pytest.raises(miniq.Unauthorized):
                opener(served.url, **options).queue("jobs").send(1)
        mq = opener(served.url, api_key=key)
        mq.queue("jobs").send(1)
        with pytest.raises(miniq.Forbidden, match="does not allow send on queue 'other'"):
            mq.queue("other").send(1)
        with pytest.raises(miniq.Forbidden):
            mq.backup(tmp_path / "copy")
        monkeypatch.setenv("MINIQ_API_KEY", key)
        assert opener(served.url).queue("jobs").receive()[0].ack() is True
        with pytest.raises(miniq.Unauthorized):
            opener(served.url, api_key="other").queue("jobs").receive()


def make_key(url: str, allow: list[str]) -> str:
    body = json.dumps({"name": "test", "allow": allow}).encode()
    request = urllib.request.Request(f"{url}/v1/keys", body, {"content-type": "application/json"})  # noqa: S310
    with urllib.request.urlopen(request, timeout=10) as reply:  # noqa: S310
        secret: str = json.load(reply)["secret"]
        return secret


@pytest.fixture(scope="module")
def tls_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server with a certificate of its own for 127.0.0.1."""
    folder = tmp_path_factory.mktemp("tls")
    authority = write_certificate(folder)
    script = """
import sys
from miniq.options import Options
from miniq.server import run
options = Options(store="memory:", port=0, zmq=False, tls_cert="cert.pem", tls_key="key.pem")
sys.exit(run(options, lambda line: print(line, flush=True)))
"""
    with subprocess.Popen([sys.executable, "-c", script], cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().split()[2]
        yield url, authority
        process.terminate()
        assert process.wait(30) == 0


def test_a_server_with_a_certificate_is_trusted_by_its_authority(opener: Opener, tls_server: tuple[str, Path]) -> None:
    url, cert = tls_server
    assert url.startswith("https://")
    q = opener(url, ca=cert).queue("jobs")
    q.send_many(["x" * 100_000] * 20)
    assert sum(len(m.body) for m in q.receive(max=20)) == 2_000_000
    assert q.receive(wait=0.2) == []
    assert opener(url, verify=False).queue("jobs").purge() == 20


def test_a_certificate_that_is_not_trusted_is_told_at_once(opener: Opener, tls_server: tuple[str, Path]) -> None:
    url, _ = tls_server
    begin = time.monotonic()
    with pytest.raises(miniq.InvalidRequest, match="is not trusted") as caught:
        opener(url).queues()
    assert caught.value.field == "ca"
    assert time.monotonic() - begin < 5


def test_a_wrong_scheme_is_told_with_the_address(opener: Opener, tls_server: tuple[str, Path], url: str) -> None:
    for wrong in (tls_server[0].replace("https", "http"), url.replace("http", "https")):
        with pytest.raises(miniq.MiniQError) as caught:
            opener(wrong, retry=0, timeout=3).queues()
        assert wrong in caught.value.text


def test_a_file_that_holds_no_certificates_is_told(opener: Opener, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").write_text("nothing")
    for file in (tmp_path / "empty.pem", tmp_path / "missing.pem"):
        with pytest.raises(miniq.InvalidRequest) as caught:
            opener("https://127.0.0.1:1", ca=file)
        assert caught.value.field == "ca"


def test_closing_lets_long_polls_over_tls_return(opener: Opener, tls_server: tuple[str, Path]) -> None:
    url, cert = tls_server
    mq = miniq.connect(url, ca=str(cert))
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(mq.queue("jobs").receive(wait=50)))
    thread.start()
    time.sleep(0.3)
    mq.close()
    thread.join(5)
    assert got == [[]]


def test_an_ipv6_address_is_spoken_to(opener: Opener) -> None:
    with pytest.raises(miniq.StoreUnavailable, match=r"http://\[::1\]:9 cannot be reached"):
        opener("http://[::1]:9", retry=0).queues()


def wait_for(true: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
