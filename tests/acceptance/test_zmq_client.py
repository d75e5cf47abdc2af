"""What is the ZeroMQ client's own: its URL and options, its connections, calls that are given up, keys and CURVE."""

from __future__ import annotations

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import miniq
from miniq.client import pool
from miniq.client.zmq import aio, sync
from tests.acceptance.client_wires import Canned, Proxy
from tests.acceptance.faces import Opener
from tests.acceptance.shell import Shell
from tests.acceptance.test_embedded_client import SPEC_EXAMPLE
from tests.acceptance.test_http_client import make_key
from tests.server import clear
from tests.serving import Served, serving


@pytest.fixture
def url(server: Served) -> str:
    """An empty broker behind ZeroMQ."""
    clear(server.url)
    return server.tcp


@pytest.fixture
def proxy(url: str) -> Iterator[Proxy]:
    with Proxy(url) as proxy:
        yield proxy


def test_the_example_of_the_specification_runs_over_zeromq(url: str) -> None:
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
        ("tcp://", "no host"),
        ("tcp://a b", "no host name"),
        ("tcp://h:0", "0 is no port"),
        ("tcp://h:99999", "ort"),
        ("tcp://me:secret@h", "give the key as api_key"),
        ("tcp://h:5557/path", "a path"),
        ("tcp://h:5557?q=1", "a query"),
    ],
)
def test_a_url_that_is_wrong_is_told_with_what_is_wrong(opener: Opener, bad: str, text: str) -> None:
    with pytest.raises(miniq.InvalidRequest) as caught:
        opener(bad)
    assert caught.value.field == "url"
    assert repr(bad) in caught.value.text
    assert text in caught.value.text
    assert "tcp://HOST:PORT" in caught.value.text


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"durability": "fsync"}, "durability"),
        ({"ca": "x.pem"}, "ca"),
        ({"timeout": 0}, "timeout"),
        ({"retry": -1}, "retry"),
        ({"api_key": "a b"}, "api_key"),
        ({"curve_key": 5}, "curve_key"),
        ({"curve_key": "nowhere.key"}, "curve_key"),
        ({"curve_key": __file__}, "curve_key"),
    ],
)
def test_a_wrong_option_is_named(opener: Opener, options: dict[str, Any], field: str) -> None:
    with pytest.raises(miniq.InvalidRequest) as caught:
        opener("tcp://127.0.0.1:1", **options)
    assert caught.value.field == field
    assert caught.value.text.startswith(f"{field}: ")


def test_a_host_name_is_looked_up_and_each_of_its_addresses_tried(opener: Opener, url: str) -> None:
    names = [info.name for info in opener(url.replace("127.0.0.1", "localhost")).queues()]
    assert names == ["default"]
    with pytest.raises(miniq.StoreUnavailable, match=r"tcp://no\.such\.host\.invalid:5557 cannot be reached"):
        opener("tcp://no.such.host.invalid", retry=0).queues()
    with pytest.raises(miniq.StoreUnavailable, match=r"tcp://\[::1\]:9 cannot be reached"):
        opener("tcp://[::1]:9", retry=0).queues()


def test_connecting_asks_nothing_and_importing_brings_nothing(opener: Opener) -> None:
    opener("tcp://127.0.0.1:1")
    script = "import sys, miniq; print([m for m in ('zmq', 'miniq.client.zmq', 'miniq.wire') if m in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ended.stdout == "[]\n"


# Connections


@pytest.mark.parametrize("body", ["x" * (2**20 - 2), os.urandom(2**20), b"", "grün €😀\u2028\x00"])
def test_a_body_comes_back_to_the_byte(opener: Opener, url: str, body: Any) -> None:
    q = opener(url).queue("jobs")
    one = q.send(body)
    q.send_many([body, "beside it"])
    assert [m.body for m in (*q.receive(max=2), q.get(one))] == [body] * 3


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
                assert set(q.ack(q.receive(max=3))) <= {"done"}

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert proxy.accepted <= 8
    wait_for(lambda: not proxy.open)


def test_all_tasks_share_one_connection(proxy: Proxy) -> None:
    async def main() -> None:
        async with miniq.connect_async(proxy.url) as mq:
            q = mq.queue("jobs")
            poll = asyncio.create_task(mq.queue("other").receive(wait=20))
            await asyncio.gather(*(q.send(n) for n in range(200)))
            assert sorted(m.body for m in await q.receive(max=500)) == list(range(200))
            await mq.queue("other").send("woken")
            assert [m.body for m in await poll] == ["woken"]
            assert proxy.accepted == 1

    asyncio.run(main())
    wait_for(lambda: not proxy.open)


