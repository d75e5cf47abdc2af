"""Runs a broker as a server: options → store → broker → HTTP and ZeroMQ, and an orderly shutdown.

On SIGTERM or SIGINT the server stops accepting connections, lets long polls return, finishes requests in progress,
flushes and closes the store; one that is still starting is cancelled. If the store fails, the process ends with exit
code 1. On SIGHUP, and when its files change, the server reloads its certificate.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import ipaddress
import logging
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn
from msgspec import Struct

from miniq.broker import Broker
from miniq.errors import InvalidRequest
from miniq.options import Options
from miniq.server.busy_poll import BusyPoll
from miniq.server.http.acceptor import Acceptor
from miniq.server.http.app import HttpApp
from miniq.server.http.fast_lane import FastLane
from miniq.server.http.guard import Guard
from miniq.server.http.load import Load
from miniq.server.memory import map_large
from miniq.server.tls import Certificate, ignore_hangup, reload_on_hangup
from miniq.server.tracing import ServerTracer
from miniq.server.zmq import Endpoints
from miniq.store import open_store, shown
from miniq.tracing import exporting_provider

log = logging.getLogger("miniq.server")
KEEP_ALIVE = 75
GRACE = 20
MOST_FILES = 65536


class Ready(Struct, frozen=True):
    """The addresses of a running broker."""

    http: str
    zmq: str | None
    """The command server; None if ZeroMQ is off."""
    store: str
    durability: str

    @property
    def line(self) -> str:
        """The line that programs which start a broker wait for."""
        addresses = self.http if self.zmq is None else f"{self.http} {self.zmq}"
        return f"miniq ready: {addresses} store={self.store} durability={self.durability}"


def run(options: Options, announce: Callable[[Ready], None]) -> int:
    """Run a broker until it is stopped, and return the exit code. `announce` is called when it is ready."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    stop = _StopAtStart()
    _allow_connections()
    map_large()
    os.umask(0o077)  # the files of the store and of backups are for this user only
    ignore_hangup()

    def started(ready: Ready) -> None:
        stop.ignore()
        announce(ready)

    try:
        with asyncio.Runner(loop_factory=factory) as runner:
            return runner.run(stop.cancelling(serve(options, started)))
    except asyncio.CancelledError:
        return 0
    finally:
        ignore_hangup()


class _StopAtStart:
    """Handlers of SIGINT and SIGTERM, from before there is an event loop until the HTTP server has its own. They cancel
    the task, which then ends where it waits: a KeyboardInterrupt could end it within a write, and closing the store
    would wait for that forever. Afterwards they ignore the signals: the HTTP server restores them for the last
    writes."""

    def __init__(self) -> None:
        self._cancel: Callable[[], object] | None = None
        self._was_signalled = False
        self._is_ignored = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._on_signal)

    async def cancelling(self, serving: Coroutine[None, None, int]) -> int:
        """Await `serving`; a signal cancels it, also one that came before."""
        task = asyncio.create_task(serving)
        loop = asyncio.get_running_loop()
        self._cancel = partial(loop.call_soon_threadsafe, task.cancel)
        if self._was_signalled:
            task.cancel()
        try:
            return await task
        finally:
            self.ignore()

    def ignore(self) -> None:
        self._is_ignored = True

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._was_signalled = True
        if self._cancel is not None and not self._is_ignored:
            self._cancel()


