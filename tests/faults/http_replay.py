"""A sequence of HTTP requests against a fresh broker in the same event loop, over real sockets: pipelined on one
connection, or one request per connection, in one piece or in many. Ids, receipts, keys and time are predictable.
"""

from __future__ import annotations

import asyncio
import re
import select
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any

from msgspec import Struct
from uvicorn.server import ServerState

from miniq.broker import Broker
from miniq.options import Options
from miniq.schedule import Definition
from miniq.server import server
from miniq.server.busy_poll import BusyPoll
from miniq.store import open_store
from tests.clock import FrozenClock
from tests.faults import predictable
from tests.faults.doors import Faults
from tests.faults.feature_requests import RESULT
from tests.faults.http_requests import LIMITS, Asked
from tests.kit import draft, sleepers

END = b"GET /health HTTP/1.1\r\nhost: x\r\nx-request-id: the-end\r\n\r\n"
"""Sent after a pipeline: it is answered exactly if the connection is still good."""
QUIET = 60
"""Turns of the event loop without an answer after which a long poll is what is waited for."""
PATIENCE = 300
"""Milliseconds without an answer after which none is expected."""
OPTIONS = Options(upkeep_interval=0, limits=LIMITS)
IGNORED = {b"date"}
_OWN_ID = re.compile(rb"[0-9a-f]{8}-[0-9a-f]+")


class Way(Struct, frozen=True):
    """How a sequence is sent."""

    name: str
    connections: str = "each"
    """`each` request has its own; `one` for all, pipelined; `turns`: one for all, each request after an answer."""
    pieces: bool = False
    slow: bool = False
    """In the form that takes the ordinary lane."""


class Answer(Struct, frozen=True):
    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    continued: bool = False
    """Whether `100 Continue` came before it."""

    @property
    def key(self) -> tuple[Any, ...]:
        """What must be the same; whether a body was there before its sender was told to continue may differ."""
        return self.status, self.headers, self.body

    def __str__(self) -> str:
        lines = ", ".join(f"{name.decode()}: {value.decode('latin-1')}" for name, value in self.headers)
        return f"{self.status} [{lines}] {self.body[:300]!r}"


class Outcome(Struct):
    """What came of a sequence: answers, whether the connection is closed after them, and the broker's state."""

    answers: list[Answer]
    closed: bool
    state: list[str]
    wrong: str = ""
    """What must not happen however the sequence was sent."""


# A broker


@asynccontextmanager
async def fresh(keyed: bool) -> AsyncIterator[tuple[Broker, Callable[[], Any]]]:
    """A broker with some messages, in which all that is random is predictable; and what makes its connections."""
    async with AsyncExitStack() as stack:
        stack.enter_context(predictable.tokens())
        broker = await stack.enter_async_context(Broker(open_store("memory:"), OPTIONS, FrozenClock()))
        predictable.seed_ids(broker.ids)
        for queue in ("q", "default", "q"):
            await broker.send(queue, [draft(queue)])
        for queue in ("q", "default"):
            await broker.receive(queue)
        await broker.configure("q", {"results": 60})
        await broker.topics.subscribe("t", "first", queue="q")
        await broker.schedules.put("s", Definition(draft("s"), queue="q", every=86400))
        if keyed:
            keys = [
                (await broker.keys.create(name, allow, number))[0]
                for number, (name, allow) in enumerate(predictable.KEYS.items())
            ]
            await broker.keys.revoke(keys[-1].id)
        config = server._config(broker, OPTIONS, BusyPoll(0))
        config.load()
        state = ServerState()
        loop = asyncio.get_running_loop()
        lane: Any = config.http_protocol_class
        yield broker, lambda: lane(config=config, server_state=state, app_state={}, _loop=loop)


