"""What a stranger can make an HTTP connection keep, do and answer: limits where bytes arrive, answers in order."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import signal
import socket
import tracemalloc
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import monotonic
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from miniq.broker import Broker
from miniq.broker.intake import Intake
from miniq.message import Draft
from miniq.options import Limits, Options
from miniq.server.http import fast_lane
from miniq.server.http.guard import Guard
from miniq.store import open_store
from tests.acceptance.test_fast_lane import COLD, HOT, answer, listening
from tests.serving import serving

LANES = pytest.mark.parametrize("queue", [b"q", b"%71"], ids=["hot", "cold"])
"""The fast lane leaves names with an escape to the ordinary one."""


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def ask(self, data: bytes, size: int = 0) -> tuple[int, Any]:
        """Status and content of the next answer to this, sent in pieces of a size."""
        for start in range(0, len(data), size or len(data)):
            self.writer.write(data[start : start + (size or len(data))])
            await asyncio.sleep(0)
        return await self.answer()

    async def answer(self) -> tuple[int, Any]:
        async with asyncio.timeout(10):
            head, body = await answer(self.reader)
        return int(head.split()[1]), json.loads(body) if body else None

    async def closed(self) -> bool:
        async with asyncio.timeout(10):
            return await self.reader.read() == b""


@asynccontextmanager
async def connected(broker: Broker, options: Options | None = None) -> AsyncIterator[Client]:
    async with listening(broker, 30, options or Options()) as port:
        client = Client(*await asyncio.open_connection("127.0.0.1", port))
        yield client
        client.writer.transport.abort()


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(open_store("memory:")) as opened:
        yield opened


@pytest.fixture
async def client(broker: Broker) -> AsyncIterator[Client]:
    async with connected(broker) as opened:
        yield opened


def hot(queue: bytes = b"q", headers: bytes = b"", body: bytes = b'{"body":1}', call: bytes = b"messages") -> bytes:
    lines = b"host: x\r\n" + headers + b"content-length: %d\r\n" % len(body)
    return b"POST /v1/queues/%b/%b HTTP/1.1\r\n%b\r\n%b" % (queue, call, lines, body)


def chunked(queue: bytes, rest: bytes, headers: bytes = b"") -> bytes:
    lines = b"host: x\r\ntransfer-encoding: chunked\r\n" + headers
    return b"POST /v1/queues/%b/messages HTTP/1.1\r\n%b\r\n" % (queue, lines) + rest


# Heads


@LANES
@pytest.mark.parametrize("size", [0, 1000], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    ("headers", "ending", "refused"),
    [
        (b"a: %b\r\n" % (b"x" * 65_536), b"", (431, "head_too_large")),
        (b"a: %b\r\n" % (b"x" * 90_000), b"", (431, "head_too_large")),
        (b"abcd: efgh\r\n" * 101, b"", (431, "head_too_large")),
        (b"", b"a: %b\r\n" % (b"x" * 90_000), (431, "head_too_large")),
        (b"", b"abcd: efgh\r\n" * 6000, (431, "head_too_large")),
        (b"abcd: efgh\r\n" * 97, b"", None),
        (b"a: %b\r\n" % (b"x" * 65_000), b"", None),
        (b"", b"a: %b\r\n" % (b"x" * 60_000), None),
    ],
    ids=["header", "more", "headers", "trailer", "trailers", "many", "long", "long trailer"],
)
async def test_headers_and_trailers_have_a_limit_however_they_arrive(
    client: Client, queue: bytes, size: int, headers: bytes, ending: bytes, refused: tuple[int, str] | None
) -> None:
    status, said = await client.ask(chunked(queue, b'a\r\n{"body":1}\r\n0\r\n' + ending + b"\r\n", headers), size)
    if refused is None:
        assert status == 201
        assert (await client.ask(HOT))[0] == 201
    else:
        assert (status, said["code"]) == refused
        assert await client.closed()


@LANES
@pytest.mark.parametrize("size", [0, 1000], ids=["at once", "in pieces"])
@pytest.mark.parametrize("extra", [0, 1, 100_000])
async def test_a_url_has_a_limit_however_it_arrives(client: Client, queue: bytes, size: int, extra: int) -> None:
    queue += b"x" * (8192 - len(b"/v1/queues//messages") - len(queue) + extra)
    status, said = await client.ask(hot(queue), size)
    assert (status, said["code"]) == ((414, "url_too_long") if extra else (400, "bad_name"))
    assert not extra or await client.closed()


async def test_a_head_without_an_end_is_refused_before_it_ends(client: Client) -> None:
    status, said = await client.ask(b"GET /health HTTP/1.1\r\na: " + b"x" * 300_000)
    assert (status, said["code"]) == (431, "head_too_large")


@pytest.mark.parametrize("junk", [b"\x16\x03\x01", b"HELLO", b"GET / HTTP/1.1\nhost: x\n"])
@pytest.mark.parametrize("size", [0, 1])
async def test_what_is_no_http_is_refused_before_it_ends(client: Client, junk: bytes, size: int) -> None:
    status, said = await client.ask(junk, size)
    assert (status, said["code"]) == (400, "bad_request")
    assert await client.closed()


@pytest.mark.parametrize("size", [0, 5])
async def test_http_2_is_refused_at_once(client: Client, size: int) -> None:
    status, said = await client.ask(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", size)
    assert (status, said["detail"]) == (400, "request: HTTP/2 is not supported; use HTTP/1.1")
    assert await client.closed()


async def test_headers_are_counted_as_they_arrive(client: Client) -> None:
    status, said = await client.ask(b"GET /health HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 101)
    assert (status, said["code"]) == (431, "head_too_large")
    assert await client.closed()


@pytest.mark.parametrize("size", [0, 1, 25])
async def test_a_few_empty_lines_may_precede_a_request_and_no_more(client: Client, size: int) -> None:
    for _ in range(5):
        assert (await client.ask(b"\r\n" * 50 + COLD, size))[0] == 200
    status, said = await client.ask(b"\r\n" * 150, size)
    assert (status, said["code"]) == (400, "bad_request")
    assert await client.closed()


@LANES
async def test_a_request_of_http_1_1_has_a_host(client: Client, queue: bytes) -> None:
    bare = hot(queue).replace(b"host: x\r\n", b"")
    status, said = await client.ask(bare)
    assert (status, said["code"], said["field"]) == (400, "bad_request", "host")
    assert await client.closed()


@LANES
async def test_a_request_of_http_1_0_needs_no_host(client: Client, queue: bytes) -> None:
    assert (await client.ask(hot(queue).replace(b"host: x\r\n", b"").replace(b"HTTP/1.1", b"HTTP/1.0")))[0] == 201


async def test_long_hosts_of_strangers_are_not_kept(broker: Broker) -> None:
    guard = Guard(broker.keys, "")
    tracemalloc.start()
    try:
        for number in range(200):
            host = f"{number}.{'x' * 20_000}"
            guard.violation({"host": host}, [(b"host", host.encode())], is_safe=False)
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()


# Bodies


@LANES
async def test_a_stranger_is_refused_before_its_body_is_read_or_asked_for(broker: Broker, queue: bytes) -> None:
    _, secret = await broker.keys.create("one", ["send:other"], 0)
    key = b"authorization: Bearer %b\r\n" % secret.encode()
    for headers, refused in ((b"", 401), (key, 403)):
        async with connected(broker) as client:
            asked = hot(queue, headers + b"expect: 100-continue\r\n", bytes(1_000_000))
            assert (await client.ask(asked[:300]))[0] == refused
            assert (await client.ask(asked[300:] + COLD))[0] == 200


@LANES
async def test_a_request_over_the_limit_is_refused_alike_in_both_lanes(broker: Broker, queue: bytes) -> None:
    async with connected(broker, Options(limits=Limits(request_bytes=1000))) as client:
        status, said = await client.ask(hot(queue, body=bytes(1001)))
        assert (status, said["code"], said["detail"]) == (413, "too_large", "request: 1001 bytes; at most 1000")
        for chunks in (b"3e9\r\n%b\r\n" % bytes(1001), b"1f4\r\n%b\r\n" % bytes(500) * 3):
            status, said = await client.ask(chunked(queue, chunks + b"0\r\n\r\n"))
            text = "request: over 1000 bytes; at most 1000"
            assert (status, said["code"], said["detail"]) == (413, "too_large", text)
        assert (await client.ask(HOT))[0] == 201


async def test_a_body_in_tiny_chunks_costs_no_more_than_its_bytes(client: Client) -> None:
    tracemalloc.start()
    try:
        client.writer.write(chunked(b"q", b"2\r\n  \r\n" * 40_000))
        await client.writer.drain()
        await asyncio.sleep(0.1)
        assert tracemalloc.get_traced_memory()[0] < 1_200_000
    finally:
        tracemalloc.stop()
    assert (await client.ask(b'a\r\n{"body":1}\r\n0\r\n\r\n'))[0] == 201


@LANES
@pytest.mark.parametrize("is_chunked", [False, True], ids=["length", "chunks"])
async def test_all_bodies_together_have_a_limit_and_small_ones_are_never_refused(
    broker: Broker, queue: bytes, is_chunked: bool
) -> None:
    async with listening(broker, 30, Options(max_buffered_bytes=1_000_000)) as port:
        first, second, third = [Client(*await asyncio.open_connection("127.0.0.1", port)) for _ in range(3)]
        large, other, small = [hot(queue, body=b'{"body":"%b"}' % (b"x" * size)) for size in (900_000, 500_000, 50_000)]
        if is_chunked:
            body = other.partition(b"\r\n\r\n")[2]
            other = chunked(queue, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
        for _ in range(2):
            first.writer.write(large[:-1])
            await first.writer.drain()
            await asyncio.sleep(0.1)
            status, said = await second.ask(other)
            assert (status, said["code"], said["field"]) == (503, "overloaded", "request")
            assert (await second.ask(small, 20_000))[0] == 201
            assert (await first.ask(large[-1:]))[0] == 201
            assert (await second.ask(other))[0] == 201
        third.writer.write(large[:-1])
        await third.writer.drain()
        await asyncio.sleep(0.1)
        third.writer.transport.abort()
        await asyncio.sleep(0.1)
        assert (await second.ask(other))[0] == 201
        assert (await second.ask(hot(queue, body=b'{"body":"%b"}' % (b"x" * 1_000_000))))[0] == 201, "alone"
        for client in (first, second):
            client.writer.close()


async def test_beyond_max_connections_a_connection_is_refused_until_another_one_ends(broker: Broker) -> None:
    async with listening(broker, 30, Options(max_connections=1)) as port:
        first = Client(*await asyncio.open_connection("127.0.0.1", port))
        assert (await first.ask(HOT))[0] == 201
        refused = Client(*await asyncio.open_connection("127.0.0.1", port))
        status, said = await refused.ask(COLD)
        assert (status, said["code"]) == (503, "overloaded")
        assert await refused.closed()
        assert (await first.ask(HOT))[0] == 201
        for client in (refused, first):
            client.writer.transport.abort()
        await asyncio.sleep(0.05)
        third = Client(*await asyncio.open_connection("127.0.0.1", port))
        assert (await third.ask(COLD))[0] == 200
        third.writer.close()


async def test_nothing_of_a_connection_stays_after_it(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    kept: list[weakref.ref[Any]] = []
    made = fast_lane.HotCycle.__init__

    def watch(self: Any, head: Any, lane: Any) -> None:
        made(self, head, lane)
        kept.extend([weakref.ref(self), weakref.ref(lane)])

    monkeypatch.setattr(fast_lane.HotCycle, "__init__", watch)
    gc.disable()
    try:
        async with connected(broker) as client:
            assert (await client.ask(HOT))[0] == 201
            client.writer.write(hot(body=bytes(100_000))[:-1])
            await asyncio.sleep(0.05)
            client.writer.transport.abort()
            await asyncio.sleep(0.05)
            assert [one() for one in kept] == [None] * 4
    finally:
        gc.enable()


@LANES
async def test_compressed_bodies_are_refused_as_such(client: Client, queue: bytes) -> None:
    status, said = await client.ask(hot(queue, b"content-encoding: gzip\r\n"))
    assert (status, said["code"], said["field"]) == (415, "wrong_media", "content-encoding")
    assert (await client.ask(hot(queue, b"content-encoding: identity\r\n")))[0] == 201


@LANES
async def test_a_trailer_is_no_header(broker: Broker, queue: bytes) -> None:
    _, secret = await broker.keys.create("one", ["send:*"], 0)
    trailer = b"authorization: Bearer %b\r\n" % secret.encode()
    async with connected(broker) as client:
        status, _ = await client.ask(chunked(queue, b'a\r\n{"body":1}\r\n0\r\n' + trailer + b"\r\n"))
        assert status == 401


# Pipelines


async def test_few_requests_of_a_connection_wait_and_all_are_answered(client: Client) -> None:
    count = 3000
    client.writer.write(b"GET /x HTTP/1.1\r\nhost: x\r\n\r\n" * count)
    waiting = 0
    for _ in range(20):
        await asyncio.sleep(0)
        waiting = max(waiting, sum(isinstance(one, RequestResponseCycle) for one in gc.get_objects()))
    assert waiting <= 70
    for _ in range(count):
        assert (await client.answer())[0] == 404
    assert (await client.ask(HOT))[0] == 201


async def test_heads_that_wait_are_counted_by_their_bytes_too(broker: Broker, client: Client) -> None:
    await broker.configure("q")
    waiting = [hot(body=b'{"wait":30}', call=b"receive"), COLD[:-2] + b"x: %b\r\n\r\n" % (b"y" * 30_000)]
    client.writer.write(waiting[0] + waiting[1] * 20)
    await asyncio.sleep(0.1)
    assert sum(isinstance(one, RequestResponseCycle) for one in gc.get_objects()) <= 3
    await broker.send("q", [Draft(b"1")])
    for _ in range(21):
        assert (await client.answer())[0] == 200


async def test_no_further_head_is_read_while_a_request_with_a_large_one_is_answered(
    broker: Broker, client: Client
) -> None:
    await broker.configure("q")
    large = b"x: %b\r\n" % (b"y" * 40_000)
    receive = hot(b"%71", large, b'{"wait":30}', b"receive")
    client.writer.write(receive + COLD * 3)
    await asyncio.sleep(0.1)
    assert sum(isinstance(one, RequestResponseCycle) for one in gc.get_objects()) == 1
    await broker.send("q", [Draft(b"1")])
    for _ in range(4):
        assert (await client.answer())[0] == 200


@LANES
async def test_bad_bytes_are_answered_after_the_requests_before_them(
    broker: Broker, client: Client, queue: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    await broker.configure("q")
    goes_on = asyncio.Event()
    put = Intake._put

    async def slowly(self: Intake, *asked: Any) -> list[list[str]]:
        await goes_on.wait()
        return await put(self, *asked)

    monkeypatch.setattr(Intake, "_put", slowly)
    client.writer.write(HOT + COLD + chunked(queue, b"xyz\r\n"))
    await asyncio.sleep(0.05)
    goes_on.set()
    assert [(await client.answer())[0] for _ in range(3)] == [201, 200, 400]
    assert await client.closed()


async def test_bad_bytes_are_not_refused_for_what_was_wrong_with_the_request_before_them(broker: Broker) -> None:
    before = hot(b"%71", b"content-encoding: gzip\r\n")
    coding = HOT.replace(b"content-length: 10", b"transfer-encoding: chunked, gzip")
    for bad, refused in ((HOT.replace(b"/q/", b"/%b/" % (b"q" * 9000)), 414), (coding, 400)):
        for count in range(3, 9):  # in some cases, the last is read when another one is answered
            async with connected(broker, Options(limits=Limits(pipeline=3))) as client:
                client.writer.write(before * count + bad)
                assert [(await client.answer())[0] for _ in range(count + 1)] == [415] * count + [refused]


POLL = b'{"wait":30,"mode":"at-most-once"}'
CLAIM = b'{"group":"g","after":0,"wait":30}'


@pytest.mark.parametrize("behind", [COLD, COLD * 100], ids=["one", "many"])
@pytest.mark.parametrize(
    ("queue", "call", "body"), [(b"q", b"receive", POLL), (b"%71", b"receive", POLL), (b"q", b"claims", CLAIM)]
)
async def test_a_client_that_leaves_during_its_long_poll_is_noticed_with_requests_behind_it(
    broker: Broker, behind: bytes, queue: bytes, call: bytes, body: bytes
) -> None:
    await broker.configure("q")
    async with connected(broker) as client:
        client.writer.write(hot(queue, body=body, call=call) + behind)
        await asyncio.sleep(0.1)
        client.writer.close()
        async with asyncio.timeout(10):
            while broker.waiters._queues.get("q"):  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        await broker.send("q", [Draft(b"1")])
        await asyncio.sleep(0.05)
        assert (await broker.queue("q")).counts.ready == 1


async def test_the_method_update_is_known_in_a_pipeline_and_in_pieces(broker: Broker, client: Client) -> None:
    id = (await broker.send("default", [Draft(b"1")]))[0]
    body = b'{"message":"new"}'
    update = b"UPDATE /messages/%b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % (id.encode(), len(body)) + body
    assert await client.ask(COLD + update) == (200, {"status": "ok"})
    assert await client.answer() == (200, {"success": True})
    assert await client.ask(update, 3) == (200, {"success": True})


# Replies


async def test_a_client_that_reads_no_replies_is_cut_off(broker: Broker) -> None:
    for _ in range(20):
        await broker.send("q", [Draft(b'"%b"' % (b"x" * 500_000))])
    options = Options(limits=Limits(write_timeout=0.3))
    async with listening(broker, 30, options) as port:
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # else the system takes most of the reply
            deaf.connect(("127.0.0.1", port))
            deaf.sendall(hot(body=b'{"max":20}', call=b"receive"))
            async with asyncio.timeout(10):
                while (await broker.queue("q")).counts.leased == 0:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
                while any(isinstance(one, fast_lane.FastLane) for one in gc.get_objects()):  # noqa: ASYNC110
                    await asyncio.sleep(0.05)


@pytest.mark.parametrize("path", [b"/v1/queues/q?x/messages", b"/v1/queues/q?/messages"])
async def test_a_query_is_no_part_of_a_name(client: Client, path: bytes) -> None:
    status, said = await client.ask(HOT.replace(b"/v1/queues/q/messages", path))
    assert (status, said["code"]) == (405, "wrong_method")


def test_a_server_that_stops_does_not_wait_for_the_rest_of_a_body() -> None:
    with serving("memory:") as served:
        clients = []
        for path in (b"/v1/queues/q/messages", b"/push_message"):
            clients.append(socket.create_connection(("127.0.0.1", served.port), timeout=10))
            clients[-1].sendall(b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{" % path)
        ask = socket.create_connection(("127.0.0.1", served.port), timeout=10)
        ask.sendall(COLD)
        assert ask.recv(100)
        began = monotonic()
        os.kill(served.process.pid, signal.SIGTERM)
        for client in clients:
            assert client.recv(1000).startswith(b"HTTP/1.1 503")
        assert served.process.wait(15) == 0
        assert monotonic() - began < 10
        for client in [*clients, ask]:
            client.close()
