"""What the fast lane does with connections: they rest, repeat themselves, and change their mind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn

from miniq.broker import Broker
from miniq.broker.intake import Intake
from miniq.message import Draft
from miniq.options import Options
from miniq.server import server
from miniq.server.busy_poll import BusyPoll
from miniq.server.http import connection, fast_lane
from miniq.store import open_store

HOT = b"POST /v1/queues/q/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n" + b'{"body":1}'
COLD = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"


@asynccontextmanager
async def serving(keep_alive: int) -> AsyncIterator[int]:
    async with Broker(open_store("memory:")) as broker, listening(broker, keep_alive) as port:
        yield port


@asynccontextmanager
async def listening(broker: Broker, keep_alive: int, options: Options | None = None) -> AsyncIterator[int]:
    config = server._config(broker, options or Options(), BusyPoll(0), None)
    config.timeout_keep_alive = keep_alive
    listener = server.bind("127.0.0.1", 0)
    running = uvicorn.Server(config)
    running.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(running.serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        running.should_exit = True
        await task


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return head, await reader.readexactly(size)


@pytest.mark.parametrize("last", [HOT, COLD], ids=["hot", "cold"])
async def test_a_connection_that_says_nothing_more_is_closed_after_a_while(last: bytes) -> None:
    async with serving(keep_alive=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for request in (HOT, COLD, HOT, last):
            writer.write(request)
            await answer(reader)
        assert await reader.read() == b""
        writer.close()


async def test_a_connection_that_never_says_anything_is_closed_too() -> None:
    async with serving(keep_alive=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


@pytest.mark.parametrize("begun", [HOT[:1], HOT[:40], HOT[:-1], COLD[:20]], ids=["first", "head", "body", "cold"])
async def test_a_request_that_takes_for_ever_to_arrive_is_not_waited_for(
    begun: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "READ_TIMEOUT", 1.0)
    async with serving(keep_alive=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HOT)
        await answer(reader)
        writer.write(begun)
        assert await reader.read() == b""
        writer.close()


async def test_hundreds_of_slow_senders_hold_up_nobody() -> None:
    async with serving(keep_alive=30) as port:
        slow = [await asyncio.open_connection("127.0.0.1", port) for _ in range(300)]
        for place in range(0, len(HOT) - 1, 8):
            for _, writer in slow:
                writer.write(HOT[place : min(place + 8, len(HOT) - 1)])
            await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HOT)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 201")
        for _, other in slow:
            other.write(HOT[-1:])
        for theirs, _ in slow:
            assert (await answer(theirs))[0].startswith(b"HTTP/1.1 201")
        for _, other in [*slow, (reader, writer)]:
            other.close()


async def test_a_request_that_comes_slowly_is_not_cut_off_by_the_timer_of_the_one_before() -> None:
    async with serving(keep_alive=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HOT)
        await answer(reader)
        writer.write(HOT[:-3])
        await asyncio.sleep(1.3)
        writer.write(HOT[-3:])
        head, _ = await answer(reader)
        assert head.startswith(b"HTTP/1.1 201")
        writer.close()


@pytest.mark.parametrize("path", [b"/v1/queues/q/messages", b"/push_message"], ids=["hot", "cold"])
async def test_who_says_too_much_is_told_at_once_and_heard_out(path: bytes) -> None:
    """A connection that is closed while somebody writes is reset, and the answer may never be read."""
    size = 17 * 2**20
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\nexpect: 100-continue\r\n\r\n" % (path, size)
    async with serving(keep_alive=30) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 413")
        for _ in range(17):
            writer.write(bytes(2**20))
            await writer.drain()
        writer.write(HOT)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 201")
        writer.close()


@pytest.mark.parametrize("path", [b"/v1/queues/q/messages", b"/push_message"], ids=["hot", "cold"])
async def test_who_goes_on_past_the_limit_is_told_and_heard_out(path: bytes) -> None:
    head = b"POST %b HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" % path
    chunk = b"100000\r\n" + bytes(2**20) + b"\r\n"
    async with serving(keep_alive=30) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + chunk * 17)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 413")
        writer.write(chunk + b"0\r\n\r\n" + HOT)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 201")
        writer.close()


async def test_headers_that_change_on_a_connection_are_heard() -> None:
    """What the request before said is reused only if this one says the same."""
    async with serving(keep_alive=30) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HOT + HOT)
        await answer(reader)
        await answer(reader)
        writer.write(HOT.replace(b"host: x\r\n", b"host: x\r\ncontent-type: text/csv\r\n"))
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 415")
        writer.write(HOT.replace(b"/q/", b"/other/"))
        await answer(reader)
        writer.write(HOT.replace(b"host: x\r\n", b"host: x\r\naccept: application/msgpack\r\n"))
        assert b"content-type: application/msgpack" in (await answer(reader))[0]
        writer.write(b"GET /v1/queues/other HTTP/1.1\r\nhost: x\r\n\r\n")
        assert b'"ready":1' in (await answer(reader))[1]
        writer.write(HOT.replace(b"HTTP/1.1", b"HTTP/1.0"))
        assert b"connection: close" in (await answer(reader))[0]
        assert await reader.read() == b""
        writer.close()


async def test_a_beginning_that_is_known_needs_the_same_bytes_and_a_whole_body() -> None:
    """However a repeated request is cut into pieces, it is one message with the body that it has."""
    async with serving(keep_alive=30) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        other = HOT.replace(b"length: 10", b"length: 11").replace(b":1}", b":22}")
        for place in (len(HOT), *range(1, len(HOT), 7), HOT.index(b"{")):
            writer.write(HOT[:place])
            await asyncio.sleep(0.01)
            writer.write(HOT[place:] + other[:place])
            assert (await answer(reader))[0].startswith(b"HTTP/1.1 201")
            await asyncio.sleep(0.01)
            writer.write(other[place:])
            assert (await answer(reader))[0].startswith(b"HTTP/1.1 201")
        writer.write(HOT[: HOT.index(b"{")] + b'{"body":')
        await asyncio.sleep(0.01)
        writer.write(b"3}" + COLD)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 201")
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 200")
        writer.write(b"GET /v1/queues/q/messages?limit=100 HTTP/1.1\r\nhost: x\r\n\r\n")
        found = json.loads((await answer(reader))[1])["messages"]
        assert [message["body"] for message in found] == [1, 22] * 13 + [3]
        writer.close()


async def test_a_beginning_is_not_taken_for_that_of_the_request_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the next request begins to arrive while one with known headers is still being answered."""
    goes_on = asyncio.Event()
    put = Intake._put

    async def slowly(self: Intake, *asked: Any) -> list[list[str]]:
        await goes_on.wait()
        return await put(self, *asked)

    async with Broker(open_store("memory:")) as broker, listening(broker, 30) as port:
        for queue in ("q", "other"):
            await broker.configure(queue)
        goes_on.set()
        monkeypatch.setattr(Intake, "_put", slowly)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HOT)
        await answer(reader)
        goes_on.clear()
        other = HOT.replace(b"/q/", b"/other/")
        writer.write(HOT)
        await asyncio.sleep(0.05)
        writer.write(other[:40])
        await asyncio.sleep(0.05)
        goes_on.set()
        await answer(reader)
        writer.write(other[40:])
        await answer(reader)
        writer.write(HOT)
        await answer(reader)
        writer.close()
        assert ((await broker.queue("q")).counts.ready, (await broker.queue("other")).counts.ready) == (3, 1)


