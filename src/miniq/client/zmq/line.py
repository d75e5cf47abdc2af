"""One connection to a broker: a DEALER socket, and the monitor socket that reports its state.

libzmq would reconnect silently, and calls on the lost connection would never be answered. So reconnecting is disabled:
a line that is lost stays lost, its calls fail, and the next attempt opens a new one.
"""

from __future__ import annotations

import errno
import ipaddress
import itertools
import os
import socket
import struct

import zmq

from miniq.client.exchange import Retryable, unreachable
from miniq.client.zmq.target import Target
from miniq.errors import InvalidRequest, MiniQError, StoreUnavailable, Unauthorized

HEARTBEAT = 10_000
LOST = 30_000
"""Milliseconds between heartbeats to a silent broker, and until it counts as lost."""
A_DAY = 86_400_000
HUNG_UP = 3
"""How often connecting is tried when the peer hangs up."""
GIVE_KEY = "give a curve_key (or MINIQ_CURVE_KEY)"
EVENTS = (
    zmq.EVENT_CONNECTED
    | zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
)
_NOW, _MORE, _IN = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE), int(zmq.POLLIN)
_EVENT = struct.Struct("=hi")
_numbers = itertools.count()
_inherited: list[Line] = []
_contexts: dict[int, zmq.Context[zmq.Socket[bytes]]] = {}


class HungUp(Retryable):
    """The peer closed the connection during the handshake. If CURVE is the cause, another attempt may say so: which
    event comes first is a race."""


def context() -> zmq.Context[zmq.Socket[bytes]]:
    """The library's threads, shared by all clients of a process; a forked child needs its own."""
    process = os.getpid()
    return _contexts.get(process) or _contexts.setdefault(process, zmq.Context())


def is_address(host: str) -> bool:
    """Whether a host is an IP address."""
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True


def is_own_end(descriptor: int) -> bool:
    """Whether a connection leads back to itself. The system may choose as the port of a new connection the one that it
    is to reach, if that is one of its dynamic ports and no broker listens there: then TCP connects both ends, requests
    come back as replies, and the broker cannot have its port again."""
    try:
        with socket.socket(fileno=os.dup(descriptor)) as connection:
            return bool(connection.getsockname() == connection.getpeername())
    except OSError:  # it is closed already
        return False


class Line:
    """A connection that is being established, up, or lost."""

    def __init__(self, target: Target, host: str) -> None:
        self._target = target
        self._process = os.getpid()
        self.up = False
        self.lost: Exception | None = None
        """Why it is lost: `Retryable`, or an error that is permanent."""
        self.socket = dealer = context().socket(zmq.DEALER)
        dealer.linger = 0
        dealer.reconnect_ivl = A_DAY  # with "never", libzmq would discard replies that arrived just before the end
        dealer.sndhwm = dealer.rcvhwm = 0  # unlimited: there are no more messages than pending calls
        timeout = max(1, min(int(target.timeout * 1000), 2**31 - 1))
        dealer.connect_timeout = timeout
        dealer.handshake_ivl = timeout
        dealer.heartbeat_ivl = HEARTBEAT
        dealer.heartbeat_timeout = LOST
        dealer.tcp_keepalive = 1
        if ":" in host:
            dealer.ipv6 = True
            host = f"[{host}]"
        if target.curve is not None:
            dealer.curve_publickey = target.curve.public.encode()
            dealer.curve_secretkey = target.curve.secret.encode()
            dealer.curve_serverkey = target.curve.server.encode()
        address = f"inproc://miniq-{next(_numbers)}"
        dealer.monitor(address, EVENTS)
        self.events = context().socket(zmq.PAIR)
        self.events.linger = 0
        self.events.connect(address)
        dealer.connect(f"tcp://{host}:{target.port}")

    def look(self) -> None:
        """Read the events of the connection."""
        events = self.events
        while int(events.getsockopt(zmq.EVENTS)) & _IN:  # cheaper than an exception
            event, value = _EVENT.unpack(events.recv(zmq.NOBLOCK))
            while events.getsockopt(zmq.RCVMORE):
                events.recv(zmq.NOBLOCK)
            if event == zmq.EVENT_CONNECTED:
                if is_own_end(value):
                    self.lost = self._why(event, value)
            elif event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self.up = self.lost is None
            elif self.lost is None:
                self.lost = self._why(event, value)

    def _why(self, event: int, value: int) -> Exception:
        target = self._target
        if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH:
            text = f"curve_key: {target.url} refused this key; is it listed, or was it revoked?"
            return Unauthorized(text, field="curve_key")
        if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL:
            wanted = f"speaks CURVE; {GIVE_KEY}" if target.curve is None else "does not speak CURVE; omit curve_key"
            return InvalidRequest(f"curve_key: {target.url} {wanted}", field="curve_key")
        if event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL and value != errno.EAGAIN:
            text = f"or it speaks CURVE; {GIVE_KEY}" if target.curve is None else "or it is not this key's broker"
            text = f"it hung up at once; perhaps it is not a ZeroMQ port, {text}"
            return HungUp(StoreUnavailable(f"{target.url} cannot be reached: {text}"))
        if self.up:
            return Retryable(StoreUnavailable(f"{target.url}: the connection broke"), heard=True)
        late = event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
        return unreachable(target.url, TimeoutError() if late else "no connection could be established", target.timeout)

    def send(self, name: bytes, body: bytes, reused: bool = False) -> None:
        send = self.socket.send
        try:
            send(b"", _MORE)
            send(name, _MORE)
            send(body, _NOW)
        except zmq.ZMQError:  # it was just lost
            error = StoreUnavailable(f"{self._target.url}: the connection broke before the call was sent")
            self.lost = Retryable(error, stale=reused)
            raise self.lost from None

    def receive(self) -> tuple[bytes, bytes]:
        """The name and the body of the next reply; raises `zmq.Again` if there is none."""
        receive = self.socket.recv
        frame = receive(_NOW, copy=False)
        frames = [frame.bytes]
        while frame.more:
            frame = receive(_NOW, copy=False)
            frames.append(frame.bytes)
        if len(frames) != 3:
            raise MiniQError(f"{self._target.url} replied in {len(frames)} frames, unlike a MiniQ broker")
        return frames[1], frames[2]

    def drop(self) -> None:
        if self._process != os.getpid():
            _inherited.append(self)  # the parent's, not to be closed here
        elif not self.socket.closed:
            self.socket.disable_monitor()
            self.events.close(0)
            self.socket.close(0)