def test_connections_that_nobody_uses_are_dropped(proxy: Proxy, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "IDLE", 0.2)
    with miniq.connect(proxy.url) as mq:
        mq.queues()
        time.sleep(0.3)
        mq.queues()
        assert proxy.accepted == 2
        wait_for(lambda: len(proxy.open) == 1)


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
mq.close()
"""
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore::DeprecationWarning", "-c", script, url],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ended.stdout, ended.stderr) == ("201\n", "")


def test_a_long_poll_may_take_longer_than_the_timeout(opener: Opener, url: str) -> None:
    begin = time.monotonic()
    assert opener(url, timeout=0.4).queue("jobs").receive(wait=1) == []
    assert time.monotonic() - begin > 0.9


# Calls that are given up


def test_a_cancelled_long_poll_leaves_no_lease_and_counts_nothing(url: str) -> None:
    """However the cancellation meets the message that is just being handed out."""

    async def main() -> None:
        async with miniq.connect_async(url) as mq:
            q = mq.queue("jobs")
            poll = asyncio.create_task(q.receive(wait=30))
            await asyncio.sleep(0.05)
            poll.cancel()
            await asyncio.wait({poll})
            await asyncio.sleep(0.05)
            await q.send("first")
            [m] = await q.receive(wait=5)
            assert m.receives == 1
            await m.ack()
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


@pytest.mark.parametrize("messages", [[], [1, 2]])
def test_a_receive_that_is_interrupted_leaves_no_lease(
    url: str, monkeypatch: pytest.MonkeyPatch, messages: list[int]
) -> None:
    def interrupted(self: Any, exchange: Any, patience: float, reused: bool) -> Any:
        time.sleep(0.2)  # an answer would be there, but nobody has read it yet
        monkeypatch.undo()
        raise KeyboardInterrupt

    with miniq.connect(url) as mq:
        q = mq.queue("jobs")
        q.send_many(messages)
        q.configure()
        monkeypatch.setattr(sync._Connection, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            q.receive(max=2, wait=30)
        assert [(m.body, m.receives) for m in q.receive(max=9)] == [(n, 2) for n in messages]
        q.send("new")
        assert [m.receives for m in q.receive(max=9)] == [1]


def test_closing_lets_long_polls_return(opener: Opener, url: str) -> None:
    mq = miniq.connect(url)
    got: list[Any] = []
    thread = threading.Thread(target=lambda: got.append(mq.queue("jobs").receive(wait=50)))
    thread.start()
    time.sleep(0.3)
    mq.close()
    thread.join(5)
    assert got == [[]]
    with pytest.raises(miniq.Closed):
        mq.queues()


def test_closing_lets_long_polls_of_other_tasks_return_and_other_calls_finish(url: str) -> None:
    async def main() -> None:
        mq = await miniq.connect_async(url)
        q = mq.queue("jobs")
        polls = [asyncio.create_task(mq.queue("other").receive(wait=50)) for _ in range(5)]
        await asyncio.sleep(0.2)
        send = asyncio.create_task(q.send(1))
        await asyncio.sleep(0)
        await mq.close()
        assert await asyncio.gather(*polls) == [[]] * 5
        assert await send
        with pytest.raises(miniq.Closed):
            await q.receive()

    begin = time.monotonic()
    asyncio.run(main())
    assert time.monotonic() - begin < 5


def test_closing_ends_attempts_to_reach_a_server_that_is_away() -> None:
    mq = miniq.connect("tcp://127.0.0.1:1", retry=60)
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


def test_a_line_that_is_lost_in_the_moment_it_is_used_is_made_anew(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ask = aio._AsyncLine.ask

    def lost(self: Any, body: bytes, is_poll: bool, reused: bool) -> Any:
        monkeypatch.undo()
        self.drop()
        return ask(self, body, is_poll, reused)

    async def main() -> None:
        async with miniq.connect_async(url) as mq:
            monkeypatch.setattr(aio._AsyncLine, "ask", lost)
            assert await mq.queue("jobs").send(1)
            assert (await mq.queue("jobs").info()).counts.total == 1

    asyncio.run(main())


# Servers that are not ours


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(opener: Opener) -> None:
    with Canned() as mute:
        address = mute.url.replace("http", "tcp")
        begin = time.monotonic()
        with pytest.raises(miniq.StoreUnavailable, match=f"{address} cannot be reached: no connection within 0.3 s"):
            opener(address, timeout=0.3, retry=0).queues()
        assert time.monotonic() - begin < 3


def test_a_broker_that_does_not_answer_is_not_waited_for_for_ever(opener: Opener, server: Served, proxy: Proxy) -> None:
    q = opener(proxy.url, timeout=0.5, retry=5).queue("jobs")
    q.configure()
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        with pytest.raises(miniq.StoreUnavailable, match=r"did not answer within 0.5 s"):
            q.send(1)
    finally:
        os.kill(server.process.pid, signal.SIGCONT)
    assert q.info().counts.total <= 1


def test_the_port_of_http_is_told_from_one_of_zeromq(opener: Opener, server: Served) -> None:
    address = server.url.replace("http", "tcp")
    with pytest.raises(miniq.StoreUnavailable, match="perhaps it is no ZeroMQ port"):
        opener(address, retry=0, timeout=3).queues()


# Keys


def test_a_key_opens_what_it_allows_and_nothing_else(
    opener: Opener, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(f"rocksdb:{tmp_path / 'data'}") as served:
        key = make_key(served.url, ["send:jobs", "receive:jobs"])
        for options in ({}, {"api_key": "mq_000000000000_wrong"}):
            with pytest.raises(miniq.Unauthorized):
                opener(served.tcp, **options).queue("jobs").send(1)
        mq = opener(served.tcp, api_key=key)
        mq.queue("jobs").send(1)
        with pytest.raises(miniq.Forbidden, match="does not allow send on queue 'other'"):
            mq.queue("other").send(1)
        monkeypatch.setenv("MINIQ_API_KEY", key)
        assert opener(served.tcp).queue("jobs").receive()[0].ack() is True


@pytest.fixture(scope="module")
def curved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A server that speaks CURVE, and the folder with the key of a client."""
    folder = tmp_path_factory.mktemp("curve")
    away = Shell("http://127.0.0.1:1", folder)
    for name in ("worker", "gone"):
        away("keys", "curve", "create", name, "--allow", "send:jobs", "--allow", "receive:jobs", "--store", "data")
    (gone,) = [key["id"] for key in away("keys", "curve", "list", "--json", "--store", "data").objects[1:]]
    away("keys", "curve", "revoke", gone, "--store", "data")
    with serving(f"rocksdb:{folder / 'data'}", 0, "--curve") as served:
        yield served, folder


