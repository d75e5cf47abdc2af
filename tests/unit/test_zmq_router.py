"""Clients who leave just after they asked: what they asked for must not be spent on them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
import zmq

from miniq.broker import Broker
from miniq.server.busy_poll import BusyPoll
from miniq.server.zmq.router import Router
from miniq.store.memory import MemoryStore
from tests.kit import draft, wait_for

PATIENCE = 10_000


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    async with Broker(MemoryStore()) as opened:
        yield opened


class Server:
    """A router in this loop, and a client that it has met."""

    def __init__(self, broker: Broker) -> None:
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.router = Router(self.context, broker, 1 << 20, BusyPoll(0))
        self.port = self.router.bind("127.0.0.1", 0)

    async def meet(self) -> zmq.Socket[bytes]:
        return await asyncio.to_thread(self._meet)

    def _meet(self) -> zmq.Socket[bytes]:
        client: zmq.Socket[bytes] = zmq.Context.instance().socket(zmq.DEALER)
        client.rcvtimeo = PATIENCE
        client.connect(f"tcp://127.0.0.1:{self.port}")
        client.send(b'{"type":"LIST_QUEUES"}')
        client.recv()
        return client

    def leave(self, client: zmq.Socket[bytes], *requests: Any) -> None:
        """Ask and leave while the loop is held up, so that it finds both at the same time."""
        for request in requests:
            client.send(json.dumps(request).encode())
        assert self.router.socket.poll(PATIENCE), "the request has arrived"
        client.close(PATIENCE)
        assert self.router._events.poll(PATIENCE), "that it has left is known"

    async def close(self) -> None:
        await self.router.close(1, 0)
        self.context.destroy(0)


@pytest.fixture
async def server(broker: Broker) -> AsyncIterator[Server]:
    served = Server(broker)
    yield served
    await served.close()


@pytest.mark.parametrize("mode", ["at-least-once", "at-most-once"])
async def test_a_receive_of_one_who_has_left_takes_nothing(broker: Broker, server: Server, mode: str) -> None:
    await broker.configure("q", {"max_receives": 1})
    (id,) = await broker.send("q", [draft(1)])
    client = await server.meet()
    server.leave(client, {"type": "RECEIVE", "payload": {"queue": "q", "wait": 5, "mode": mode}})
    await asyncio.to_thread(wait_for, lambda: not server.router._clients)
    await asyncio.sleep(0.05)
    assert (await broker.get("q", id)).receives == 0


async def test_a_send_of_one_who_has_left_counts(broker: Broker, server: Server) -> None:
    await broker.configure("q")
    client = await server.meet()
    server.leave(client, *({"type": "SEND", "payload": {"queue": "q", "body": number}} for number in range(3)))
    await asyncio.to_thread(wait_for, lambda: not server.router._clients)
    await asyncio.to_thread(wait_for, lambda: broker.metrics.messages["q", "sent"] == 3)
    assert (await broker.queue("q")).counts.ready == 3


async def test_a_receive_that_waits_gets_what_is_sent_in_the_same_round(broker: Broker, server: Server) -> None:
    await broker.configure("q")
    client = await server.meet()
    for request in (
        {"type": "RECEIVE", "payload": {"queue": "q", "wait": 5}},
        {"type": "SEND", "payload": {"queue": "q", "body": "x"}},
    ):
        client.send(json.dumps(request).encode())
    replies = [json.loads(await asyncio.to_thread(client.recv)) for _ in range(2)]
    assert [message["body"] for reply in replies for message in reply["data"].get("messages", [])] == ["x"]
    client.close(0)


async def test_an_envelope_that_is_too_large_does_not_come_back(server: Server) -> None:
    """Else one who never reads could fill the memory with its own words."""
    client = await server.meet()
    client.send_multipart([b"x" * 10_000, b"", b"{}"])
    (reply,) = await asyncio.to_thread(client.recv_multipart)
    assert b"too_large" in reply
    client.close(0)


@pytest.mark.parametrize("field", ["api_key", "idempotency_key"])
async def test_what_a_poll_keeps_is_short(server: Server, field: str) -> None:
    client = await server.meet()
    client.send(json.dumps({"type": "RECEIVE", "payload": {"queue": "q", "wait": 5}, field: "x" * 5000}).encode())
    refused = json.loads(await asyncio.to_thread(client.recv))["error"]
    assert refused["field"] == field
    assert "at most 4096" in refused["text"]
    client.close(0)


async def test_large_polls_that_wait_hold_up_nobody(broker: Broker, server: Server) -> None:
    await broker.configure("q")
    client, other = await server.meet(), await server.meet()
    poll = json.dumps({"type": "RECEIVE", "payload": {"queue": "q", "wait": 60}}).encode()
    for number in range(6):
        client.send_multipart([b"%d" % number, b"", poll + b" " * (server.router._max_request - 100)])
    for one in (client, other):
        one.send_multipart([b"size", b"", b'{"type":"QUEUE_SIZE","payload":{"queue":"q"}}'])
        assert (await asyncio.to_thread(one.recv_multipart))[0] == b"size"
        one.close(0)
