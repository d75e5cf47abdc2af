"""What is the ZeroMQ client's own: its URL and key, its connections, servers that speak otherwise, CURVE."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq

import miniq
from miniq.client.zmq import aio, sync
from tests.acceptance.client_wires import ZMQ, Canned, Proxy, Wire
from tests.acceptance.faces import Opener
from tests.acceptance.shell import Shell
from tests.kit import wait_for
from tests.serving import Served, free_ports, serving


@pytest.fixture
def wire() -> Wire:
    return ZMQ


# URLs and options


def test_a_url_has_no_path(opener: Opener) -> None:
    with pytest.raises(miniq.InvalidRequest) as caught:
        opener("tcp://h:5557/path")
    assert caught.value.field == "url"
    assert "'tcp://h:5557/path', it has a path; use tcp://HOST:PORT" in caught.value.text


def test_without_a_port_it_is_that_of_the_command_server(opener: Opener) -> None:
    with pytest.raises(miniq.StoreUnavailable, match=r"tcp://no\.such\.host\.invalid:5557 cannot be reached"):
        opener("tcp://no.such.host.invalid", retry=0).queues()


@pytest.mark.parametrize("key", [5, "nowhere.key", __file__])
def test_a_file_that_is_no_key_is_told(opener: Opener, key: Any) -> None:
    with pytest.raises(miniq.InvalidRequest, match=r"^curve_key: ") as caught:
        opener(ZMQ.nobody, curve_key=key)
    assert caught.value.field == "curve_key"


# Connections


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


# Calls that are given up


def test_a_cancelled_long_poll_counts_nothing(server_url: str) -> None:
    async def main() -> None:
        async with miniq.connect_async(server_url) as mq:
            q = mq.queue("jobs")
            poll = asyncio.create_task(q.receive(wait=30))
            await asyncio.sleep(0.05)
            poll.cancel()
            await asyncio.wait({poll})
            await asyncio.sleep(0.05)
            await q.send(1)
            [m] = await q.receive(wait=5)
            assert m.receives == 1

    asyncio.run(main())


def test_an_answer_that_comes_too_late_leaves_no_lease() -> None:
    async def main(served: Served) -> None:
        async with miniq.connect_async(served.tcp, retry=0, timeout=0.5) as mq:
            q = mq.queue("jobs")
            await q.send("x")
            os.kill(served.process.pid, signal.SIGSTOP)
            try:
                with pytest.raises(miniq.StoreUnavailable, match="did not reply"):
                    await q.receive()
            finally:
                os.kill(served.process.pid, signal.SIGCONT)
            [m] = await q.receive(wait=5)
            assert m.body == "x"

    with serving("memory:") as served:
        asyncio.run(main(served))


@pytest.mark.parametrize("is_there", [False, True])
def test_a_call_that_is_cancelled_while_it_connects_leaves_nothing_behind(
    is_there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a failure for the next call nor a line that is long gone."""
    opened = asyncio.Event()
    open_line = aio.AsyncZmq._open

    async def watched(self: aio.AsyncZmq) -> Any:
        try:
            return await open_line(self)
        finally:
            opened.set()

    monkeypatch.setattr(aio.AsyncZmq, "_open", watched)
    [port] = free_ports(1)
    command_port = f"--command-port={port}"

    async def main() -> None:
        async with miniq.connect_async(f"tcp://127.0.0.1:{port}", retry=0, timeout=5) as mq:
            q = mq.queue("jobs")
            with serving("memory:", 0, command_port) if is_there else contextlib.nullcontext():
                call = asyncio.create_task(q.send(1))
                for _ in range(3):
                    await asyncio.sleep(0)
                call.cancel()
                await asyncio.wait({call})
                await opened.wait()
                if is_there:
                    await q.send(2)
            with serving("memory:", 0, command_port):
                await asyncio.sleep(0.1)
                await q.send(3)

    asyncio.run(main())


