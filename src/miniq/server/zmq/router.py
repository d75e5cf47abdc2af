"""One ROUTER socket in the event loop: frames in, a call for each request, exactly one reply out.

The socket's file descriptor only says that something may have changed, and says it once: whoever reads or sends
looks again afterwards. Sending to one who is gone, or who reads nothing, fails at once; its messages are given back
and nothing is kept for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable
from time import perf_counter
from typing import Any, NamedTuple

import zmq
from msgspec import Raw
from zmq import Again, Frame, MessageTracker, ZMQError

from miniq.api import codec, shapes
from miniq.api.codec import Format
from miniq.broker import Broker
from miniq.broker.intake import begin
from miniq.broker.keyring import Secret
from miniq.errors import BadRequest, Closed, InvalidRequest, MiniQError, TooLarge
from miniq.message import Lease, PlainDrafts
from miniq.server.busy_poll import BusyPoll
from miniq.server.operations import Operation, Request, authorise, fault, run
from miniq.server.streams import Streamed
from miniq.server.zmq.commands import CANCEL, Ask, format_of, is_send, read_command, refusal, understand

FRAMES = 16
"""Most frames of a request, with those of its envelope."""
ENVELOPE = 4096
"""Most bytes of an envelope."""
AT_ONCE = 256
"""Most requests that are read before others have their turn in the event loop."""
IN_FLIGHT = 1000
"""Most requests of one client that wait for their reply."""
HELD = 4
"""Requests are read only while those being answered have less than so many times the largest request's bytes."""
WAITING_REQUESTS = 64
WAITING_REPLIES = 1000
"""What the library keeps for one client that we, or it, did not read yet; in messages."""
LARGE = 64 * 1024
"""A reply from this size on is sent without a copy, and counted until it has left."""
UNREAD = 64 * 1024 * 1024
"""Most bytes of large replies that one client may leave unread."""
HEARTBEAT = 10_000
LOST = 30_000
"""Milliseconds: how often a silent client is asked whether it is there, and when it is not."""

POLLS = ("receive", "claim")
"""Calls that may wait long, and that are for nobody but the one who asked."""
_NOW = int(zmq.NOBLOCK)
_MORE = int(zmq.NOBLOCK | zmq.SNDMORE)
_IN = int(zmq.POLLIN)
_EVENT = struct.Struct("=hi")

Opener = Callable[[str], shapes.AddressReply]


class _Client:
    """Who is at the other end of a connection."""

    __slots__ = ("asked", "identity", "is_there", "key", "unread")

    def __init__(self, identity: bytes, key: Secret | None, is_there: bool) -> None:
        self.identity = identity
        self.is_there = is_there
        """False once it has left; what it said last may be read after that."""
        self.key = key
        """The CURVE key that it has proven to hold."""
        self.asked: set[_Asked] = set()
        """Its requests that wait for a reply."""
        self.unread: list[tuple[MessageTracker, int]] = []
        """Large replies that have not left yet, with their bytes."""


class _Read(NamedTuple):
    """A request as it was read."""

    identity: bytes
    who: _Client | Frame
    """Who sent it; of one who was not known, a frame that tells."""
    frames: list[bytes]
    """The first ones."""
    size: int
    total: int
    """How many frames there were."""


class _Asked:
    """One request on its way through the broker."""

    __slots__ = ("ask", "began", "cancelled", "client", "envelope", "format", "size", "task")

    def __init__(self, client: _Client, envelope: list[bytes], format: Format, size: int) -> None:
        self.client = client
        self.envelope = envelope
        self.format = format
        self.size = size
        self.began = perf_counter()
        self.ask: Ask
        self.task: asyncio.Task[Any]
        self.cancelled = False
        """Whether it was taken back, and answered then."""

    @property
    def operation(self) -> Operation:
        assert self.ask.operation is not None  # noqa: S101  only operations are carried out in a task
        return self.ask.operation


