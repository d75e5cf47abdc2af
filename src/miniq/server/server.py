"""The composition root: options → store → broker → wires, and an orderly end.

On SIGTERM or SIGINT the server stops accepting, lets long polls return, finishes what it is answering, writes
everything out and closes the store. A store that has failed ends the process with exit code 1.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import ipaddress
import logging
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn

from miniq.broker import Broker
from miniq.errors import InvalidRequest
from miniq.options import Options
from miniq.server.busy_poll import BusyPoll
from miniq.server.http.app import HttpApp
from miniq.server.http.fast_lane import fast_lane
from miniq.server.http.guard import Guard
from miniq.server.tracing import ServerTracer
from miniq.server.zmq import Doors
from miniq.store import open_store, shown
from miniq.tracing import exporting_provider

log = logging.getLogger("miniq.server")
KEEP_ALIVE = 75
GRACE = 20
MOST_FILES = 65536


def run(options: Options, announce: Callable[[str], None]) -> int:
    """Run a broker until it is told to stop; the exit code. `announce` is given one line when it is ready."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    _allow_connections()
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(serve(options, announce))


async def serve(options: Options, announce: Callable[[str], None]) -> int:
    """The same within an event loop."""
    async with Broker(open_store(options.store, options), options) as broker:
        if broker.keys.open and not is_loopback(options.host):
            raise InvalidRequest(
                f"host: {options.host} can be reached by others, and there is no API key; make one with "
                f"`miniq keys create NAME --allow '*' --store {options.store}`, or use 127.0.0.1",
                field="host",
            )
        broker.trends.start()
        if options.tracing:
            broker.tracer = ServerTracer(exporting_provider())
        with bind(options.host, options.port) as listener:
            busy_poll = BusyPoll(options.busy_poll)
            doors = Doors(broker, options, busy_poll) if options.zmq else None
            server = _Server(_config(broker, options, busy_poll), broker, doors)
            scheme = "https" if options.tls_cert else "http"
            host, port = listener.getsockname()[:2]
            address = f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
            if doors is not None:
                address = f"{address} {await doors.open()}"
            server.line = f"miniq ready: {address} store={shown(options.store)} durability={options.durability}"
            server.announce = announce
            watch = asyncio.create_task(server.end_if_store_fails())
            try:
                await server.serve(sockets=[listener])
            finally:
                watch.cancel()
                if doors is not None:
                    await doors.close(0)
        if broker.tracer is not None:
            await asyncio.to_thread(broker.tracer.close)
        failure = broker.store.failure()
        if failure is not None:
            log.critical("the store has failed: %s", failure)
            return 1
        return 0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or a clear word on why not."""
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
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise InvalidRequest(f"port: cannot listen on {host}:{port}: {reason}", field="port") from None
    listener.listen(2048)
    listener.setblocking(False)
    return listener


def _allow_connections() -> None:
    """Each connection is an open file; take as many as this system lets us have without asking."""
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


def _config(broker: Broker, options: Options, busy_poll: BusyPoll) -> uvicorn.Config:
    most = options.limits.request_bytes
    guard = Guard(broker.keys, options.allowed_hosts)
    return uvicorn.Config(
        HttpApp(broker, most, guard).asgi,
        http=fast_lane(broker, most, guard, busy_poll),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=options.tls_cert,
        ssl_keyfile=options.tls_key,
    )


class _Server(uvicorn.Server):
    """uvicorn, with our word when it is ready and our order when it ends."""

    line = ""
    announce: Callable[[str], None] = staticmethod(lambda line: None)

    def __init__(self, config: uvicorn.Config, broker: Broker, doors: Doors | None) -> None:
        super().__init__(config)
        self._broker = broker
        self._doors = doors

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.should_exit:
            gc.collect()
            gc.freeze()  # what is there by now stays, and need not be looked at again and again
            self.announce(self.line)

    async def end_if_store_fails(self) -> None:
        """A store that has failed stays so: the process has to be started again."""
        while self._broker.store.failure() is None:  # noqa: ASYNC110  stores have no event for it
            await asyncio.sleep(1)
        self.should_exit = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to end. uvicorn would raise the signal again when it is through, and that would end the process
        before the store is closed."""
        super().handle_exit(sig, frame)
        self._captured_signals.clear()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._broker.begin_shutdown()
        ends = [super().shutdown(sockets)]
        if self._doors is not None:
            ends.append(self._doors.close(GRACE))
        await asyncio.gather(*ends)