@pytest.mark.parametrize("messages", [[], [1, 2]])
def test_a_receive_that_is_interrupted_leaves_no_lease(
    server_url: str, monkeypatch: pytest.MonkeyPatch, messages: list[int]
) -> None:
    def interrupted(self: Any, exchange: Any, patience: float, reused: bool) -> Any:
        time.sleep(0.2)  # an answer would be there, but nobody has read it yet
        monkeypatch.undo()
        raise KeyboardInterrupt

    with miniq.connect(server_url) as mq:
        q = mq.queue("jobs")
        q.send_many(messages)
        q.configure()
        monkeypatch.setattr(sync._Connection, "_wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            q.receive(max=2, wait=30)
        assert [(m.body, m.receives) for m in q.receive(max=9)] == [(n, 1) for n in messages]
        q.send("new")
        assert [m.receives for m in q.receive(max=9)] == [1]


def test_a_line_that_is_lost_in_the_moment_it_is_used_is_made_anew(
    server_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask = aio._AsyncLine.ask

    def lost(self: Any, body: bytes, is_poll: bool, reused: bool) -> Any:
        monkeypatch.undo()
        self.drop()
        return ask(self, body, is_poll, reused)

    async def main() -> None:
        async with miniq.connect_async(server_url) as mq:
            monkeypatch.setattr(aio._AsyncLine, "ask", lost)
            assert await mq.queue("jobs").send(1)
            assert (await mq.queue("jobs").info()).counts.total == 1

    asyncio.run(main())


# Servers that are not ours


def test_a_connection_to_itself_is_no_broker_and_leaves_the_port_free(
    opener: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system gives a new connection the port that it is to reach, one time in some thousands; here every time."""
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    connect = zmq.Socket.connect

    def from_the_same_port(socket: Any, to: str) -> Any:
        return connect(socket, f"tcp://{address};{address}" if to == f"tcp://{address}" else to)

    monkeypatch.setattr(zmq.Socket, "connect", from_the_same_port)
    with opener(f"tcp://{address}", retry=0) as mq:
        with pytest.raises(miniq.StoreUnavailable, match="cannot be reached: no connection could be established"):
            mq.queues()
        monkeypatch.undo()

        def is_free() -> bool:
            with contextlib.suppress(OSError), socket.socket() as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as a broker does
                listener.bind(("127.0.0.1", port))
                return True
            return False

        wait_for(is_free)


def test_a_server_that_says_nothing_is_not_waited_for_for_ever(opener: Opener) -> None:
    with Canned() as mute:
        address = mute.url.replace("http", "tcp")
        with pytest.raises(miniq.StoreUnavailable, match=f"{address} cannot be reached: no connection within 0.3 s"):
            opener(address, timeout=0.3, retry=0).queues()


def test_the_port_of_http_is_told_from_one_of_zeromq(opener: Opener, server: Served) -> None:
    address = server.url.replace("http", "tcp")
    with pytest.raises(miniq.StoreUnavailable, match="perhaps it is not a ZeroMQ port"):
        opener(address, retry=0, timeout=3).queues()


# CURVE


@pytest.fixture(scope="module")
def curved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    """A server that speaks CURVE, and the folder with the key of a client."""
    folder = tmp_path_factory.mktemp("curve")
    away = Shell("http://127.0.0.1:1", folder)
    for name in ("worker", "gone"):
        away(
            "keys",
            "curve",
            "create",
            name,
            "--allow",
            "send:jobs",
            "--allow",
            "receive:jobs",
            "--store",
            "data",
            "--yes",
        )
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


def test_others_are_told_why_they_are_not(opener: Opener, curved: tuple[Served, Path], server: Served) -> None:
    served, folder = curved
    with Proxy(served.tcp) as proxy:
        with pytest.raises(miniq.Unauthorized, match="refused this key"):
            opener(proxy.url, curve_key=folder / "gone.key").queues()
        assert proxy.accepted == 1
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


def test_the_command_line_takes_the_key_from_the_environment(curved: tuple[Served, Path], tmp_path: Path) -> None:
    served, folder = curved
    miniq = Shell(served.tcp, tmp_path, MINIQ_CURVE_KEY=str(folder / "worker.key"))
    miniq("send", "jobs", '{"a": 1}')
    assert "does not allow" in miniq("purge", "jobs", "--yes", code=1).err
    assert "speaks CURVE; give a curve_key (or MINIQ_CURVE_KEY)" in Shell(served.tcp, tmp_path)("queues", code=1).err
    Shell(served.tcp, tmp_path)("send", "jobs", "2", "--curve-key", str(folder / "worker.key"))
    gone = Shell(served.tcp, tmp_path)("queues", "--curve-key", str(folder / "gone.key"), code=1)
    assert gone.err.endswith("refused this key; is it listed, or was it revoked?\n")
    assert "is for tcp://" in Shell(served.url, tmp_path)("queues", "--curve-key", "x.key", code=2).err
    assert len(miniq("receive", "jobs", "--max", "100", "--at-most-once", "--json").lines) == 2
