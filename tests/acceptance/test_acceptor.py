"""Many clients connect while the server is busy: they are accepted together, and all are served."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import uvloop

from miniq.broker import Broker
from miniq.options import Options
from miniq.server import server
from miniq.server.busy_poll import BusyPoll
from miniq.server.http.acceptor import AT_ONCE
from miniq.store import open_store
from tests.certificate import write_certificate
from tests.serving import serving

COUNT = 300
HEALTH = b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Broker, server._Server, int]]:
    """A server in this event loop, and its port."""
    async with Broker(open_store("memory:")) as broker:
        with server.bind("127.0.0.1", 0) as listener:
            config = server._config(broker, Options(), BusyPoll(0))
            started = asyncio.Event()
            made = server._Server(config, broker, None, started.set)
            task = asyncio.create_task(made.serve(sockets=[listener]))
            await started.wait()
            try:
                yield broker, made, listener.getsockname()[1]
            finally:
                made.should_exit = True
                await task


def connect(port: int, count: int, stack: ExitStack) -> list[socket.socket]:
    return [stack.enter_context(socket.create_connection(("127.0.0.1", port), 20)) for _ in range(count)]


def answer(connection: socket.socket) -> bytes:
    read = b""
    while not read.endswith(b"}") and (piece := connection.recv(4096)):
        read += piece
    return read


def test_connections_that_wait_are_accepted_in_a_few_turns_of_the_event_loop() -> None:
    async def main() -> None:
        async with running() as (_, made, port):
            with ExitStack() as stack:
                clients = connect(port, COUNT, stack)
                turns = 0
                while len(made.server_state.connections) < COUNT:
                    await asyncio.sleep(0)
                    turns += 1
                assert turns <= COUNT // AT_ONCE + 5
                for connection in made.server_state.connections:
                    accepted = connection.transport.get_extra_info("socket")  # type: ignore[union-attr]
                    assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                for client in clients:
                    client.sendall(HEALTH)
                for client in clients:
                    assert (await asyncio.to_thread(answer, client)).startswith(b"HTTP/1.1 200")
            async with asyncio.timeout(10):
                while made.server_state.connections:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_a_connection_that_is_opened_while_the_broker_closes_is_closed() -> None:
    async def main() -> None:
        async with running() as (broker, made, port):
            broker.begin_shutdown()
            with ExitStack() as stack:
                for client in connect(port, 3, stack):
                    assert await asyncio.to_thread(client.recv, 1) == b""
            assert not made.server_state.connections

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Connections wait while the process is stopped."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "TLS"])
def test_clients_that_leave_or_break_off_keep_no_other_from_being_served(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], tls: bool
) -> None:
    authority = write_certificate(tmp_path)
    context = ssl.create_default_context(cafile=str(authority))
    flags = ["--tls-cert", str(tmp_path / "cert.pem"), "--tls-key", str(tmp_path / "key.pem")] if tls else []
    with serving("memory:", 0, *flags) as served, ExitStack() as stack:
        with stopped(served.process.pid):
            clients = connect(served.port, COUNT, stack)
            for gone, talks_rubbish in zip(clients[::5], clients[1::5], strict=True):
                gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # it ends by a reset
                gone.close()
                talks_rubbish.sendall(b"\x00rubbish\r\n\r\n")
        for number, client in enumerate(clients):
            if number % 5 > 1:
                if tls:
                    client = stack.enter_context(context.wrap_socket(client, server_hostname="localhost"))
                client.sendall(HEALTH)
                assert answer(client).startswith(b"HTTP/1.1 200")
    assert "rror" not in capfd.readouterr().err
