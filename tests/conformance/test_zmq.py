"""What only ZeroMQ has: the commands by their names, the endpoints, frames, pipelining, keys and CURVE."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from miniq.server.operations import OPERATIONS
from tests.conformance.wires import PATIENCE, Caller, ZmqWire
from tests.kit import wait_for
from tests.serving import Served, serving

CONTRACT = """
    CREATE_QUEUE DELETE_QUEUE LIST_QUEUES QUEUE_SIZE QUEUE_STATS PRODUCE_MSG CONSUME DELETE_MSG UPDATE_MSG
    RELEASE_MSG EXTEND_MSG FAIL_MSG MSG_RESULT PEEK PURGE REDRIVE CREATE_TOPIC TOPIC_STATS PUBLISH_MSG
"""


class Peer:
    """One socket to a server, in either format."""

    def __init__(self, address: str, kind: int = zmq.REQ, **options: Any) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self.socket = self._context.socket(kind)
        self.socket.linger = 0
        self.socket.rcvtimeo = self.socket.sndtimeo = PATIENCE  # a socket that is not let in has nowhere to send
        self.socket.sndhwm = self.socket.rcvhwm = 0
        for name, value in options.items():
            setattr(self.socket, name, value)
        self.socket.connect(address)

    def ask(self, type: str, payload: Any = None, **more: Any) -> Any:
        self.socket.send(json.dumps({"type": type, "payload": payload or {}, **more}).encode())
        return json.loads(self.socket.recv())

    def ok(self, type: str, payload: Any = None, **more: Any) -> Any:
        reply = self.ask(type, payload, **more)
        assert reply["ok"], reply
        return reply["data"]

    def post(self, id: bytes, type: str, payload: Any = None, **more: Any) -> None:
        """Ask with an envelope, without waiting for the reply."""
        self.socket.send_multipart([b"", id, json.dumps({"type": type, "payload": payload or {}, **more}).encode()])

    def fetch(self) -> tuple[bytes, Any]:
        empty, id, body = self.socket.recv_multipart()
        assert empty == b""
        return id, json.loads(body)

    def close(self) -> None:
        self._context.destroy(0)

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@pytest.fixture(autouse=True)
def empty(server: Served) -> Iterator[None]:
    yield
    wire = ZmqWire(server)
    Caller(wire).clear()
    wire.close()


@pytest.fixture
def peer(server: Served) -> Iterator[Peer]:
    """A plain REQ client of the command server."""
    with Peer(server.tcp) as peer:
        yield peer


@pytest.fixture
def dealer(server: Served) -> Iterator[Peer]:
    """A client that pipelines."""
    with Peer(server.tcp, zmq.DEALER) as peer:
        yield peer


# Commands


def test_every_command_of_the_contract_is_there(peer: Peer) -> None:
    assert peer.ok("CREATE_QUEUE", {"queue": "q", "visibility_timeout": 60})["settings"]["visibility_timeout"] == 60
    ids = peer.ok("PRODUCE_MSG", {"queue": "q", "messages": [{"body": n} for n in range(5)]})["ids"]
    assert peer.ok("QUEUE_SIZE", {"queue": "q"}) == {"size": 5}
    assert peer.ok("QUEUE_STATS", {"queue": "q"})["counts"]["ready"] == 5
    assert [queue["name"] for queue in peer.ok("LIST_QUEUES")["queues"]] == ["default", "q"]
    first, second, third = peer.ok("CONSUME", {"queue": "q", "max": 3})["messages"]
    one = {"queue": "q", "id": first["id"], "receipt": first["receipt"]}
    assert peer.ok("EXTEND_MSG", one | {"visibility_timeout": 90})["results"][0]["outcome"] == "extended"
    assert peer.ok("UPDATE_MSG", one | {"body": "new"})["body"] == "new"
    assert peer.ok("DELETE_MSG", one) == {"results": [{"id": first["id"], "outcome": "acked"}]}
    assert peer.ok("DELETE_MSG", one)["results"][0]["outcome"] == "missing"
    released = {"queue": "q", "leases": [{"id": m["id"], "receipt": m["receipt"]} for m in (second, third)]}
    assert [r["outcome"] for r in peer.ok("RELEASE_MSG", released)["results"]] == ["released", "released"]
    assert peer.ok("DELETE_MSG", {"queue": "q", "id": ids[4]}) is None
    assert [m["body"] for m in peer.ok("PEEK", {"queue": "q", "status": "ready", "limit": 2})["messages"]] == [1, 2]
    assert peer.ok("PURGE", {"queue": "q"}) == {"purged": 3}
    peer.ok("CREATE_QUEUE", {"queue": "q", "max_receives": 1})
    assert peer.ok("REDRIVE", {"queue": "q.dead"}) == {"moved": 0, "skipped": 0, "running": False}
    assert peer.ok("DELETE_QUEUE", {"queue": "q"}) is None


def test_every_operation_is_a_command_and_unknown_ones_are_told_which_there_are(peer: Peer) -> None:
    said = peer.ask("FLY")["error"]
    assert (said["code"], said["field"]) == ("bad_request", "type")
    there = set(said["text"].partition("use one of ")[2].split(", "))
    assert there == {*CONTRACT.split(), *(operation.name.upper() for operation in OPERATIONS)}


def test_a_message_that_is_leased_is_deleted_only_with_its_receipt(peer: Peer) -> None:
    peer.ok("SEND", {"queue": "q", "body": 1})
    (message,) = peer.ok("RECEIVE", {"queue": "q"})["messages"]
    assert peer.ask("DELETE_MSG", {"queue": "q", "id": message["id"]})["error"]["code"] == "message_leased"
    assert peer.ask("RELEASE_MSG", {"queue": "q", "id": message["id"]})["error"]["field"] == "receipt"
    wrong = {"queue": "q", "id": message["id"], "receipt": "wrong"}
    assert peer.ok("DELETE_MSG", wrong)["results"][0]["outcome"] == "stale"
    assert peer.ok("QUEUE_SIZE", {"queue": "q"}) == {"size": 1}


def test_a_reply_has_the_format_of_its_request(peer: Peer) -> None:
    peer.socket.send(msgspec.msgpack.encode({"type": "SEND", "payload": {"queue": "q", "data": b"\xff"}}))
    assert set(msgspec.msgpack.decode(peer.socket.recv())) == {"ok", "data"}
    peer.socket.send(msgspec.msgpack.encode({"type": "NOPE"}))
    assert msgspec.msgpack.decode(peer.socket.recv())["error"]["code"] == "bad_request"
    peer.socket.send(b' \n{"type": "QUEUE_SIZE", "payload": {"queue": "q"}}')
    assert json.loads(peer.socket.recv()) == {"ok": True, "data": {"size": 1}}


# Endpoints


def test_an_endpoint_is_opened_on_demand_and_its_requests_are_the_send_and_the_receive(peer: Peer) -> None:
    producing = peer.ok("PRODUCE_MSG", {"queue": "q"})
    consuming = peer.ok("CONSUME")
    assert producing == peer.ok("PRODUCE_MSG")
    assert producing["address"] == f"tcp://127.0.0.1:{producing['port']}"
    with Peer(producing["address"]) as producer, Peer(consuming["address"]) as consumer:
        producer.ok("PRODUCE_MSG", {"queue": "q", "messages": [{"body": 1}, {"body": 2}]})
        producer.socket.send(b'{"queue": "q", "body": 3}')
        assert len(json.loads(producer.socket.recv())["data"]["ids"]) == 1
        messages = consumer.ok("CONSUME", {"queue": "q", "max": 2})["messages"]
        consumer.socket.send(msgspec.msgpack.encode({"queue": "q"}))
        messages += msgspec.msgpack.decode(consumer.socket.recv())["data"]["messages"]
        assert [message["body"] for message in messages] == [1, 2, 3]
        leases = [{"id": m["id"], "receipt": m["receipt"]} for m in messages]
        assert len(consumer.ok("DELETE_MSG", {"queue": "q", "leases": leases})["results"]) == 3
        for endpoint in (producer, consumer):
            said = endpoint.ask("PURGE", {"queue": "q"})["error"]
            assert (said["code"], said["field"]) == ("bad_request", "type")
        assert producer.ask("PRODUCE_MSG", {"queue": "q"})["error"]["field"] == "body"


def test_known_ports_are_open_from_the_start(tmp_path: Path) -> None:
    from tests.serving import free_ports

    ports = free_ports(3)
    flags = [f"--{name}-port={port}" for name, port in zip(("command", "producer", "consumer"), ports, strict=True)]
    with serving("memory:", 0, *flags) as served, Peer(f"tcp://127.0.0.1:{ports[1]}") as producer:
        assert served.tcp == f"tcp://127.0.0.1:{ports[0]}"
        assert producer.ask("PRODUCE_MSG", {"queue": "q", "body": 1})["ok"]
        with Peer(f"tcp://127.0.0.1:{ports[2]}") as consumer:
            assert len(consumer.ok("CONSUME", {"queue": "q"})["messages"]) == 1


# Frames


@pytest.mark.parametrize("envelope", [[], [b""], [b"7"], [b"", b"7"], [b"a", b"", b"b"], [b"x"] * 15])
def test_a_reply_comes_back_in_the_envelope_of_its_request(dealer: Peer, envelope: list[bytes]) -> None:
    dealer.socket.send_multipart([*envelope, b'{"type": "LIST_QUEUES"}'])
    *back, body = dealer.socket.recv_multipart()
    assert back == envelope
    assert json.loads(body)["ok"]


def test_pipelined_requests_each_get_one_reply_and_a_long_poll_holds_up_nobody(dealer: Peer) -> None:
    dealer.post(b"poll", "RECEIVE", {"queue": "other", "wait": 20})
    for n in range(500):
        dealer.post(b"%d" % n, "SEND", {"queue": "q", "body": n})
    assert sorted(int(dealer.fetch()[0]) for _ in range(500)) == list(range(500))
    dealer.post(b"size", "QUEUE_SIZE", {"queue": "q"})
    assert dealer.fetch() == (b"size", {"ok": True, "data": {"size": 500}})
    dealer.post(b"send", "SEND", {"queue": "other", "body": "woken"})
    assert {dealer.fetch()[0] for _ in range(2)} == {b"poll", b"send"}


def test_a_waiting_receive_is_taken_back_by_a_cancel_in_its_envelope(dealer: Peer) -> None:
    dealer.post(b"1", "RECEIVE", {"queue": "q", "wait": 20})
    dealer.post(b"2", "RECEIVE", {"queue": "q", "wait": 20})
    dealer.post(b"1", "CANCEL")
    assert dealer.fetch() == (b"1", {"ok": True, "data": {"messages": []}})
    assert dealer.fetch() == (b"1", {"ok": True, "data": {"cancelled": 1}})
    dealer.post(b"s", "SEND", {"queue": "q", "body": 1})
    got = dict(dealer.fetch() for _ in range(2))
    assert [message["receives"] for message in got[b"2"]["data"]["messages"]] == [1]
    dealer.post(b"1", "CANCEL")
    assert dealer.fetch() == (b"1", {"ok": True, "data": {"cancelled": 0}})


@pytest.mark.parametrize("kind", [zmq.REQ, zmq.DEALER])
def test_five_thousand_frames_are_refused_with_one_reply(server: Served, kind: int) -> None:
    with Peer(server.tcp, kind) as peer:
        peer.socket.send_multipart([b"x" * 1024] * 5000)
        said = json.loads(peer.socket.recv())["error"]
        assert (said["code"], said["field"]) == ("too_large", "request")
        assert re.search(r"500[01] frames", said["text"])  # with the empty one that REQ adds
        peer.socket.send(b'{"type": "LIST_QUEUES"}')
        assert json.loads(peer.socket.recv())["ok"]


def test_one_frame_too_many_is_refused_and_the_envelope_has_its_limit(dealer: Peer) -> None:
    for envelope in ([b"", *[b"x"] * 15], [b"", b"x" * 4097]):
        dealer.socket.send_multipart([*envelope, b'{"type": "LIST_QUEUES"}'])
        empty, body = dealer.socket.recv_multipart()
        assert (empty, json.loads(body)["error"]["code"]) == (b"", "too_large")


def test_a_frame_that_is_far_too_large_costs_its_sender_the_connection(server: Served, peer: Peer) -> None:
    with Peer(server.tcp, rcvtimeo=1000, reconnect_ivl=-1) as huge:
        huge.socket.send(b"x" * (33 * 1024 * 1024))
        with pytest.raises(zmq.Again):
            huge.socket.recv()
    assert peer.ok("LIST_QUEUES")


def test_a_client_with_too_many_unanswered_requests_is_told(dealer: Peer, peer: Peer) -> None:
    for n in range(1010):
        dealer.post(b"%d" % n, "RECEIVE", {"queue": "q", "wait": 30})
    for n in range(1000, 1010):
        id, said = dealer.fetch()
        assert (id, said["error"]["code"]) == (b"%d" % n, "bad_request")
    assert peer.ok("LIST_QUEUES")


def test_a_client_that_reads_nothing_costs_no_more_than_its_share(server: Served, peer: Peer) -> None:
    """It asks for far more than it may leave unread, and never looks."""
    for _ in range(16):
        peer.ok("SEND", {"queue": "q", "messages": [{"body": "x" * 1_000_000}]})
    before = resident(server)
    with Peer(server.tcp, zmq.DEALER, rcvhwm=1, rcvbuf=65536) as deaf:
        for n in range(200):
            deaf.post(b"%d" % n, "PEEK", {"queue": "q", "limit": 16})
        peer.ok("LIST_QUEUES")
        wait_for(lambda: peer.ok("QUEUE_SIZE", {"queue": "q"}) == {"size": 16})
        assert resident(server) - before < 400_000_000  # all of it would be 3.2 GB


# Hostile input


def frame_lists(chance: random.Random, count: int) -> Iterator[list[bytes]]:
    """Random requests: noise, pieces of good ones, good ones with something wrong in them."""
    good = [
        {"type": "SEND", "payload": {"queue": "fuzz", "body": [1, "x"]}},
        {"type": "CONSUME", "payload": {"queue": "fuzz", "max": 1, "visibility_timeout": 0}},
        {"type": "PEEK", "payload": {"queue": "fuzz", "limit": 1}},
        {"type": "DELETE_MSG", "payload": {"queue": "fuzz", "id": "x", "receipt": "y"}},
        {"type": "CREATE_QUEUE", "payload": {"queue": "fuzz", "delay": 0}},
        {"type": "CANCEL"},
    ]
    texts = [msgspec.json.encode(one) for one in good] + [msgspec.msgpack.encode(one) for one in good]
    for _ in range(count):
        kind = chance.randrange(6)
        if kind == 0:
            yield [chance.randbytes(chance.randrange(40)) for _ in range(chance.randrange(1, 6))]
        elif kind == 1:
            yield [b""] * chance.randrange(1, 30)
        elif kind == 2:
            yield [b"", chance.randbytes(chance.choice([1, 5, 300, 5000])), chance.choice(texts)]
        else:
            text = bytearray(chance.choice(texts))
            for _ in range(chance.randrange(3)):
                text[chance.randrange(len(text))] = chance.randrange(256)
            yield [b"", bytes(text[: chance.randrange(1, len(text) + 1)])]


def test_a_peer_of_the_oldest_protocol_stops_no_request_of_others(server: Served, peer: Peer) -> None:
    """Its frames have no metadata. It sends without a pause, so its requests are read together with those of others."""
    port = int(server.tcp.rpartition(":")[2])
    no_identity, request = b"\x01\x00", b"\x01\x01\x03\x00{}"
    with contextlib.ExitStack() as stack, Peer(server.tcp, zmq.DEALER) as honest:
        for _ in range(20):
            old = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            old.sendall(no_identity + request * 100)
        for n in range(200):
            honest.post(b"%d" % n, "QUEUE_SIZE", {"queue": "default"})
        assert sorted(int(honest.fetch()[0]) for _ in range(200)) == list(range(200))
    assert peer.ok("LIST_QUEUES")


def test_a_cancel_has_no_payload(peer: Peer) -> None:
    assert peer.ask("CANCEL", {"id": "x"})["error"]["field"] == "id"


def test_a_hundred_thousand_random_requests_leave_it_answering_and_its_memory_flat(tmp_path: Path) -> None:
    seed = random.randrange(10**9)
    print(f"seed {seed}")
    chance = random.Random(seed)
    sizes: list[int] = []
    with serving("memory:") as served, Peer(served.tcp) as good:
        good.ok("CREATE_QUEUE", {"queue": "fuzz", "max_length": 100})
        for _ in range(10):
            with Peer(served.tcp, zmq.DEALER) as bad:
                flying = 0
                for frames in frame_lists(chance, 10_000):
                    bad.socket.send_multipart(frames)
                    flying += 1
                    if flying == 200:
                        json_or_packed(bad.socket.recv_multipart()[-1])
                        flying -= 1
                for _ in range(flying):
                    json_or_packed(bad.socket.recv_multipart()[-1])
            assert good.ok("LIST_QUEUES")
            sizes.append(resident(served))
        said = good.ok("QUEUE_SIZE", {"queue": "fuzz"})
        assert said["size"] <= 100
        assert served.stop() == 0
    print(sizes)
    assert sizes[-1] - sizes[1] < 8_000_000, sizes


def json_or_packed(body: bytes) -> Any:
    reply = json.loads(body) if body[:1] == b"{" else msgspec.msgpack.decode(body)
    assert reply["ok"] in (True, False)
    assert reply["ok"] or reply["error"]["code"] != "error", reply
    return reply


# The end


def test_an_orderly_stop_answers_what_it_was_asked(tmp_path: Path) -> None:
    with serving(f"rocksdb:{tmp_path / 'data'}") as served, Peer(served.tcp, zmq.DEALER) as dealer:
        dealer.post(b"poll", "RECEIVE", {"queue": "q", "wait": 60})
        dealer.post(b"sent", "SEND", {"queue": "other", "body": 1})
        assert dealer.fetch()[0] == b"sent"
        os.kill(served.process.pid, signal.SIGTERM)
        assert dealer.fetch() == (b"poll", {"ok": True, "data": {"messages": []}})
        assert served.stop() == 0


# Keys


def test_an_api_key_in_the_request_opens_what_it_allows(tmp_path: Path) -> None:
    with serving("memory:") as served, Peer(served.tcp) as peer:
        admin = peer.ok("CREATE_KEY", {"name": "ops", "allow": ["*"]})["secret"]
        key = peer.ok("CREATE_KEY", {"name": "shop", "allow": ["send:orders.*"]}, api_key=admin)["secret"]
        for wrong in ({}, {"api_key": "mq_0_x"}, {"api_key": None}):
            for type in ("SEND", "LIST_QUEUES", "PRODUCE_MSG", "CANCEL", "CREATE_KEY"):
                assert peer.ask(type, {"queue": "orders.1"}, **wrong)["error"]["code"] == "unauthorized"
        assert peer.ok("SEND", {"queue": "orders.1", "body": 1}, api_key=key)["ids"]
        assert peer.ask("SEND", {"queue": "other", "body": 1}, api_key=key)["error"]["code"] == "forbidden"
        assert peer.ask("RECEIVE", {"queue": "orders.1"}, api_key=key)["error"]["code"] == "forbidden"
        assert peer.ok("LIST_QUEUES", api_key=key) == {"queues": []}


@pytest.fixture
def curved(tmp_path: Path) -> Iterator[tuple[Served, str, dict[str, Any]]]:
    """A server that speaks CURVE, an API key that may do everything, and a listed client key."""
    with serving(f"rocksdb:{tmp_path / 'data'}", 0, "--curve") as served:
        http = Caller(_http(served))
        admin = http.ok("POST", "/v1/keys", {"name": "ops", "allow": ["*"]})["secret"]
        public, secret = zmq.curve_keypair()
        body = {"name": "worker", "allow": ["send:jobs", "receive:jobs"], "public": public.decode()}
        listed = http.ok("POST", "/v1/keys", body, authorization=f"Bearer {admin}")
        keys = {"curve_publickey": public, "curve_secretkey": secret, "curve_serverkey": listed["server"].encode()}
        yield served, admin, keys | {"id": listed["id"]}


def _http(served: Served) -> Any:
    from tests.conformance.wires import HttpWire

    return HttpWire(served)


def test_a_listed_curve_key_connects_and_may_do_what_it_allows(curved: tuple[Served, str, dict[str, Any]]) -> None:
    served, admin, keys = curved
    id = keys.pop("id")
    with Peer(served.tcp, **keys) as peer:
        peer.ok("SEND", {"queue": "jobs", "body": 1})
        assert len(peer.ok("RECEIVE", {"queue": "jobs"})["messages"]) == 1
        assert peer.ask("SEND", {"queue": "other", "body": 1})["error"]["code"] == "forbidden"
        assert peer.ok("SEND", {"queue": "other", "body": 1}, api_key=admin)["ids"]
        producing = peer.ok("PRODUCE_MSG")["address"]
        with Peer(producing, **keys) as producer:
            producer.ok("PRODUCE_MSG", {"queue": "jobs", "body": 2})
        Caller(_http(served)).ok("DELETE", f"/v1/keys/{id}", authorization=f"Bearer {admin}")
        assert peer.ask("SEND", {"queue": "jobs", "body": 1})["error"]["code"] == "unauthorized"
    assert refused(served.tcp, **keys)


def test_other_keys_and_plain_connections_are_not_let_in(curved: tuple[Served, str, dict[str, Any]]) -> None:
    served, _, keys = curved
    del keys["id"]
    public, secret = zmq.curve_keypair()
    assert refused(served.tcp)
    assert refused(served.tcp, **keys | {"curve_publickey": public, "curve_secretkey": secret})
    assert refused(served.tcp, **keys | {"curve_serverkey": public})
    with Peer(served.tcp, **keys) as peer:
        assert peer.ok("SEND", {"queue": "jobs", "body": 1})


def refused(address: str, **keys: Any) -> bool:
    with Peer(address, rcvtimeo=400, sndtimeo=400, **keys) as peer:
        try:
            peer.ask("LIST_QUEUES")
        except zmq.Again:
            return True
        return False


# Seeing


def resident(served: Served) -> int:
    """Bytes of memory that a server has."""
    status = Path(f"/proc/{served.process.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024