async def serve(options: Options, announce: Callable[[Ready], None]) -> int:
    """`run` within an event loop."""
    certificate = Certificate.of(options)
    reload_on_hangup(certificate)
    async with Broker(open_store(options.store, options), options) as broker:
        if broker.keys.open and not is_loopback(options.host):
            advice = (
                "a store in memory can have none before it starts: use --store rocksdb:DIR and create a key in it"
                if options.store == "memory:"
                else f"make one with `miniq keys create NAME --allow '*' --store {options.store}`"
            )
            raise InvalidRequest(
                f"host: {options.host} can be reached from other machines, and there is no API key; {advice}, or use "
                "127.0.0.1",
                field="host",
            )
        if not broker.keys.open and not broker.keys.list():
            log.warning(
                "all API keys were revoked, so every call is refused; stop the broker if its store is a folder, and "
                "create a key with `miniq keys create NAME --allow '*' --store %s`",
                shown(options.store),
            )
        broker.background.spawn(broker.trends.run())
        if certificate is not None:
            broker.background.spawn(certificate.watch())
        if options.tracing:
            broker.tracer = ServerTracer(exporting_provider())
        with bind(options.host, options.port) as listener:
            busy_poll = BusyPoll(options.busy_poll)
            endpoints = Endpoints(broker, options, busy_poll) if options.zmq else None
            scheme = "http" if certificate is None else "https"
            host, port = listener.getsockname()[:2]
            http = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
            zmq = None if endpoints is None else await endpoints.open()
            durability = "none" if options.store.startswith("memory:") else options.durability
            ready = Ready(http, zmq, shown(options.store), durability)

            config = _config(broker, options, busy_poll, certificate)
            server = _Server(config, broker, endpoints, partial(announce, ready))
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                while not serving.done():
                    await asyncio.wait([serving], timeout=1)
                    if broker.store.failure() is not None:  # a failed store stays failed: restart the process
                        server.should_exit = True
                await serving
            finally:
                serving.cancel()
                await asyncio.wait([serving])
                if endpoints is not None:
                    await endpoints.close(0)
        if broker.tracer is not None:
            await asyncio.to_thread(broker.tracer.close)
        failure = broker.store.failure()
        if failure is not None:
            log.critical("the store has failed: %s", failure)
            return 1
        return 0


_ADVICE = {
    errno.EADDRINUSE: (
        "stop the program that uses it, or choose another port with --port or MINIQ_PORT (0 for any free one)",
        "port",
    ),
    errno.EACCES: ("choose a port from 1024 on with --port or MINIQ_PORT", "port"),
    errno.EADDRNOTAVAIL: ("name an address of this machine with --host", "host"),
}
"""Advice for errors of `bind`, and the option it is about."""


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; `InvalidRequest` if the address cannot be used."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidRequest(f"host: {host!r} is not an address of this machine: {error}", field="host") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        reason, number = (error.strerror, error.errno) if isinstance(error, OSError) else (str(error), None)
        advice, field = _ADVICE.get(number or 0, ("choose another one with --port", "port"))
        raise InvalidRequest(f"{field}: cannot listen on {host}:{port}: {reason}; {advice}", field=field) from None
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def _allow_connections() -> None:
    """Raise the soft limit of open files, of which every connection takes one."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        wanted = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _config(
    broker: Broker, options: Options, busy_poll: BusyPoll, certificate: Certificate | None = None
) -> uvicorn.Config:
    guard = Guard(broker.keys, options.allowed_hosts)
    config = uvicorn.Config(
        HttpApp(broker, options.limits.request_bytes, guard).asgi,
        http=cast(Any, partial(FastLane, broker, options.limits, Load(options), guard, busy_poll, {})),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
    )
    if certificate is not None:
        config.load()
        config.ssl = certificate.context
    return config


class _Server(uvicorn.Server):
    """uvicorn, which announces when it is ready and shuts the broker down in an orderly way."""

    def __init__(
        self, config: uvicorn.Config, broker: Broker, endpoints: Endpoints | None, announce: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._broker = broker
        self._endpoints = endpoints
        self._announce = announce

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if sockets and not isinstance(asyncio.get_running_loop(), asyncio.BaseEventLoop):  # which accepts all that wait
            protocol = Acceptor(sockets[0], self.config.http_protocol_class)
            self.config.http_protocol_class = cast(Any, protocol)
        await super().startup(sockets)
        if not self.should_exit:
            gc.collect()
            gc.freeze()  # all objects up to here stay alive; spare later collections from traversing them
            self._announce()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to shut down. uvicorn would raise the signal again when it has stopped, and so kill the process before
        the store is closed."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._broker.begin_shutdown()
        ends = [super().shutdown(sockets)]
        if self._endpoints is not None:
            ends.append(self._endpoints.close(GRACE))
        await asyncio.gather(*ends)
