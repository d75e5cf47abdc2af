"""The three ZeroMQ sockets of a broker: the command server, and the producer and consumer endpoints.

An endpoint with a fixed port is opened at start. One on any free port (0) is opened when a client first asks the
command server for its address, which no client can know before.
"""

from __future__ import annotations

import asyncio
import logging
import socket

import zmq
from zmq.auth.asyncio import AsyncioAuthenticator

from miniq.api import shapes
from miniq.broker import Broker
from miniq.broker.keyring import CurvePair
from miniq.errors import InvalidRequest
from miniq.options import Options
from miniq.server.busy_poll import BusyPoll
from miniq.server.zmq.curve import guard, require
from miniq.server.zmq.router import Router

log = logging.getLogger("miniq.zmq")
LINGER = 2.0
"""Seconds to flush pending replies at shutdown."""

_DEFAULT_COMMAND = {"producer": "PRODUCE_MSG", "consumer": "CONSUME"}
_ALLOWED_OPERATIONS = {
    "producer": frozenset({"send"}),
    "consumer": frozenset({"receive", "ack", "remove", "release", "extend"}),
}


class Doors:
    """The sockets: `await doors.open()`, and `await doors.close()` before the broker closes."""

    def __init__(self, broker: Broker, options: Options, busy_poll: BusyPoll) -> None:
        self._broker = broker
        self._busy_poll = busy_poll
        self._options = options
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._authenticator: AsyncioAuthenticator | None = None
        self._pair: CurvePair | None = None
        self._routers: dict[str, Router] = {}
        self._ports: dict[str, int] = {}

    async def open(self) -> str:
        """Listen, and return the address of the command server. If a port is taken, the error names its option."""
        options = self._options
        if options.curve:
            self._pair = await self._broker.keys.own_pair()
            self._authenticator = guard(self._context, self._broker.keys)
            log.info("ZeroMQ requires CURVE; the broker's public key is %s", self._pair.public)
        try:
            for name in ("command", "producer", "consumer"):
                if name == "command" or self._port(name):
                    self._open(name)
        except BaseException:
            await self.close(0)
            raise
        return self._address("command")

    async def close(self, grace: float) -> None:
        """Finish requests in progress, flush replies, and close. Idempotent."""
        await asyncio.gather(*(router.close(grace, LINGER) for router in self._routers.values()))
        self._routers.clear()
        if self._authenticator is not None:
            self._authenticator.stop()
            self._authenticator = None
        if not self._context.closed:
            await asyncio.to_thread(self._context.term)

    # Inside

    def _port(self, name: str) -> int:
        port: int = getattr(self._options, f"{name}_port")
        return port

    def _open(self, name: str) -> None:
        options = self._options
        opener = self._endpoint if name == "command" else None
        router = Router(
            self._context,
            self._broker,
            options.limits.request_bytes,
            self._busy_poll,
            usual=_DEFAULT_COMMAND.get(name),
            only=_ALLOWED_OPERATIONS.get(name),
            opener=opener,
        )
        self._routers[name] = router
        if self._pair is not None:
            require(router.socket, self._pair)
        field, port = f"{name}_port", self._port(name)
        try:
            self._ports[name] = router.bind(_numeric(options.host), port)
        except zmq.ZMQError as error:
            raise InvalidRequest(
                f"{field}: cannot listen on {options.host}:{port}: {error.strerror}; choose another port with "
                f"--{name}-port, or turn ZeroMQ off with --no-zmq",
                field=field,
            ) from None

    def _endpoint(self, name: str) -> shapes.AddressReply:
        """The address of an endpoint, opened now if it is not yet."""
        if name not in self._ports:
            self._open(name)
        return shapes.AddressReply(self._address(name), self._ports[name])

    def _address(self, name: str) -> str:
        host = self._options.host
        if host in ("0.0.0.0", "::"):  # noqa: S104  not an address to connect to
            host = socket.gethostname()
        return f"tcp://[{host}]:{self._ports[name]}" if ":" in host else f"tcp://{host}:{self._ports[name]}"


def _numeric(host: str) -> str:
    """Resolve a host name: the library binds to numeric addresses only."""
    try:
        return str(socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise InvalidRequest(f"host: {host!r} is not an address of this machine: {error}", field="host") from None
