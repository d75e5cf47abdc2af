"""The three ZeroMQ sockets of a broker: the command server, and the producer and consumer endpoints.

An endpoint with a fixed port is opened at start. One on any free port (0) is opened when a client first asks the
command server for its address, which no client can know before.

With CURVE, only clients whose public key is registered can connect.
"""

from __future__ import annotations

import asyncio
import logging
import socket

import zmq
from zmq.auth.asyncio import AsyncioAuthenticator

from miniq.api import shapes
from miniq.broker import Broker
from miniq.broker.keyring import CurvePair, KeyRing
from miniq.errors import InvalidRequest
from miniq.options import Options
from miniq.server.busy_poll import BusyPoll
from miniq.server.zmq.router import Router

log = logging.getLogger("miniq.zmq")
LINGER = 2.0
"""Seconds to flush pending replies at shutdown."""

_DEFAULT_COMMAND = {"producer": "PRODUCE_MSG", "consumer": "CONSUME"}
_ALLOWED_OPERATIONS = {
    "producer": frozenset({"send"}),
    "consumer": frozenset({"receive", "ack", "remove", "release", "extend", "fail"}),
}


_DOMAIN = "miniq"


class _AllowList:
    """Credentials provider: the authenticator calls it during each handshake."""

    def __init__(self, keys: KeyRing) -> None:
        self._keys = keys

    def callback(self, domain: str, key: bytes) -> bool:
        return self._keys.curve_identity(key.decode("ascii")) is not None


class Endpoints:
    """The sockets: `await endpoints.open()`, and `await endpoints.close()` before the broker closes."""

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
            self._authenticator = AsyncioAuthenticator(self._context)
            self._authenticator.start()
            self._authenticator.configure_curve_callback(_DOMAIN, _AllowList(self._broker.keys))
            log.info("ZeroMQ requires CURVE; the broker's public key is %s", self._pair.public)
        try:
            for name in ("command", "producer", "consumer"):
                if name == "command" or getattr(options, f"{name}_port"):
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

    def _open(self, name: str) -> None:
        options = self._options
        self._routers[name] = router = Router(
            self._context,
            self._broker,
            options.limits.request_bytes,
            self._busy_poll,
            default_command=_DEFAULT_COMMAND.get(name),
            allowed_operations=_ALLOWED_OPERATIONS.get(name),
            open_endpoint=self._endpoint if name == "command" else None,
        )
        if self._pair is not None:
            router.socket.curve_server = True
            router.socket.curve_publickey = self._pair.public.encode()
            router.socket.curve_secretkey = self._pair.secret.encode()
            router.socket.zap_domain = _DOMAIN.encode()
        field = f"{name}_port"
        port: int = getattr(options, field)
        try:
            # The library binds to numeric addresses only. HTTP has resolved the same name before.
            address = socket.getaddrinfo(options.host, None, type=socket.SOCK_STREAM)[0][4][0]
            self._ports[name] = router.bind(str(address), port)
        except zmq.ZMQError as error:
            raise InvalidRequest(
                f"{field}: cannot listen on {options.host}:{port}: {error.strerror}; choose another port with "
                f"--{name}-port or MINIQ_{name.upper()}_PORT, or turn ZeroMQ off with --no-zmq",
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