class Router:
    """A bound socket. An endpoint has a `usual` command and takes `only` some; the command server has neither."""

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        broker: Broker,
        max_request: int,
        busy_poll: BusyPoll,
        *,
        usual: str | None = None,
        only: frozenset[str] | None = None,
        opener: Opener | None = None,
    ) -> None:
        self._broker = broker
        self._max_request = max_request
        self._busy_poll = busy_poll
        self._usual = usual
        self._only = only
        self._opener = opener
        self._loop = asyncio.get_running_loop()
        self._clients: dict[bytes, _Client] = {}
        self._by_fd: dict[int, _Client] = {}
        self._connected: set[int] = set()
        """File descriptors of the connections that there are."""
        self._running: set[asyncio.Task[Any]] = set()
        self._held = 0
        """Bytes of the requests that are being answered, but for long polls."""
        self._coalesced = 0
        """Requests that wait for a put of the intake; they have no task of their own."""
        self._last_sent: asyncio.Future[None] | None = None
        """Who closes waits for it."""
        self._looking = False
        self._open = False
        self._context = context
        self.socket = socket = context.socket(zmq.ROUTER)
        socket.linger = 0
        socket.router_mandatory = True
        socket.maxmsgsize = 2 * max_request  # past it the connection is cut; up to it there is a reply that says why
        socket.rcvhwm = WAITING_REQUESTS
        socket.sndhwm = WAITING_REPLIES
        socket.backlog = 2048
        socket.heartbeat_ivl = HEARTBEAT
        socket.heartbeat_timeout = LOST
        socket.tcp_keepalive = 1

    def bind(self, host: str, port: int) -> int:
        """Listen, and be read by the event loop; the port, which is a free one for 0. Raises `ZMQError`."""
        socket = self.socket
        if ":" in host:
            socket.ipv6 = True
            host = f"[{host}]"
        socket.bind(f"tcp://{host}:{port or '*'}")
        bound = int(socket.getsockopt_string(zmq.LAST_ENDPOINT).rpartition(":")[2])
        place = f"inproc://events-{bound}"
        socket.monitor(place, zmq.EVENT_ACCEPTED | zmq.EVENT_DISCONNECTED)
        self._events = self._context.socket(zmq.PAIR)
        self._events.rcvhwm = 0  # the library waits where this is full, and with it everybody
        self._events.connect(place)
        self._open = True
        self._loop.add_reader(self._events.fileno(), self._look, True)
        self._loop.add_reader(socket.fileno(), self._look, False)
        self._again()
        return bound

    async def close(self, grace: float, linger: float) -> None:
        """Read no more, finish what is being answered, and give replies some time to leave."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self.socket.fileno())
            self._loop.remove_reader(self._events.fileno())
            deadline = self._loop.time() + grace
            if self._running:
                await asyncio.wait(self._running, timeout=grace)
            if self._coalesced:
                self._last_sent = self._loop.create_future()
                await asyncio.wait({self._last_sent}, timeout=max(0.0, deadline - self._loop.time()))
            for task in self._running:
                task.cancel()
            self.socket.disable_monitor()
            self._events.close(0)
        self.socket.close(int(linger * 1000))

    # Reading

    def _again(self) -> None:
        """Look at the socket once more in the next round of the loop."""
        if not self._looking:
            self._looking = True
            self._loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._looking = False
        self._look(True)

    def _look(self, has_news: bool) -> None:
        """Read what is there, then who has come and left, then answer. In this order: what was read may be the last
        word of one that has left, and a new connection may have the file descriptor of one that was there before.
        Sends of those who are known need not wait for that: they count, even if their sender has left."""
        if not self._open:
            return
        waiting: list[_Read] = []
        most = HELD * self._max_request
        size = 0
        for _ in range(AT_ONCE):
            if self._held + size >= most:
                break
            request = self._read()
            if request is None:
                break
            if not waiting and isinstance(request.who, _Client) and is_send(request.frames[-1]):
                self._receive(request)
            else:
                waiting.append(request)
                size += request.size
        else:
            self._again()
        if waiting or has_news:
            self._see_who_is_there()
            for request in waiting:
                self._receive(request)
        if self._held < most <= self._held + size:
            self._again()  # it stopped because of polls or of what was refused: nobody lets go of those

    def _read(self) -> _Read | None:
        """The next request, None if there is none."""
        receive = self.socket.recv
        try:
            frame = receive(_NOW, copy=False)
        except Again:
            return None
        identity = frame.bytes
        who: _Client | Frame | None = self._clients.get(identity)
        frames: list[bytes] = []
        size = count = 0
        while frame.more:
            frame = receive(_NOW, copy=False)
            who = who or frame
            part = frame.bytes
            size += len(part)
            count += 1
            if count <= FRAMES:
                frames.append(part)
        return _Read(identity, who or frame, frames, size, count)

    def _see_who_is_there(self) -> None:
        events = self._events
        while int(events.getsockopt(zmq.EVENTS)) & _IN:  # to be told by an exception that there is nothing takes longer
            event, value = _EVENT.unpack(events.recv(_NOW))
            while events.getsockopt(zmq.RCVMORE):
                events.recv(_NOW)
            if event == zmq.EVENT_ACCEPTED:
                self._connected.add(value)
            else:
                self._connected.discard(value)
                self._forget(value)

    def _forget(self, fd: int) -> None:
        """A client has left. Nobody is there to take what its long polls find; a send or an ack goes on."""
        client = self._by_fd.pop(fd, None)
        if client is not None:
            client.is_there = False
            self._clients.pop(client.identity, None)
            for asked in client.asked:
                if asked.operation.name in POLLS:
                    asked.task.cancel()

    def _meet(self, identity: bytes, frame: Frame) -> _Client:
        """A client that was not known when this frame of it was read."""
        client = self._clients.get(identity)
        if client is not None:
            return client
        fd: int = frame.get(zmq.SRCFD)
        key = None
        with contextlib.suppress(ZMQError):  # only CURVE has it
            key = self._broker.keys.proven(str(frame.get("User-Id")))
        client = _Client(identity, key, fd in self._connected)
        if client.is_there:
            self._forget(fd)  # one whose leaving we did not see
            self._clients[identity] = self._by_fd[fd] = client
        return client

    # Calls

    def _receive(self, request: _Read) -> None:
        """Begin to answer a request."""
        identity, who, frames, size, count = request
        client = who if isinstance(who, _Client) else self._meet(identity, who)
        self._busy_poll.asked(client)
        if count > FRAMES or size - len(frames[-1]) > ENVELOPE:
            end = frames.index(b"") + 1 if b"" in frames else 0
            if sum(map(len, frames[:end])) > ENVELOPE:
                end = 0  # what is too large does not come back: of unread replies the bodies are counted
            asked = _Asked(client, frames[:end], "json", size)
            text = f"request: {count} frames, {size} bytes; at most {FRAMES} frames, and {ENVELOPE} bytes of envelope"
            self._refuse(asked, TooLarge(text, field="request"))
            return
        body = frames.pop()
        asked = _Asked(client, frames, format_of(body), size)
        try:
            self._begin(asked, body)
        except Exception as error:
            self._refuse(asked, error)

    def _begin(self, asked: _Asked, body: bytes) -> None:
        broker, client = self._broker, asked.client
        if len(body) > self._max_request:
            raise TooLarge(f"request: {len(body)} bytes; at most {self._max_request}", field="request")
        command = read_command(body, asked.format, self._usual)
        for field in ("api_key", "idempotency_key"):  # which a poll keeps while it waits
            value = getattr(command, field)
            if value is not None and len(value) > ENVELOPE:
                raise InvalidRequest(f"{field}: {len(value)} characters; at most {ENVELOPE}", field=field)
        secret: Secret | None = client.key if command.api_key is None else command.api_key
        if not broker.keys.open:
            broker.keys.identify(secret)
        if command.type == CANCEL:
            self._reply(asked, shapes.CancelReply(self._cancel(asked)))
            return
        if len(client.asked) >= IN_FLIGHT:
            raise BadRequest(
                f"request: {IN_FLIGHT} requests of this connection wait for their replies; read some first",
                field="request",
            )
        ask = asked.ask = understand(command, asked.format, self._only)
        if ask.operation is None:
            assert ask.opens is not None  # noqa: S101
            assert self._opener is not None  # noqa: S101
            self._reply(asked, self._opener(ask.opens))
            return
        ask.request.secret = secret
        authorise(broker, ask.operation, ask.request)
        if not client.is_there and ask.operation.name in POLLS:
            return
        client.asked.add(asked)
        if ask.operation.name not in POLLS:
            self._held += asked.size
        if self._coalesce(asked, ask.request):
            return
        call = self._carry_out(asked, ask.operation, ask.request)
        task = begin(self._loop, call, eager=broker.eager)
        if task is not None:
            asked.task = task
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _coalesce(self, asked: _Asked, request: Request) -> bool:
        """Hand a lone plain message to the intake; False if a request is anything else."""
        body = request.body
        if type(body) is not PlainDrafts or len(body.bodies) != 1:
            return False
        queue = request.path["queue"]
        if not self._broker.intake.add(queue, body.content_type, body.bodies[0], request.call, asked, self._sent):
            return False
        self._coalesced += 1
        return True

    def _cancel(self, cancel: _Asked) -> int:
        """Take back the receives that wait and came in the same envelope; they are answered with no messages. One
        that has found some already answers with them."""
        found = 0
        for asked in cancel.client.asked:
            if asked.envelope != cancel.envelope or asked.operation.name != "receive" or asked.cancelled:
                continue
            if asked.task.cancel():
                asked.cancelled = True
                found += 1
                self._reply(asked, shapes.MessagesReply([]))
        return found

    # Replies

    async def _carry_out(self, asked: _Asked, operation: Operation, request: Request) -> None:
        """Make the call and answer. The reply is written in the same breath, so that large ones do not pile up."""
        broker = self._broker
        try:
            reply = await run(broker, operation, request)
            if isinstance(reply, Streamed):
                reply = Raw(b"".join([piece async for piece in reply.pieces]))
        except asyncio.CancelledError:
            if not asked.cancelled:
                self._refuse(asked, Closed("the broker is closing"))
        except Exception as error:
            self._refuse(asked, error)
        else:
            queue = broker.catalog.known(request.path.get("queue", ""))
            broker.metrics.call("zmq", operation.name, queue, perf_counter() - asked.began)
            shape = asked.ask.shape
            if not self._reply(asked, reply if shape is None else shape(reply)) and operation.name == "receive":
                self._give_back(request.path["queue"], reply)
        finally:
            asked.client.asked.discard(asked)
            if operation.name not in POLLS:
                self._let_go(asked.size)

    def _sent(self, all_asked: list[_Asked], answers: list[list[str]], error: Exception | None) -> None:
        """Answer the requests of one put of the intake: its messages are on disk, or could not be sent."""
        try:
            if error is not None:
                for asked in all_asked:
                    self._refuse(asked, error)
            else:
                latency = self._broker.metrics.latency("zmq", "send", all_asked[0].ask.request.path["queue"])
                for asked, ids in zip(all_asked, answers, strict=True):
                    self._reply(asked, shapes.SentReply(ids))
                    latency.add(perf_counter() - asked.began)
        finally:
            for asked in all_asked:
                asked.client.asked.discard(asked)
                self._let_go(asked.size)
            self._coalesced -= len(all_asked)
            if not self._coalesced and self._last_sent is not None:
                self._last_sent.set_result(None)

    def _let_go(self, size: int) -> None:
        """A request is answered: others may be read if they had to wait for that."""
        most = HELD * self._max_request
        if self._held >= most > self._held - size:
            self._again()
        self._held -= size

    def _give_back(self, queue: str, reply: shapes.MessagesReply) -> None:
        """Messages were leased for a client that is gone: they need not wait for their timeout."""
        leases = [Lease(message.id, message.receipt) for message in reply.messages if message.receipt]
        if leases:
            task = self._loop.create_task(_quietly(self._broker, queue, leases))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    def _reply(self, asked: _Asked, data: Any) -> bool:
        return self._send(asked, codec.encode(shapes.CommandReply(True, data), asked.format))

    def _refuse(self, asked: _Asked, error: Exception) -> None:
        ours = fault("a request", error)
        self._broker.metrics.errors["zmq", ours.code] += 1
        self._send(asked, refusal(ours, asked.format))

    def _send(self, asked: _Asked, body: bytes) -> bool:
        """Send a reply; False if nobody is there to have it, or reads nothing of what is there for it."""
        socket, client = self.socket, asked.client
        if len(body) >= LARGE and not self._has_room(client):
            return False
        try:
            socket.send(client.identity, _MORE)
            for frame in asked.envelope:
                socket.send(frame, _MORE)
            if len(body) < LARGE:
                socket.send(body, _NOW)
            else:
                tracker = socket.send(body, _NOW, copy=False, track=True)
                client.unread.append((tracker, len(body)))
        except ZMQError:
            return False
        finally:
            self._again()
        self._busy_poll.answered(client)
        return True

    def _has_room(self, client: _Client) -> bool:
        client.unread = [(tracker, size) for tracker, size in client.unread if not tracker.done]
        return sum(size for _, size in client.unread) < UNREAD


async def _quietly(broker: Broker, queue: str, leases: list[Lease]) -> None:
    with contextlib.suppress(MiniQError):
        await broker.release(queue, leases)
