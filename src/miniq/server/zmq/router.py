"""One ROUTER socket in the event loop: frames in, a call for each request, exactly one reply out.

The socket's file descriptor only signals that something may have changed, and signals it once, so after every read or
send the socket is polled again. Sending to a client that has disconnected or does not read fails at once; its messages
are given back, and nothing is kept for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import zmq
from msgspec import UNSET, Raw
from zmq import Again, Frame, MessageTracker, ZMQError

from miniq.api import codec, shapes
from miniq.api.codec import Format
from miniq.broker import Broker
from miniq.broker.keyring import Secret
from miniq.errors import BadRequest, Closed, InvalidRequest, TooLarge
from miniq.message import PlainDrafts
from miniq.server.busy_poll import BusyPoll
from miniq.server.operations import Operation, Request, authorise, fault, give_back, run, start
from miniq.server.streams import Streamed
from miniq.server.zmq.commands import (
    CANCEL,
    LONGEST,
    Invocation,
    check_no_payload,
    format_of,
    is_send,
    read_command,
    read_head,
    refusal,
    resolve,
)

FRAMES = 16
"""Maximum number of frames of a request, envelope included."""
ENVELOPE = 4096
"""Maximum size of an envelope in bytes."""
AT_ONCE = 256
"""Requests read before yielding to the event loop."""
IN_FLIGHT = 1000
"""Maximum number of requests of one client that wait for their replies."""
HELD = 4
"""Reading pauses while the requests in progress hold this many times the maximum request size."""
WAITING_REQUESTS = 8
WAITING_REPLIES = 1000
"""Messages that the library queues per client in each direction."""
LARGE = 64 * 1024
"""Replies from this size on are sent without a copy, and tracked until they have left."""
UNREAD = 64 * 1024 * 1024
"""Maximum size of large replies that one client may leave unread, in bytes."""
HEARTBEAT = 10_000
LOST = 30_000
"""Milliseconds between heartbeats, and without one until a client counts as lost."""

POLLS = ("receive", "claim", "result")
"""Calls that may wait long, and whose result is useless without the client."""
_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_IN = int(zmq.POLLIN)
_EVENT = struct.Struct("=hi")


class _Client:
    """The other end of a connection."""

    __slots__ = ("identity", "is_connected", "key", "pending", "unread")

    def __init__(self, identity: bytes, key: Secret | None, is_connected: bool) -> None:
        self.identity = identity
        self.is_connected = is_connected
        """False once it has disconnected; its last requests may be read after that."""
        self.key = key
        """The CURVE key that it authenticated with."""
        self.pending: set[_Pending] = set()
        """Its requests that wait for a reply."""
        self.unread: list[tuple[MessageTracker, int]] = []
        """Large replies that have not left yet, with their sizes."""


class _Incoming(NamedTuple):
    """A request as read from the socket."""

    identity: bytes
    sender: _Client | Frame
    """The client; if it is not known yet, a frame to identify it by."""
    frames: list[bytes]
    """The first `FRAMES` frames."""
    size: int
    total: int
    """The number of all frames."""


class _Pending:
    """A request in progress."""

    __slots__ = ("began", "cancelled", "client", "envelope", "format", "invocation", "size", "task")

    def __init__(self, client: _Client, envelope: list[bytes], format: Format, size: int) -> None:
        self.client = client
        self.envelope = envelope
        self.format = format
        self.size = size
        self.began = perf_counter()
        self.invocation: Invocation
        self.task: asyncio.Task[Any]
        self.cancelled = False
        """Whether it was cancelled by its client, and has its reply."""

    @property
    def operation(self) -> Operation:
        assert self.invocation.operation is not None  # noqa: S101  requests for an endpoint are never pending
        return self.invocation.operation


class Router:
    """A bound socket. An endpoint has a default command and some allowed operations; the command server has all
    operations, and can open the endpoints."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        broker: Broker,
        max_request: int,
        busy_poll: BusyPoll,
        *,
        default_command: str | None = None,
        allowed_operations: frozenset[str] | None = None,
        open_endpoint: Callable[[str], shapes.AddressReply] | None = None,
    ) -> None:
        self._broker = broker
        self._max_request = max_request
        self._busy_poll = busy_poll
        self._default_command = default_command
        self._allowed_operations = allowed_operations
        self._open_endpoint = open_endpoint
        self._loop = asyncio.get_running_loop()
        self._clients: dict[bytes, _Client] = {}
        self._by_fd: dict[int, _Client] = {}
        self._connected: set[int] = set()
        """File descriptors of all connections."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._held = 0
        """Bytes of the requests in progress, long polls excepted."""
        self._coalesced = 0
        """Requests handed to the intake; they have no task of their own."""
        self._all_sent: asyncio.Future[None] | None = None
        """Awaited by `close`."""
        self._poll_scheduled = False
        self._open = False
        self._context = context
        self.socket = socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.router_mandatory = True
        socket.maxmsgsize = 2 * max_request  # beyond, the connection is cut; up to it, the request is refused
        socket.rcvhwm = WAITING_REQUESTS
        socket.sndhwm = WAITING_REPLIES
        socket.backlog = 2048
        socket.heartbeat_ivl = HEARTBEAT
        socket.heartbeat_timeout = LOST
        socket.tcp_keepalive = 1

    def bind(self, host: str, port: int) -> int:
        """Listen and start reading; return the port, a free one for 0. Raises `ZMQError`."""
        socket = self.socket
        if ":" in host:
            socket.ipv6 = True
            host = f"[{host}]"
        socket.bind(f"tcp://{host}:{port or '*'}")
        bound = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        address = f"inproc://events-{bound}"
        socket.monitor(address, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._events = self._context.socket(zmq.PAIR)
        self._events.rcvhwm = 0  # unlimited: the library would block on a full queue
        self._events.connect(address)
        self._open = True
        self._loop.add_reader(self._events.fileno(), self._poll, True)
        self._loop.add_reader(socket.fileno(), self._poll, False)
        self._poll_soon()
        return bound

    async def close(self, grace: float, linger: float) -> None:
        """Stop reading, finish requests in progress, and flush replies."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self.socket.fileno())
            self._loop.remove_reader(self._events.fileno())
            deadline = self._loop.time() + grace
            if self._tasks:
                await asyncio.wait(self._tasks, timeout=grace)
            if self._coalesced:
                self._all_sent = self._loop.create_future()
                await asyncio.wait({self._all_sent}, timeout=max(0.0, deadline - self._loop.time()))
            for task in self._tasks:
                task.cancel()
            self.socket.disable_monitor()
            self._events.close(0)
        self.socket.close(int(linger * 1000))

    # Reading

    def _poll_soon(self) -> None:
        """Poll the socket in the next turn of the loop."""
        if not self._poll_scheduled:
            self._poll_scheduled = True
            self._loop.call_soon(self._poll_again)

    def _poll_again(self) -> None:
        self._poll_scheduled = False
        self._poll(True)

    def _poll(self, has_events: bool) -> None:
        """Read requests, then connects and disconnects, then answer. The order matters: the requests read may be the
        last ones of a client that has disconnected, and a new connection may reuse the file descriptor of an old one.
        Sends of known clients are answered at once: they count even if the client has disconnected."""
        if not self._open:
            return
        waiting: list[_Incoming] = []
        limit = HELD * self._max_request
        size = 0
        for _ in range(AT_ONCE):
            if self._held + size >= limit:
                break
            if size >= self._max_request:  # large requests are answered one by one
                self._poll_soon()
                break
            request = self._read()
            if request is None:
                break
            if not waiting and isinstance(request.sender, _Client) and is_send(request.frames[-1]):
                self._receive(request)
            else:
                waiting.append(request)
                size += request.size
        else:
            self._poll_soon()
        if waiting or has_events:
            self._read_events()
            for request in waiting:
                self._receive(request)
        if self._held < limit <= self._held + size:
            self._poll_soon()  # reading paused because of long polls or refused requests, which hold no bytes

    def _read(self) -> _Incoming | None:
        """The next request, None if there is none."""
        receive = self.socket.recv
        try:
            frame = receive(_NOW, copy=False)
        except Again:
            return None
        identity = frame.bytes
        sender: _Client | Frame | None = self._clients.get(identity)
        frames: list[bytes] = []
        size = count = 0
        while frame.more:
            frame = receive(_NOW, copy=False)
            sender = sender or frame
            part = frame.bytes
            size += len(part)
            count += 1
            if count <= FRAMES:
                frames.append(part)
        return _Incoming(identity, sender or frame, frames, size, count)

    def _read_events(self) -> None:
        """Note which clients have connected and disconnected."""
        events = self._events
        while int(events.getsockopt(zmq.EVENTS)) & _IN:  # cheaper than an exception when there is none
            event, fd = _EVENT.unpack(events.recv(_NOW))
            while events.getsockopt(zmq.RCVMORE):
                events.recv(_NOW)
            if event == zmq.EVENT_ACCEPTED:
                self._connected.add(fd)
            else:
                self._connected.discard(fd)
                self._forget(fd)

    def _forget(self, fd: int) -> None:
        """A client has disconnected: cancel its long polls. Its sends and acks continue."""
        client = self._by_fd.pop(fd, None)
        if client is not None:
            client.is_connected = False
            self._clients.pop(client.identity, None)
            for pending in client.pending:
                if pending.operation.name in POLLS:
                    pending.task.cancel()

    def _add_client(self, identity: bytes, frame: Frame) -> _Client:
        """The client that sent a frame; it was unknown when the frame was read."""
        client = self._clients.get(identity)
        if client is not None:
            return client
        fd, key = -1, None
        with contextlib.suppress(ZMQError):  # a peer that speaks ZMTP 1.0 has no metadata
            fd = int(frame.get(zmq.SRCFD))
        with contextlib.suppress(ZMQError):  # without CURVE there is no such property
            key = self._broker.keys.curve_identity(str(frame.get("User-Id")))
        client = _Client(identity, key, fd in self._connected)
        if client.is_connected:
            self._forget(fd)  # a client whose disconnect was missed
            self._clients[identity] = self._by_fd[fd] = client
        return client

    # Calls

    def _receive(self, request: _Incoming) -> None:
        """Start to answer a request."""
        identity, sender, frames, size, count = request
        client = sender if isinstance(sender, _Client) else self._add_client(identity, sender)
        self._busy_poll.asked(client)
        if count > FRAMES or size - len(frames[-1]) > ENVELOPE:
            end = frames.index(b"") + 1 if b"" in frames else 0
            if sum(map(len, frames[:end])) > ENVELOPE:
                end = 0  # an oversized envelope is not returned: only bodies of unread replies are counted
            text = f"request: {count} frames, {size} bytes; at most {FRAMES} frames, and {ENVELOPE} bytes of envelope"
            self._refuse(_Pending(client, frames[:end], "json", size), TooLarge(text, field="request"))
            return
        body = frames.pop()
        pending = _Pending(client, frames, format_of(body), size)
        try:
            self._start(pending, body)
        except Exception as error:
            self._refuse(pending, error)

    def _start(self, pending: _Pending, body: bytes) -> None:
        broker, client = self._broker, pending.client
        if len(body) > self._max_request:
            raise TooLarge(f"request: {len(body)} bytes; at most {self._max_request}", field="request")
        if not body:
            raise InvalidRequest('request: empty; send {"type": ..., "payload": {...}}', field="request")
        default = self._default_command
        if default is not None or not broker.keys.open or len(body) > LONGEST:
            head = read_head(body, pending.format)
            if not broker.keys.open:
                broker.keys.identify(client.key if head.api_key is None else head.api_key)
            if head.type is not UNSET:
                default = None
        command = read_command(body, pending.format, default)
        secret: Secret | None = client.key if command.api_key is None else command.api_key
        if command.type == CANCEL:
            check_no_payload(command, pending.format)
            self._reply(pending, shapes.CancelReply(self._cancel(pending)))
            return
        if len(client.pending) >= IN_FLIGHT:
            text = f"request: {IN_FLIGHT} requests of this connection wait for their replies; read some first"
            raise BadRequest(text, field="request")
        operation, request, _, endpoint = invocation = resolve(command, pending.format, self._allowed_operations)
        if operation is None:
            assert endpoint is not None and self._open_endpoint is not None  # noqa: S101, PT018
            self._reply(pending, self._open_endpoint(endpoint))
            return
        pending.invocation = invocation
        request.secret = secret
        authorise(broker, operation, request)
        if operation.name not in POLLS:
            self._held += pending.size
        elif not client.is_connected:
            return
        client.pending.add(pending)
        if self._coalesce(pending, request):
            return
        task = start(self._loop, self._run(pending, operation, request), eager=broker.eager)
        if task is not None:
            pending.task = task
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    def _coalesce(self, pending: _Pending, request: Request) -> bool:
        """Hand a lone plain message to the intake; False if the request is anything else."""
        body = request.body
        if type(body) is not PlainDrafts or len(body.bodies) != 1:
            return False
        queue = request.path["queue"]
        plain, call, secret = body.bodies[0], request.call, request.secret
        if not self._broker.intake.add(queue, body.content_type, plain, call, secret, pending, self._sent):
            return False
        self._coalesced += 1
        return True

    def _cancel(self, cancel: _Pending) -> int:
        """Cancel the waiting receives with the same envelope; each is answered with no messages. A receive that
        already has messages is answered with them."""
        count = 0
        for pending in cancel.client.pending:
            if pending.envelope != cancel.envelope or pending.operation.name != "receive" or pending.cancelled:
                continue
            if pending.task.cancel():
                pending.cancelled = True
                count += 1
                self._reply(pending, shapes.MessagesReply([]))
        return count

    # Replies

    async def _run(self, pending: _Pending, operation: Operation, request: Request) -> None:
        """Make the call and answer at once, so that large replies do not pile up."""
        broker = self._broker
        try:
            reply = await run(broker, operation, request)
            if isinstance(reply, Streamed):
                reply = Raw(b"".join([piece async for piece in reply.pieces]))
        except asyncio.CancelledError:
            if not pending.cancelled:
                self._refuse(pending, Closed("the broker is closing"))
        except Exception as error:
            self._refuse(pending, error)
        else:
            broker.metrics.call("zmq", operation.name, request.path.get("queue", ""), perf_counter() - pending.began)
            shape = pending.invocation.shape
            if not self._reply(pending, reply if shape is None else shape(reply)) and operation.name == "receive":
                give_back(broker, request.path["queue"], reply)
        finally:
            pending.client.pending.discard(pending)
            if operation.name not in POLLS:
                self._free(pending.size)

    def _sent(self, batch: list[_Pending], answers: list[list[str]], error: Exception | None) -> None:
        """Answer the requests of one batch of the intake: its messages are on disk, or could not be sent."""
        try:
            if error is not None:
                for pending in batch:
                    self._refuse(pending, error)
            else:
                latency = self._broker.metrics.latency("zmq", "send", batch[0].invocation.request.path["queue"])
                for pending, ids in zip(batch, answers, strict=True):
                    self._reply(pending, shapes.SentReply(ids))
                    latency.add(perf_counter() - pending.began)
        finally:
            for pending in batch:
                pending.client.pending.discard(pending)
                self._free(pending.size)
            self._coalesced -= len(batch)
            if not self._coalesced and self._all_sent is not None:
                self._all_sent.set_result(None)

    def _free(self, size: int) -> None:
        """A request is answered: continue reading if that was paused."""
        limit = HELD * self._max_request
        if self._held >= limit > self._held - size:
            self._poll_soon()
        self._held -= size

    def _reply(self, pending: _Pending, data: Any) -> bool:
        return self._send(pending, codec.encode(shapes.CommandReply(True, data), pending.format))

    def _refuse(self, pending: _Pending, error: Exception) -> None:
        shown = fault("a request", error)
        self._broker.metrics.errors["zmq", shown.code] += 1
        self._send(pending, refusal(shown, pending.format))

    def _send(self, pending: _Pending, body: bytes) -> bool:
        """Send a reply; False if the client has disconnected or does not read its replies."""
        socket, client = self.socket, pending.client
        if len(body) >= LARGE and not self._has_room(client):
            return False
        try:
            socket.send(client.identity, _MORE)
            for frame in pending.envelope:
                socket.send(frame, _MORE)
            if len(body) < LARGE:
                socket.send(body, _NOW)
            else:
                tracker = socket.send(body, _NOW, copy=False, track=True)
                client.unread.append((tracker, len(body)))
        except ZMQError:
            return False
        finally:
            self._poll_soon()
        self._busy_poll.answered(client)
        return True

    def _has_room(self, client: _Client) -> bool:
        client.unread = [(tracker, size) for tracker, size in client.unread if not tracker.done]
        return sum(size for _, size in client.unread) < UNREAD