def test_a_client_with_a_listed_key_is_let_in(
    opener: Opener, curved: tuple[Served, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    served, folder = curved
    q = opener(served.tcp, curve_key=folder / "worker.key").queue("jobs")
    q.send_many(["x" * 100_000] * 20)
    assert sum(len(m.body) for m in q.receive(max=20)) == 2_000_000
    assert q.receive(wait=0.2) == []
    with pytest.raises(miniq.Forbidden):
        q.purge()
    monkeypatch.setenv("MINIQ_CURVE_KEY", str(folder / "worker.key"))
    assert opener(served.tcp).queue("jobs").receive() == []


def test_others_are_told_at_once_why_they_are_not(opener: Opener, curved: tuple[Served, Path], server: Served) -> None:
    served, folder = curved
    begin = time.monotonic()
    with pytest.raises(miniq.Unauthorized, match="does not let this key in"):
        opener(served.tcp, curve_key=folder / "gone.key").queues()
    # Which side hangs up first is a matter of chance, and with it how sure the other can be of the reason.
    with pytest.raises(miniq.MiniQError, match="speaks CURVE; give a curve_key"):
        opener(served.tcp, retry=0).queues()
    with pytest.raises(miniq.MiniQError, match=r"does not speak CURVE; omit curve_key|not this key's broker"):
        opener(server.tcp, curve_key=folder / "worker.key", retry=0).queues()
    text = (folder / "worker.key").read_text()
    wrong = folder / "wrong.key"
    public = text.split('public = "')[1][:40]
    wrong.write_text(text.replace(text.split('server = "')[1][:40], public))
    with pytest.raises(miniq.StoreUnavailable, match="not this key's broker"):
        opener(served.tcp, curve_key=wrong, retry=0).queues()
    assert time.monotonic() - begin < 5


def test_the_command_line_takes_the_key_from_the_environment(curved: tuple[Served, Path], tmp_path: Path) -> None:
    served, folder = curved
    miniq = Shell(served.tcp, tmp_path, MINIQ_CURVE_KEY=str(folder / "worker.key"))
    miniq("send", "jobs", '{"a": 1}')
    assert "does not allow" in miniq("purge", "jobs", "--yes", code=1).err
    assert "speaks CURVE; give a curve_key (or MINIQ_CURVE_KEY)" in Shell(served.tcp, tmp_path)("queues", code=1).err
    Shell(served.tcp, tmp_path)("send", "jobs", "2", "--curve-key", str(folder / "worker.key"))
    assert "is for tcp://" in Shell(served.url, tmp_path)("queues", "--curve-key", "x.key", code=2).err
    assert len(miniq("receive", "jobs", "--max", "100", "--at-most-once", "--json").lines) == 2


def wait_for(true: Any, seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