async def test_a_beginning_that_is_known_is_no_way_past_a_key() -> None:
    async with Broker(open_store("memory:")) as broker, listening(broker, 30) as port:
        await broker.keys.create("other", ["admin:*"], 0)
        key, secret = await broker.keys.create("one", ["send:*"], 0)
        asked = HOT.replace(b"host: x\r\n", b"host: x\r\nauthorization: Bearer %b\r\n" % secret.encode())
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(3):
            writer.write(asked)
            assert (await answer(reader))[0].startswith(b"HTTP/1.1 201")
        await broker.keys.revoke(key.id)
        writer.write(asked)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 401")
        writer.close()


async def test_empty_lines_before_a_request_are_no_way_past_its_key() -> None:
    async with Broker(open_store("memory:")) as broker, listening(broker, 30) as port:
        _, secret = await broker.keys.create("one", ["send:*", "receive:*"], 0)
        for path, body in ((b"messages", b'{"body":1}'), (b"receive", b"")):
            asked = (
                b"POST /v1/queues/q/%b HTTP/1.1\r\nhost: x\r\nauthorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
            )
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\r\n\r\n" + asked % (path, secret.encode(), len(body), body))
            assert (await answer(reader))[0].startswith(b"HTTP/1.1 20")
            writer.close()
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"\r\n\r\n" + body)
            await asyncio.sleep(0.05)
            writer.write_eof()
            assert not (await reader.read()).startswith(b"HTTP/1.1 2")
            writer.close()