async def state_of(broker: Broker) -> list[str]:
    """Everything that the broker knows, a line per thing."""
    lines = [f"key {key}" for key in broker.keys.list()]
    lines += [f"topic {topic.name}: {topic.record} {topic.subscriptions}" for topic in broker.topics.topics.values()]
    lines += [f"schedule {entry}" for entry in broker.schedules.entries]
    ids = [*(predictable.message_id(number) for number in range(40)), RESULT.decode()]
    for queue in await broker.queues():
        results = await broker.store.results.find(queue.name, ids, broker.clock.now())
        lines += [f"result {queue.name} {id}: {finished}" for id, finished in results.items()]
        lines.append(f"queue {queue}")
        lines += [f"message {stored}" for stored in (await broker.peek(queue.name, limit=1000)).messages]
    return lines + [f"event {event}" for event in (await broker.history(limit=1000)).records]


# A connection


class Connection:
    """The client's end of a connection to a broker in the same event loop. A piece that is sent is read as such by the
    server, if it is given a turn."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._near, self._far = socket.socketpair()
        self._near.setblocking(False)
        self.said = b""
        self.closed = False

    async def open(self, make: Callable[[], Any]) -> None:
        await asyncio.get_running_loop().connect_accepted_socket(make, self._far)

    async def send(self, data: bytes) -> None:
        """Send bytes, if the server reads on: it does not while a long poll waits with much behind it."""
        while data and not self.closed:
            try:
                data = data[self._near.send(data) :]
            except BlockingIOError:
                if not await self.until(self._is_writable) and not self._is_writable():
                    return
            except OSError:
                self.closed = True

    def _is_writable(self) -> bool:
        return bool(select.select([], [self._near], [], 0)[1])

    async def turn(self) -> bool:
        """Give the server a turn; whether it said something."""
        await asyncio.sleep(0)
        with suppress(BlockingIOError):
            try:
                data = self._near.recv(1 << 20)
            except ConnectionResetError:
                data = b""
            self.said += data
            self.closed = self.closed or not data
            return True
        return False

    async def until(self, true: Callable[[], bool]) -> bool:
        """Wait until something is true, or the connection is closed; False if the server has nothing more to say. Time
        passes while a long poll waits."""
        quiet = slept = 0
        if true():
            return True
        while not self.closed:
            if await self.turn():
                if true():
                    return True
                quiet = slept = 0
            elif quiet < QUIET:
                quiet += 1
            elif sleepers(self._broker) and all(sleepers(self._broker)):
                self._broker.clock.advance(1)  # type: ignore[attr-defined]
                quiet = 0
            elif slept < PATIENCE:
                slept += 1
                await asyncio.sleep(0.001)
            else:
                return False
        return True

    async def close(self) -> None:
        self._near.close()
        for _ in range(4):
            await asyncio.sleep(0)


def answers_in(said: bytes, methods: Sequence[bytes]) -> tuple[list[Answer], bytes]:
    """The complete answers to requests with these methods, and the rest."""
    answers: list[Answer] = []
    continued = False
    while len(answers) < len(methods):
        head, end, rest = said.partition(b"\r\n\r\n")
        if not end:
            break
        line, *fields = head.split(b"\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (field.partition(b":") for field in fields)]
        status = int(line.split()[1])
        if status == 100 and not continued:
            said, continued = rest, True
            continue
        named = dict(headers)
        if methods[len(answers)] == b"HEAD" or status in (204, 304):
            body = b""
        elif b"content-length" in named:
            size = int(named[b"content-length"])
            if len(rest) < size:
                break
            body, rest = rest[:size], rest[size:]
        else:
            body, end, rest = rest.partition(b"0\r\n\r\n")
            if not end:
                break
        kept = [
            (name, b"its own" if name == b"x-request-id" and _OWN_ID.fullmatch(value) else value)
            for name, value in sorted(headers)
            if name not in IGNORED
        ]
        answers.append(Answer(status, tuple(kept), body, continued))
        said, continued = rest, False
    return answers, said


def pieces_of(asked: Sequence[Asked], way: Way) -> list[bytes]:
    """What is sent at a time on one connection."""
    if not way.pieces:
        return (
            [one.raw(way.slow) for one in asked]
            if way.connections != "one"
            else [b"".join(a.raw(way.slow) for a in asked)]
        )
    pieces, piece = [], b""
    for one in asked:
        start = 0
        raw = one.raw(way.slow)
        for cut in one.cuts:
            pieces.append(piece + raw[start:cut])
            start, piece = max(cut, start), b""
        piece += raw[start:]
        if way.connections != "one":
            pieces.append(piece)
            piece = b""
    return [piece for piece in [*pieces, piece] if piece]


async def replay(asked: Sequence[Asked], keyed: bool, way: Way) -> Outcome:
    """Send a sequence to a fresh broker."""
    async with fresh(keyed) as (broker, make):
        faults = Faults()
        async with AsyncExitStack() as stack:
            faults.attach(stack)
            outcome = Outcome([], False, [])
            if way.connections == "one":
                await _pipeline(broker, make, asked, way, outcome)
            else:
                await _each(broker, make, asked, way, outcome)
            outcome.state = await state_of(broker)
        try:
            faults.check()
        except AssertionError as error:
            outcome.wrong = outcome.wrong or f"logged {str(error)[-600:]}"
    return outcome


async def _each(broker: Broker, make: Callable[[], Any], asked: Sequence[Asked], way: Way, outcome: Outcome) -> None:
    """One request after the other, until one ends its connection."""
    connection: Connection | None = None
    for one in asked:
        if connection is None or way.connections == "each":
            if connection is not None:
                await connection.close()
            connection = Connection(broker)
            await connection.open(make)
        connection.said = b""
        for piece in pieces_of([one], way):
            await connection.send(piece)
            for _ in range(3 if way.pieces else 0):
                await connection.turn()
        here, methods = connection, [one.method]
        answered = await here.until(partial(_answered, here, methods))
        answers, rest = answers_in(here.said, methods)
        for _ in range(8):  # it may be closing
            await here.turn()
        outcome.answers += answers
        outcome.closed = here.closed
        outcome.wrong = _wrong_interim([one], answers)
        if rest:
            outcome.wrong = f"{one.label}: answered more than once: {rest[:200]!r}"
        elif not answers:
            outcome.wrong = f"{one.label}: not answered" + (" and closed" if answered else "")
        elif one.closes is not None and one.closes != here.closed:
            outcome.wrong = (
                f"{one.label}: the connection was {'closed' if here.closed else 'kept'} after {answers[0].status}"
            )
        elif answers[0].status >= 500 and answers[0].status not in (501, 505):
            outcome.wrong = f"{one.label}: answered with {answers[0].status}"
        if here.closed or outcome.wrong:
            break
    if connection is not None:
        await connection.close()


async def _pipeline(
    broker: Broker, make: Callable[[], Any], asked: Sequence[Asked], way: Way, outcome: Outcome
) -> None:
    connection = Connection(broker)
    await connection.open(make)
    methods = [one.method for one in asked] + [b"GET"]
    pieces = pieces_of(asked, way)
    for number, piece in enumerate(pieces):
        await connection.send(piece + (END if number == len(pieces) - 1 else b""))
        for _ in range(len(piece) % 4):  # no turn: the server gets it together with the next one
            await connection.turn()
    answered = await connection.until(partial(_answered, connection, methods))
    outcome.closed = connection.closed
    outcome.answers, rest = answers_in(connection.said, methods)
    if not connection.closed and answered:
        outcome.answers.pop()
    outcome.wrong = _wrong_interim(asked, outcome.answers)
    if rest:
        outcome.wrong = f"an answer that is incomplete or to nothing: {rest[:200]!r}"
    elif not answered:
        outcome.wrong = f"no more answers after {len(outcome.answers)}, and the connection is open"
    await connection.close()


def _answered(connection: Connection, methods: Sequence[bytes]) -> bool:
    return len(answers_in(connection.said, methods)[0]) == len(methods)


def _wrong_interim(asked: Sequence[Asked], answers: Sequence[Answer]) -> str:
    """Whether a sender was told to continue that need not have been, or that is refused for its head."""
    for one, answer in zip(asked, answers, strict=False):
        is_early = answer.status in (401, 403) or (answer.status == 413 and b"request: " in answer.body)
        if answer.continued and (is_early or not one.expects):
            return f"{one.label}: 100 before {answer.status}"
    return ""