async def test_an_empty_request_is_answered_in_json_in_both_lanes() -> None:
    async with serving(keep_alive=30) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        kind = b"content-type: application/msgpack\r\n"
        asked = b"POST /v1/queues/q/receive HTTP/1.1\r\nhost: x\r\n" + kind + b"content-length: 0\r\n\r\n"
        writer.write(HOT + asked)  # the second takes the ordinary way
        await answer(reader)
        assert b"content-type: application/json" in (await answer(reader))[0]
        writer.write(asked)
        assert b"content-type: application/json" in (await answer(reader))[0]
        writer.close()


OFFER = b"host: x\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"


@pytest.mark.parametrize("asked", [HOT, b"PUT /v1/queues/q HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}"])
async def test_who_offers_another_protocol_is_answered_in_this_one(asked: bytes) -> None:
    """Java's own client does so in its first request."""
    async with serving(keep_alive=30) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = asked.replace(b"host: x\r\n", OFFER)
        for _ in range(3):
            writer.write(asked)
            assert (await answer(reader))[0].startswith(b"HTTP/1.1 20")
        head, body = asked.split(b"\r\n\r\n")
        writer.write(head + b"\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.write(body + HOT)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 20")
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 201")
        writer.close()


@pytest.mark.parametrize("before", [b"", HOT], ids=["alone", "behind another"])
async def test_an_offer_in_pieces_is_ignored_too_and_its_body_is_no_request(before: bytes) -> None:
    async with Broker(open_store("memory:")) as broker, listening(broker, 30) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        asked = b"POST /v1/queues/q/receive HTTP/1.1\r\n" + OFFER + b"content-length: %d\r\n\r\n" % len(HOT)
        writer.write(before + asked[:50])
        await asyncio.sleep(0.05)
        if before:
            assert (await answer(reader))[0].startswith(b"HTTP/1.1 201")
        writer.write(asked[50:])
        await asyncio.sleep(0.05)
        writer.write(HOT)
        head, body = await answer(reader)
        assert head.startswith(b"HTTP/1.1 400")
        assert b"not valid JSON" in body
        chunked = b"POST /v1/queues/q/messages HTTP/1.1\r\n" + OFFER + b"transfer-encoding: chunked\r\n\r\n"
        writer.write(chunked + b'a\r\n{"body":1}\r\n0\r\n\r\n' + HOT)
        for _ in range(2):
            assert (await answer(reader))[0].startswith(b"HTTP/1.1 201")
        writer.close()
        assert (await broker.queue("q")).counts.ready == (3 if before else 2)


REFUSED = b"POST /v1/queues/q/ack HTTP/1.1\r\nhost: x\r\ncontent-length: 7\r\n\r\n" + b'{"x":1}'
NOWHERE = b"POST /nothing HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n"


@pytest.mark.parametrize(
    ("asked", "then"),
    [(b"", b"\r\n"), (HOT, b"\r\n"), (NOWHERE, b"0123456789")],
    ids=["never began", "an empty line", "a body too late"],
)
async def test_what_begins_no_request_keeps_no_connection_open(asked: bytes, then: bytes) -> None:
    async with serving(keep_alive=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if asked:
            writer.write(asked)
            await answer(reader)
        writer.write(then)
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        writer.close()


async def test_a_connection_is_not_closed_while_the_next_one_is_answered() -> None:
    async with serving(keep_alive=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        wait = b'{"wait":2}'
        writer.write(REFUSED + b"POST /v1/queues/q/receive HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\n" + wait)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 400")
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 200")
        writer.close()


@pytest.mark.parametrize("known", [False, True])
async def test_what_is_no_http_does_not_take_the_answer_of_the_request_before(known: bool) -> None:
    async with serving(keep_alive=30) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if known:
            writer.write(HOT)
            await answer(reader)
        writer.write(HOT + b"  \r\n")
        head, _ = await answer(reader)
        assert head.startswith(b"HTTP/1.1 201")
        head, _ = await answer(reader)
        assert head.startswith(b"HTTP/1.1 400")
        assert b"connection: close" in head
        assert await reader.read() == b""
        writer.close()


async def test_who_does_not_read_answers_is_not_heard() -> None:
    """Else they would all be kept in memory."""
    async with Broker(open_store("memory:")) as broker, listening(broker, 30) as port:
        await broker.configure("q", {"visibility_timeout": 3600})
        for _ in range(150):
            await broker.send("q", [Draft(b'"%b"' % (b"x" * 200_000))])
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(150):
            writer.write(b"POST /v1/queues/q/receive HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.2)
        assert 0 < (await broker.queue("q")).counts.leased < 100
        writer.transport.abort()


@pytest.mark.parametrize("name", [b"authorization", b"host", b"origin"])
async def test_headers_that_decide_who_may_do_what_are_given_once_in_both_lanes(name: bytes) -> None:
    async with Broker(open_store("memory:")) as broker, listening(broker, 30) as port:
        _, secret = await broker.keys.create("one", ["send:*"], 0)
        given = {b"authorization": b"Bearer " + secret.encode(), b"host": b"x", b"origin": b"http://x"}
        lines = b"".join(b"%b: %b\r\n" % line for line in given.items())
        twice = lines + b"%b: %b\r\n" % (name, given[name])
        for path in (b"/v1/queues/q/messages", b"/v1/queues/%71/messages"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for headers, status in ((lines, b"HTTP/1.1 201"), (twice, b"HTTP/1.1 400")):
                writer.write(HOT.replace(b"/v1/queues/q/messages", path).replace(b"host: x\r\n", headers))
                head, body = await answer(reader)
                assert head.startswith(status)
            assert json.loads(body)["field"] == name.decode()
            writer.close()


async def test_a_body_that_was_refused_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    lanes: list[fast_lane.FastLane] = []
    made = fast_lane.FastLane.connection_made

    def watch(self: fast_lane.FastLane, transport: asyncio.Transport) -> None:
        lanes.append(self)
        made(self, transport)

    monkeypatch.setattr(fast_lane.FastLane, "connection_made", watch)
    async with serving(keep_alive=30) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(HOT.replace(b"length: 10", b"length: 999999999") + b"x" * 100_000)
        assert (await answer(reader))[0].startswith(b"HTTP/1.1 413")
        writer.write(b"x" * 100_000)
        await asyncio.sleep(0.05)
        assert lanes[0]._reading is not None
        assert (lanes[0]._reading.body, lanes[0].reader.at) == (b"", lanes[0].reader.size)
        writer.close()


@pytest.mark.parametrize("asked", [b"PUT /v1/queues/q", b"POST /v1/queues/q/redrive"])
async def test_who_has_no_key_is_told_before_its_body_is_read(asked: bytes) -> None:
    """It could fill the memory with it."""
    async with Broker(open_store("memory:")) as broker, listening(broker, 30) as port:
        await broker.keys.create("one", ["send:*"], 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(asked + b" HTTP/1.1\r\nhost: x\r\ncontent-length: 1000000\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await answer(reader))[0].startswith(b"HTTP/1.1 401")
        writer.close()
